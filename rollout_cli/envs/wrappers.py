"""Wrappers that a SPEC names: `module:attr`, or a class of `gymnasium.wrappers` by its name alone."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium

from rollout_cli.envs.building import Env, call_builder
from rollout_cli.errors import EnvLoadError
from rollout_cli.loading import Source, is_module_attribute


@dataclass(frozen=True, slots=True)
class WrapperSource:
    """Where a wrapper comes from, small and picklable; each build calls it as `wrapper(env, **kwargs)`."""

    spec: str
    source: Source
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def wrap(self, env: Env) -> Any:
        """Return the environment in this wrapper, or raise EnvLoadError."""
        wrapper = self.source.load(EnvLoadError)
        return call_builder(partial(wrapper, env), self.kwargs, self.spec, wrapper)

    def describe(self) -> dict[str, Any]:
        """Return the record of a dataset: `spec`, `kwargs`, and the `sha256` of a user's module."""
        return {"spec": self.spec, "kwargs": dict(self.kwargs), "sha256": self.source.sha256}


def wrapper_source(spec: str, kwargs: Mapping[str, Any] | None = None) -> WrapperSource:
    """Return the source that a wrapper's SPEC names; modules are looked for, but nothing is loaded.

    Raises:
        EnvLoadError: If it names a missing module, or no wrapper of gymnasium's.
    """
    if is_module_attribute(spec):
        return WrapperSource(spec, Source.find(spec, EnvLoadError), kwargs or {})
    names = gymnasium.wrappers.__all__
    if spec not in names:
        close = difflib.get_close_matches(spec, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "name one of gymnasium.wrappers, or module:attr"
        raise EnvLoadError(f"{spec!r} names no wrapper", hint=hint)
    return WrapperSource(spec, Source(f"gymnasium.wrappers:{spec}", None, None, None), kwargs or {})
