"""Env SPECs: the text after `--env` and the objects that the Python API takes, and the environments built from them.

A SPEC is a gymnasium id (`CartPole-v1`, `module:Env-v0`), an EnvSpec as JSON (`file.json`), a pickle (`file.pkl`), or
`module:attr`. An id after a colon has a version or a slash, and so never reads as the name of an attribute.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import VectorEnv

from rollout_cli.errors import EnvLoadError, RolloutError, UserCodeError
from rollout_cli.loading import Source, failure, first_line, import_module, is_file, is_module_attribute

Env = gymnasium.Env[Any, Any]

_JSON_SUFFIXES = (".json",)
_PIP_LINE = re.compile(r"`(pip install [^`]+)`")
_INSTANCE_HINT = "name a class, a factory or a gymnasium EnvSpec instead of an environment, or omit the arguments"
_OBJECT_HINT = "give a gymnasium id, or a factory that builds the environment in each worker"


@dataclass(frozen=True, slots=True)
class EnvSource:
    """Where environments come from: small and picklable; each worker builds from it.

    Attributes:
        label: A short text for people.
        spec: The SPEC as it was given; for an object of the Python API its name.
        kwargs: Arguments of the constructor, the factory, or `gymnasium.make`.
        source: The file, module attribute or object; None for a gymnasium id.
    """

    label: str
    spec: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None

    def build(self) -> Env:
        """Build a new environment, which shares nothing with others that were built.

        One that gymnasium makes comes without PassiveEnvChecker, OrderEnforcing and TimeLimit, which cost a tenth of a
        small environment's step; `time_limit_of` gives the limit, and its worker counts.

        Raises:
            EnvLoadError: If that fails, or the result is no gymnasium.Env.
        """
        found = self.resolve()
        if isinstance(found, GymSpec):
            return _make_env(found, self.kwargs, self.label)
        if isinstance(found, gymnasium.Env):
            if self.kwargs:
                names = ", ".join(self.kwargs)
                raise EnvLoadError(
                    f"{self.label} is an environment already: no arguments ({names})", hint=_INSTANCE_HINT
                )
            # A module's own environment would be the same object in every build of a process.
            return found if self.source is not None and self.source.data is not None else copy_env(found, self.label)
        if not callable(found) or _hint_for_foreign(found):
            raise _not_an_env(found, self.label)
        return _checked(call_builder(found, self.kwargs, self.label), self.label)

    def resolve(self) -> Any:
        """Return the gymnasium EnvSpec, class, factory or environment that the SPEC names; nothing is built.

        Raises:
            EnvLoadError: If it cannot be found or loaded.
        """
        if self.source is None:
            return _registered_spec(self.spec)
        if is_file(self.spec, _JSON_SUFFIXES) and self.source.data is not None:
            return _parse_spec(self.source.data, self.spec)
        return self.source.load(EnvLoadError)

    def describe(self) -> dict[str, Any]:
        """Return the record of a dataset: `spec`, `kwargs`, and `path` and `sha256` of a file or module."""
        is_given_file = self.source is not None and is_file(self.spec, (".json", ".pkl", ".pickle"))
        return {
            "spec": self.spec,
            "kwargs": self.kwargs,
            "path": str(Path(self.spec).resolve()) if is_given_file else None,
            # A fresh pickle of an object differs every time, so its hash would say nothing.
            "sha256": self.source.sha256 if self.source is not None and self.source.spec else None,
        }


def env_source(spec: str, kwargs: Mapping[str, Any] | None = None) -> EnvSource:
    """Return the source that an env SPEC names; files are read and modules looked for, but nothing is built.

    Args:
        spec: The SPEC.
        kwargs: Arguments of the environment's constructor, its factory, or `gymnasium.make`.

    Raises:
        EnvLoadError: If it names a missing file or module, or JSON that is no EnvSpec.
    """
    options = dict(kwargs or {})
    if not spec:
        raise EnvLoadError("the environment's name is empty", hint="name a gymnasium id, a file, or module:attr")
    if is_file(spec, _JSON_SUFFIXES):
        source = Source.read(spec, EnvLoadError)
        return EnvSource(_parse_spec(source.data or b"", spec).id, spec, options, source)
    if is_file(spec):
        return EnvSource(Path(spec).name, spec, options, Source.read(spec, EnvLoadError))
    if is_module_attribute(spec):
        return EnvSource(spec, spec, options, Source.find(spec, EnvLoadError))
    return EnvSource(spec, spec, options)


def as_env_source(env: Any, kwargs: Mapping[str, Any] | None = None) -> EnvSource:
    """Return a source of an argument of the Python API.

    Args:
        env: A source, a SPEC, a gymnasium EnvSpec, an environment class or factory, or an environment. An object is
            pickled now, so every worker gets a copy of its present state, and the caller's own stays the caller's.
        kwargs: Arguments as for `env_source`; none for a source, which has its own.

    Raises:
        EnvLoadError: If it is none of these, or cannot be pickled.
    """
    if isinstance(env, EnvSource):
        if kwargs:
            raise EnvLoadError(f"{env.label} has its arguments already", hint="give them where the source is made")
        return env
    if isinstance(env, str):
        return env_source(env, kwargs)
    if not isinstance(env, GymSpec | gymnasium.Env) and not callable(env):
        raise EnvLoadError(
            f"an object of type {type(env).__name__} is no environment",
            hint="give a gymnasium id, EnvSpec, environment, its class, or a factory",
        )
    name = _object_label(env)
    return EnvSource(name, name, dict(kwargs or {}), Source.of(env, EnvLoadError, hint=_OBJECT_HINT))


def _object_label(env: Any) -> str:
    if isinstance(env, gymnasium.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    if isinstance(env, GymSpec):
        return env.id
    return str(getattr(env, "__name__", type(env).__name__))


def copy_env(env: Env, name: str) -> Env:
    """Return a copy of an environment, so that no two workers or rows step the same one.

    Raises:
        EnvLoadError: If it cannot be pickled.
    """
    hint = f"let {name} be a class or a factory, which builds an environment for each worker and row"
    return _checked(Source.of(env, EnvLoadError, hint=hint).load(EnvLoadError), name)


def one_for_each(update: Any, n_rows: int) -> list[Any]:
    """Return one environment update a row: a list as it is, else the same for all; no two rows share an environment.

    Raises:
        EnvLoadError: If a list does not have `n_rows` entries, or an environment cannot be copied.
    """
    updates: Sequence[Any] = update if isinstance(update, list) else [update] * n_rows
    if len(updates) != n_rows:
        raise EnvLoadError(f"a list with one environment a row has {n_rows} entries, not {len(updates)}")
    given: set[int] = set()
    apart = []
    for one in updates:
        is_again = isinstance(one, gymnasium.Env) and id(one) in given
        given.add(id(one))
        apart.append(copy_env(one, "the environment") if is_again else one)
    return apart


# -- gymnasium's own --------------------------------------------------------------------------------------------------


def _registered_spec(env_id: str) -> GymSpec:
    module, colon, name = env_id.rpartition(":")
    if colon:
        # gymnasium's own message for a missing module does not say where it was looked for.
        import_module(module, EnvLoadError)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise EnvLoadError(f"there is no environment {env_id!r}", hint=_similar_ids(env_id)) from error


def _parse_spec(data: bytes, path: str) -> GymSpec:
    """Return the EnvSpec in a JSON text; a hand-written one may omit the wrappers."""
    try:
        return GymSpec.from_json(json.dumps({"additional_wrappers": []} | json.loads(data)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        hint = "write it with `env.spec.to_json()`"
        raise EnvLoadError(f"{path!r} holds no EnvSpec as JSON: {first_line(error)}", hint=hint) from error


def _make_env(spec: GymSpec, kwargs: Mapping[str, Any], name: str) -> Env:
    """Call `gymnasium.make` for an environment without wrappers; its spec stays the original, with the time limit."""
    options = dict(kwargs)
    limit = options.pop("max_episode_steps", spec.max_episode_steps)
    options.pop("disable_env_checker", None)
    if spec.additional_wrappers:
        # They were put around the TimeLimit, and one that repeats actions makes its steps others than ours.
        return _checked(call_builder(_make(spec, limit or -1), options, name), name)
    env = _checked(call_builder(_make(replace(spec, order_enforce=False), -1), options, name), name)
    made = env.unwrapped.spec
    own = made.kwargs if made is not None else options
    env.unwrapped.spec = replace(copy.deepcopy(spec), kwargs=own, max_episode_steps=None if limit == -1 else limit)
    return env


def _make(spec: GymSpec, max_episode_steps: int) -> Callable[..., Env]:
    def make(**options: Any) -> Env:
        return gymnasium.make(spec, max_episode_steps=max_episode_steps, disable_env_checker=True, **options)

    return make


# -- building, with hints ---------------------------------------------------------------------------------------------


def call_builder(factory: Callable[..., Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Return the result of a constructor or factory.

    Raises:
        EnvLoadError: If it raises; the hint says what to install or check.
    """
    try:
        return factory(**kwargs)
    except RolloutError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        lines = _PIP_LINE.findall(str(error))
        hint = f"run {' && '.join(lines)}" if lines else "install the package that it names"
        raise EnvLoadError(f"{name!r} needs a package that is missing: {error}", hint=hint) from error
    except (Exception, SystemExit) as error:
        raise _build_failure(error, kwargs, name) from error


