"""Env SPECs: the text after `--env` and the objects that the Python API takes; environments built from them.

A SPEC is a gymnasium id (`CartPole-v1`, `module:Env-v0`), an EnvSpec as JSON (`file.json`), a pickle
(`file.pkl`), or `module:attr`. An id after a colon has a version or a slash, and so never reads as the name
of an attribute. A wrapper's SPEC is `module:attr`, or the name of a class of `gymnasium.wrappers`.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import VectorEnv

from rollout_cli.envs.building import (
    Env,
    call_builder,
    checked_env,
    parameters_of,
    refuse_agents,
    register_home,
)
from rollout_cli.envs.describe import AutoresetMode
from rollout_cli.errors import ArgumentError, EnvLoadError, EnvTypeError, misspelt
from rollout_cli.keywords import Keywords, Record
from rollout_cli.sources.loading import (
    Source,
    did_you_mean,
    first_line,
    import_module,
    is_file,
    is_module_attribute,
    name_of,
)

Vector = VectorEnv[Any, Any, Any]

_MODE = "autoreset_mode"


@dataclass(frozen=True, slots=True)
class WrapperSource:
    """Where a wrapper comes from, small and picklable; each build calls it as `wrapper(env, **kwargs)`."""

    spec: str
    source: Source
    kwargs: Keywords

    def wrap(self, env: Env) -> Any:
        """Return the environment in this wrapper, or raise EnvLoadError."""
        wrapper = self.source.load(EnvLoadError)
        return call_builder(partial(wrapper, env), self.kwargs, self.spec, wrapper)

    def describe(self) -> Record:
        """Return the record of a dataset: `spec`, `kwargs`, and the `sha256` of a user's module."""
        return {"spec": self.spec, "kwargs": dict(self.kwargs), "sha256": self.source.sha256}


@dataclass(frozen=True, slots=True)
class EnvSource:
    """Where environments come from: small and picklable; each worker builds from it.

    Attributes:
        label: A short text for people.
        spec: The SPEC as it was given; for an object of the Python API its name.
        kwargs: Arguments of the constructor, the factory, or `gymnasium.make`.
        source: The file (of JSON, the EnvSpec in it), module attribute or object; None for a gymnasium id.
        wrappers: What each environment is wrapped in, the innermost first; a vector environment takes none.
    """

    label: str
    spec: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None
    wrappers: tuple[WrapperSource, ...] = ()

    def build(self) -> Env:
        """Build a new environment, which shares nothing with others, or raise EnvLoadError.

        One that gymnasium makes comes without PassiveEnvChecker, OrderEnforcing and TimeLimit, which cost a
        tenth of a small environment's step; `time_limit_of` gives the limit, and its worker counts.
        """
        env = self._build()
        for wrapper in self.wrappers:
            env = checked_env(wrapper.wrap(env), wrapper.spec)
        return env

    def _build(self) -> Env:
        resolved = self.resolve()
        if isinstance(resolved, GymSpec):
            return _make_env(resolved, self.kwargs, self.label, is_wrapped=bool(self.wrappers))
        if not isinstance(resolved, gymnasium.Env):
            if callable(resolved):
                resolved = call_builder(resolved, self.kwargs, self.label)
            return checked_env(resolved, self.label)
        if self.kwargs:
            raise EnvLoadError(
                f"{self.label} is an environment already: no arguments {[*self.kwargs]}",
                code="env-argument",
                hint="name a class, a factory or a gymnasium EnvSpec instead of an environment, "
                "or omit the arguments",
            )
        if self.source is None or self.source.data is None:
            # A module's own environment would be the same object in every build of a process.
            return as_env_source(resolved).build()
        return resolved

    def resolve(self) -> Any:
        """Return the gymnasium EnvSpec, class, factory or environment of the SPEC, or raise EnvLoadError."""
        return _registered_spec(self.spec) if self.source is None else self.source.load(EnvLoadError)

    def describe(self) -> Record:
        """Return the record of a dataset: `spec`, `kwargs`, and `path` and `sha256` of a file or module."""
        return {
            "spec": self.spec,
            "kwargs": self.kwargs,
            "path": self.source and self.source.path,
            "sha256": self.source and self.source.sha256,
            "wrappers": [wrapper.describe() for wrapper in self.wrappers],
        }


