"""Env SPECs: sources of environments, from the string of `--env` or the objects of the Python API.

A SPEC is a gymnasium id (`CartPole-v1`, `module:Env-v0`), an environment of a JAX family
(`gymnax:CartPole-v1`), an EnvSpec as JSON (`file.json`), a pickle (`file.pkl`), or `module:attr`. An id after a
colon has a version or a slash, which distinguishes it from an attribute. A wrapper's SPEC is `module:attr`, or the
name of a class of `gymnasium.wrappers`.
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
from rollout_cli.envs.functional.families import family_factory, is_family
from rollout_cli.envs.functional.protocol import FunctionalEnv, is_functional
from rollout_cli.errors import ArgumentError, EnvLoadError, EnvTypeError, UsageError, misspelt
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
    """The source of a wrapper, small and picklable; each build calls `wrapper(env, **kwargs)`."""

    spec: str
    source: Source
    kwargs: Keywords

    def wrap(self, env: Env) -> Any:
        """Return the wrapped environment, or raise EnvLoadError."""
        wrapper = self.source.load(EnvLoadError)
        return call_builder(partial(wrapper, env), self.kwargs, self.spec, wrapper)

    def describe(self) -> Record:
        """Return the record in info.json: `spec`, `kwargs`, and the `sha256` of a user's module."""
        return {"spec": self.spec, "kwargs": dict(self.kwargs), "sha256": self.source.sha256}