def _build_failure(error: BaseException, kwargs: Mapping[str, Any], name: str) -> UserCodeError:
    hint = "the traceback below shows where"
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"install the package that provides {error.name!r}"
    elif isinstance(error, TypeError) and kwargs:
        hint = f"check that it takes these arguments: {', '.join(kwargs)}"
    return failure(EnvLoadError, f"{name!r} cannot be built", error, hint=hint)


def _similar_ids(name: str) -> str:
    by_lower = {env_id.lower(): env_id for env_id in gymnasium.registry}
    similar = difflib.get_close_matches(name.partition(":")[2].lower() or name.lower(), by_lower, n=3, cutoff=0.7)
    if similar:
        return f"did you mean {' or '.join(by_lower[env_id] for env_id in similar)}?"
    return "another package's environment is named with the module that registers it, as in ale_py:ALE/Pong-v5"


def _checked(built: Any, name: str) -> Env:
    if not isinstance(built, gymnasium.Env):
        raise _not_an_env(built, name)
    return built


def _not_an_env(found: Any, name: str) -> EnvLoadError:
    hint = _hint_for_foreign(found) or "name a gymnasium.Env, its class, a factory, or a gymnasium EnvSpec"
    return EnvLoadError(f"{name!r} is no gymnasium.Env, but an object of type {type(found).__name__}", hint=hint)


def _hint_for_foreign(found: Any) -> str:
    """Return the advice for a kind of environment that is not gymnasium's single one; empty for anything else."""
    if isinstance(found, VectorEnv):
        return "name the single environment, or use --vectorization native with a factory of vector environments"
    if any(base.__module__.split(".")[0] == "gym" for base in type(found).__mro__):
        return "it is of the old gym package: wrap it with shimmy (GymV21CompatibilityV0 or GymV26CompatibilityV0)"
    return ""