def env_source(
    spec: str, kwargs: Keywords | None = None, *, wrappers: tuple[WrapperSource, ...] = ()
) -> EnvSource:
    """Return the source that an env SPEC names; files are read and modules looked for, but nothing is built.

    Args:
        spec: The SPEC.
        kwargs: Arguments of the constructor, the factory, or `gymnasium.make`.
        wrappers: What each environment is wrapped in, the innermost first.

    Raises:
        EnvLoadError: If it names a missing file or module, or JSON that is no EnvSpec.
    """
    options = dict(kwargs or {})
    if not spec:
        raise EnvLoadError(
            "the environment's name is empty",
            code="env-unknown",
            hint="name a gymnasium id, a file, or module:attr",
        )
    if is_file(spec, (".json",)):
        file = Source.read(spec, EnvLoadError)
        try:
            # A file that was written by hand may omit the wrappers.
            parsed = GymSpec.from_json(json.dumps({"additional_wrappers": []} | json.loads(file.data or b"")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise EnvLoadError(
                f"{spec!r} holds no EnvSpec as JSON: {first_line(error)}",
                code="env-spec-json",
                hint="write it with `env.spec.to_json()`",
            ) from error
        return EnvSource(parsed.id, spec, options, replace(file, data=pickle.dumps(parsed)), wrappers)
    if is_file(spec):
        return EnvSource(Path(spec).name, spec, options, Source.read(spec, EnvLoadError), wrappers)
    source = Source.find(spec, EnvLoadError) if is_module_attribute(spec) else None
    return EnvSource(spec, spec, options, source, wrappers)


def wrapper_source(spec: str, kwargs: Keywords) -> WrapperSource:
    """Return the source that a wrapper's SPEC names; modules are looked for, but nothing is loaded.

    Raises:
        EnvLoadError: If it names a missing module, or no wrapper of gymnasium's.
    """
    if is_module_attribute(spec):
        return WrapperSource(spec, Source.find(spec, EnvLoadError), kwargs)
    names = gymnasium.wrappers.__all__
    if spec not in names:
        raise EnvLoadError(
            f"{spec!r} names no wrapper",
            code="wrapper-unknown",
            hint=misspelt(spec, names) or "name one of gymnasium.wrappers, or module:attr",
        )
    return WrapperSource(spec, Source(f"gymnasium.wrappers:{spec}", None, None, None), kwargs)


def as_env_source(env: Any) -> EnvSource:
    """Return a source of an argument of the Python API; an object is pickled now, in its present state.

    It is a source, a SPEC, a gymnasium EnvSpec, an environment class or factory, or an environment.

    Raises:
        EnvLoadError: If it is none of these, or cannot be pickled.
    """
    if isinstance(env, EnvSource):
        return env
    if isinstance(env, str):
        return env_source(env)
    refuse_agents(env, name_of(env))
    if not isinstance(env, GymSpec | gymnasium.Env) and not callable(env):
        raise EnvTypeError(
            f"an object of type {type(env).__name__} is no environment",
            code="env-type",
            hint="give a gymnasium id, EnvSpec, environment, its class, or a factory",
        )
    named = env
    if isinstance(env, gymnasium.Env):
        named = env.spec or type(env.unwrapped)
    name = named.id if isinstance(named, GymSpec) else name_of(named)
    source = Source.of(
        env,
        EnvLoadError,
        hint="give a gymnasium id, or a factory that builds the environment in each worker",
    )
    return EnvSource(name, name, source=source)


def one_for_each(update: Any, n_rows: int) -> list[Any]:
    """Return one environment update a row: a list as it is, else the same for all.

    No two rows share an environment.
    """
    updates = update if isinstance(update, list) else [update] * n_rows
    if len(updates) != n_rows:
        raise ArgumentError(
            f"a list with one environment a row has {n_rows} entries, not {len(updates)}", code="list-length"
        )
    row_updates: list[Any] = []
    for env in updates:
        is_shared = isinstance(env, gymnasium.Env) and any(env is other for other in row_updates)
        row_updates.append(as_env_source(env).build() if is_shared else env)
    return row_updates


def _registered_spec(env_id: str) -> GymSpec:
    module, colon, name = env_id.rpartition(":")
    if colon:
        # gymnasium's own message for a missing module does not say where it was looked for.
        import_module(module, EnvLoadError)
    else:
        register_home(name)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise EnvLoadError(
            f"there is no environment {env_id!r}",
            code="env-unknown",
            hint=misspelt(name, gymnasium.registry)
            or did_you_mean(env_id)
            or "another package's environment is named with the module that registers it, "
            "as in ale_py:ALE/Pong-v5",
        ) from error


def _make_env(spec: GymSpec, kwargs: Keywords, name: str, *, is_wrapped: bool) -> Env:
    """Call `gymnasium.make` without wrappers; the spec stays the original, with the time limit."""
    options = dict(kwargs)
    limit = options.pop("max_episode_steps", spec.max_episode_steps)
    if limit == -1:
        limit = None
    options.pop("disable_env_checker", None)
    make = partial(gymnasium.make, disable_env_checker=True)
    if spec.additional_wrappers or is_wrapped:
        # They are put around the TimeLimit, and one that repeats actions makes its steps others than ours.
        wrapped = partial(make, spec, max_episode_steps=limit or -1)
        return checked_env(call_builder(wrapped, options, name, spec.entry_point), name)
    bare = partial(make, replace(spec, order_enforce=False), max_episode_steps=-1)
    env = checked_env(call_builder(bare, options, name, spec.entry_point), name)
    if env.unwrapped.spec is not None:
        options = env.unwrapped.spec.kwargs
    env.unwrapped.spec = replace(copy.deepcopy(spec), kwargs=options, max_episode_steps=limit)
    return env


def build_native(source: EnvSource, n_rows: int, seed: int) -> Vector:
    """Build a vector environment of `n_rows` rows, or raise EnvLoadError.

    A gymnasium id or EnvSpec must have a vector entry point; a class or factory is called with `num_envs`.
    Where it takes `seed` and the source's arguments have none, it gets `seed`, in [0, 2**31). Where it takes
    `autoreset_mode` and none is given, it is asked not to reset itself: only then can episodes be reproduced.
    """
    resolved = source.resolve()
    name = source.label
    if source.wrappers:
        raise EnvLoadError(
            f"{source.wrappers[0].spec} wraps single environments, not vector environments",
            code="wrapper-vector",
            hint='omit {vectorization="native"}, or let a factory wrap the vector environment',
        )
    creator = resolved
    if isinstance(resolved, GymSpec):
        creator = resolved.vector_entry_point
    if creator is None or (isinstance(creator, type) and issubclass(creator, gymnasium.Env)):
        raise EnvLoadError(
            f"{name!r} is a single environment, and has no vector entry point",
            code="env-not-vector",
            hint='omit {vectorization="native"}: '
            "{envs_per_worker=…} then steps that many copies of the environment",
        )
    if isinstance(resolved, GymSpec):
        build = partial(
            gymnasium.make_vec, resolved, num_envs=n_rows, vectorization_mode="vector_entry_point"
        )
        built = _built_native(build, creator, source, seed, fixed={**resolved.kwargs, **source.kwargs})
        if "seed" not in (*resolved.kwargs, *source.kwargs):
            built.unwrapped.spec.kwargs.pop("seed", None)  # It is no other worker's.
    elif callable(resolved):
        built = _built_native(partial(resolved, num_envs=n_rows), creator, source, seed, fixed=source.kwargs)
    else:
        built = resolved
    if not isinstance(built, VectorEnv) or built is resolved:
        raise EnvLoadError(
            f"{name!r} gives no new vector environment, but a {type(built).__name__}",
            code="env-not-vector",
            hint="name a gymnasium.vector.VectorEnv class, or a factory that is called with num_envs",
        )
    if int(built.num_envs) != n_rows:
        built.close()
        raise EnvLoadError(
            f"{name!r} has {built.num_envs} rows, but {n_rows} were asked for",
            code="env-row-count",
            hint="let the factory take num_envs",
        )
    return built


def _built_native(
    build: Callable[..., Any], creator: Any, source: EnvSource, seed: int, *, fixed: Keywords
) -> Any:
    # An entry point is imported for that.
    free = call_builder(partial(parameters_of, creator), {}, source.label).keys() - fixed.keys()
    kwargs = {**source.kwargs}
    if "seed" in free:
        kwargs["seed"] = seed
    if _MODE in free:
        modes: Any = getattr(gymnasium.vector, "AutoresetMode", AutoresetMode)
        try:
            return call_builder(build, {**kwargs, _MODE: modes.DISABLED}, source.label, creator)
        except EnvLoadError as error:
            # ALE up to 0.12 has the argument, and no such mode; the dataset says what comes of that.
            if not isinstance(error.__cause__, ValueError) or _MODE not in str(error.__cause__):
                raise
    return call_builder(build, kwargs, source.label, creator)