@dataclass(frozen=True, slots=True)
class EnvSource:
    """The source of environments, small and picklable; each worker builds its environments from it.

    Attributes:
        label: A short name for messages.
        spec: The SPEC as given; for an object of the Python API its name.
        kwargs: Keyword arguments for the constructor, the factory, or `gymnasium.make`.
        source: The file (for JSON, the EnvSpec in it), module attribute or object; None for a gymnasium id.
        wrappers: The wrappers of each environment, innermost first; not for vector environments.
    """

    label: str
    spec: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None
    wrappers: tuple[WrapperSource, ...] = ()

    def build(self) -> Env | FunctionalEnv:
        """Build a new environment, independent of all others, or raise EnvLoadError.

        `gymnasium.make` is called without PassiveEnvChecker, OrderEnforcing and TimeLimit, which cost a tenth
        of a small environment's step. The worker counts the steps of the limit, which `time_limit_of` returns.
        """
        env = self._build()
        if isinstance(env, gymnasium.Env):
            return self._wrapped(env)
        if self.wrappers:
            raise UsageError(
                f"{self.wrappers[0].spec} wraps gymnasium environments, but {self.label} is a JAX environment",
                code="jax-option",
                hint="omit {wrapper}, or use a factory that returns a wrapped FunctionalEnv",
            )
        return env

    def _wrapped(self, env: Env) -> Env:
        for wrapper in self.wrappers:
            env = checked_env(wrapper.wrap(env), wrapper.spec)
        return env

    def _build(self) -> Env | FunctionalEnv:
        resolved = self.resolve()
        if isinstance(resolved, GymSpec):
            return _make_env(resolved, self.kwargs, self.label, is_wrapped=bool(self.wrappers))
        is_built = isinstance(resolved, gymnasium.Env) or is_functional(resolved)
        if not is_built:
            if callable(resolved):
                resolved = call_builder(resolved, self.kwargs, self.label)
            return resolved if is_functional(resolved) else checked_env(resolved, self.label)
        if self.kwargs:
            raise EnvLoadError(
                f"{self.label} is an environment instance, which does not take the arguments {[*self.kwargs]}",
                code="env-argument",
                hint="pass a class, a factory or a gymnasium EnvSpec, or omit the arguments",
            )
        if isinstance(resolved, gymnasium.Env) and (self.source is None or self.source.data is None):
            # An environment in a module would be the same object in every build of a process.
            return as_env_source(resolved).build()
        built: Env | FunctionalEnv = resolved
        return built

    def resolve(self) -> Any:
        """Return the gymnasium EnvSpec, class, factory or environment of the SPEC; raise EnvLoadError if unknown."""
        if self.source is not None:
            return self.source.load(EnvLoadError)
        return family_factory(self.spec) if is_family(self.spec) else _registered_spec(self.spec)

    def describe(self) -> Record:
        """Return the record in info.json: `spec`, `kwargs`, and `path` and `sha256` of a file or module."""
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
    """Return the source of an env SPEC. Files are read and modules are located, but nothing is built.

    Args:
        spec: The SPEC.
        kwargs: Keyword arguments for the constructor, the factory, or `gymnasium.make`.
        wrappers: The wrappers of each environment, innermost first.

    Raises:
        EnvLoadError: A file or module is missing, or a JSON file does not contain an EnvSpec.
    """
    options = dict(kwargs or {})
    if not spec:
        raise EnvLoadError(
            "the environment's SPEC is empty",
            code="env-unknown",
            hint="pass a gymnasium id, a file, or module:attr",
        )
    if is_file(spec, (".json",)):
        file = Source.read(spec, EnvLoadError)
        try:
            # A handwritten file may omit the wrappers.
            parsed = GymSpec.from_json(json.dumps({"additional_wrappers": []} | json.loads(file.data or b"")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise EnvLoadError(
                f"{spec!r} is not an EnvSpec as JSON: {first_line(error)}",
                code="env-spec-json",
                hint="write the file with `env.spec.to_json()`",
            ) from error
        return EnvSource(parsed.id, spec, options, replace(file, data=pickle.dumps(parsed)), wrappers)
    if is_file(spec):
        return EnvSource(Path(spec).name, spec, options, Source.read(spec, EnvLoadError), wrappers)
    is_users = is_module_attribute(spec) and not is_family(spec)
    source = Source.find(spec, EnvLoadError) if is_users else None
    return EnvSource(spec, spec, options, source, wrappers)


def wrapper_source(spec: str, kwargs: Keywords) -> WrapperSource:
    """Return the source of a wrapper's SPEC. Modules are located, but nothing is loaded.

    Raises:
        EnvLoadError: The module is missing, or gymnasium does not have the wrapper.
    """
    if is_module_attribute(spec):
        return WrapperSource(spec, Source.find(spec, EnvLoadError), kwargs)
    names = gymnasium.wrappers.__all__
    if spec not in names:
        raise EnvLoadError(
            f"unknown wrapper {spec!r}",
            code="wrapper-unknown",
            hint=misspelt(spec, names) or "use a class of gymnasium.wrappers, or module:attr",
        )
    return WrapperSource(spec, Source(f"gymnasium.wrappers:{spec}", None, None, None), kwargs)


def as_env_source(env: Any) -> EnvSource:
    """Return the source of an `env` argument of the Python API; an object is pickled immediately.

    `env` is a source, a SPEC, a gymnasium EnvSpec, an environment class or factory, or an environment.

    Raises:
        EnvTypeError: `env` has another type.
        EnvLoadError: `env` cannot be pickled.
    """
    if isinstance(env, EnvSource):
        return env
    if isinstance(env, str):
        return env_source(env)
    if not is_functional(env):
        refuse_agents(env, name_of(env))
    if not isinstance(env, GymSpec | gymnasium.Env) and not (callable(env) or is_functional(env)):
        raise EnvTypeError(
            f"an object of type {type(env).__name__} is not an environment",
            code="env-type",
            hint="pass a gymnasium id, an EnvSpec, an environment, its class, or a factory",
        )
    named = env
    if isinstance(env, gymnasium.Env):
        named = env.spec or type(env.unwrapped)
    name = named.id if isinstance(named, GymSpec) else name_of(named)
    source = Source.of(
        env,
        EnvLoadError,
        hint="pass a gymnasium id, or a factory that builds the environment in each worker",
    )
    return EnvSource(name, name, source=source)


def one_for_each(update: Any, n_rows: int) -> list[Any]:
    """Return one environment update per row: the entries of a list, or the same update for all rows.

    Two rows never share an environment.
    """
    updates = update if isinstance(update, list) else [update] * n_rows
    if len(updates) != n_rows:
        raise ArgumentError(
            f"the list of environments has {len(updates)} entries, expected {n_rows}, the value of n_envs",
            code="list-length",
            hint="pass a list with one environment per row, or one environment for all rows",
        )
    row_updates: list[Any] = []
    for env in updates:
        is_shared = isinstance(env, gymnasium.Env) and any(env is other for other in row_updates)
        row_updates.append(as_env_source(env).build() if is_shared else env)
    return row_updates


def _registered_spec(env_id: str) -> GymSpec:
    module, colon, name = env_id.rpartition(":")
    if colon:
        # gymnasium's message for a missing module does not name the folders.
        import_module(module, EnvLoadError)
    else:
        register_home(name)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise EnvLoadError(
            f"unknown environment {env_id!r}",
            code="env-unknown",
            hint=misspelt(name, gymnasium.registry)
            or did_you_mean(env_id)
            or "add the module that registers the id, as in ale_py:ALE/Pong-v5",
        ) from error


def _make_env(spec: GymSpec, kwargs: Keywords, name: str, *, is_wrapped: bool) -> Env:
    """Call `gymnasium.make` without its wrappers; the environment's spec keeps the time limit."""
    options = dict(kwargs)
    limit = options.pop("max_episode_steps", spec.max_episode_steps)
    if limit == -1:
        limit = None
    options.pop("disable_env_checker", None)
    make = partial(gymnasium.make, disable_env_checker=True)
    if spec.additional_wrappers or is_wrapped:
        # These wrappers are outside of TimeLimit; if one repeats actions, TimeLimit counts more steps.
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

    A gymnasium id or EnvSpec must have a vector entry point; a class or factory is called with `num_envs`. A
    parameter `seed` that the source does not set gets `seed`, in [0, 2**31). A parameter `autoreset_mode` that
    the source does not set gets DISABLED: episodes are reproducible only without autoreset.
    """
    resolved = source.resolve()
    name = source.label
    if source.wrappers:
        raise EnvLoadError(
            f"{source.wrappers[0].spec} wraps single environments, not vector environments",
            code="wrapper-vector",
            hint='omit {vectorization="native"}, or use a factory that wraps the vector environment',
        )
    _check_not_jax(name, is_jax=is_family(source.spec) or is_functional(resolved))
    creator = resolved
    if isinstance(resolved, GymSpec):
        creator = resolved.vector_entry_point
    if creator is None or (isinstance(creator, type) and issubclass(creator, gymnasium.Env)):
        raise EnvLoadError(
            f"{name!r} is a single environment without a vector entry point",
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
            built.unwrapped.spec.kwargs.pop("seed", None)  # The seed is specific to this worker.
    elif callable(resolved):
        built = _built_native(partial(resolved, num_envs=n_rows), creator, source, seed, fixed=source.kwargs)
    else:
        built = resolved
    _check_not_jax(name, is_jax=is_functional(built))
    if not isinstance(built, VectorEnv) or built is resolved:
        raise EnvLoadError(
            f"{name!r} returned a {type(built).__name__}, expected a new vector environment",
            code="env-not-vector",
            hint="pass a gymnasium.vector.VectorEnv class, or a factory with an argument num_envs",
        )
    if int(built.num_envs) != n_rows:
        built.close()
        raise EnvLoadError(
            f"{name!r} has {built.num_envs} rows, expected {n_rows}",
            code="env-row-count",
            hint="build as many rows as the argument num_envs",
        )
    return built


def _check_not_jax(name: str, *, is_jax: bool) -> None:
    if is_jax:
        raise UsageError(
            f"{name!r} is a JAX environment, which always steps its rows in one program",
            code="jax-option",
            hint='omit {vectorization="native"}: {envs_per_worker=…} sets the number of rows',
        )


def _built_native(
    build: Callable[..., Any], creator: Any, source: EnvSource, seed: int, *, fixed: Keywords
) -> Any:
    # `parameters_of` imports an entry point, which may fail.
    free = call_builder(partial(parameters_of, creator), {}, source.label).keys() - fixed.keys()
    kwargs = {**source.kwargs}
    if "seed" in free:
        kwargs["seed"] = seed
    if _MODE in free:
        modes: Any = getattr(gymnasium.vector, "AutoresetMode", AutoresetMode)
        try:
            return call_builder(build, {**kwargs, _MODE: modes.DISABLED}, source.label, creator)
        except EnvLoadError as error:
            # ALE up to 0.12 has the argument but not the mode DISABLED. The dataset records the actual mode.
            if not isinstance(error.__cause__, ValueError) or _MODE not in str(error.__cause__):
                raise
    return call_builder(build, kwargs, source.label, creator)
