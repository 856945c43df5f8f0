"""Building native vector environments: one object that steps many copies of an environment at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from rollout_cli.envs.building import called_builder
from rollout_cli.envs.sources import EnvSource
from rollout_cli.errors import EnvLoadError

Vector = Any
"""A `gymnasium.vector.VectorEnv`, or what behaves like one (EnvPool's pools are none in every version)."""

_MODE = "autoreset_mode"
_SYNC_HINT = "leave --vectorization native away: --envs-per-worker then steps that many copies of the environment"


def build_vector_env(source: EnvSource, n_envs: int, *, seed: int) -> Vector:
    """Build a vector environment of `n_envs` rows from what a source names.

    A gymnasium id or EnvSpec must have a vector entry point; a class or factory is called with `num_envs`, and with
    `seed` where it takes one (EnvPool is seeded when it is built). Where it has an argument `autoreset_mode` that is
    not given, it is asked not to reset itself, since episodes can then be reproduced.

    Args:
        source: Where the environment comes from.
        n_envs: How many rows.
        seed: 31 bits.

    Raises:
        EnvLoadError: If it has no vector form, raises, or gives something else.
    """
    found, name = source.named(), source.label
    if isinstance(found, GymSpec):
        return _checked(_make_vec(found, source.kwargs, n_envs, name), n_envs, name)
    if not callable(found) or isinstance(found, gymnasium.Env):
        raise EnvLoadError(f"{name!r} is no vector environment, but a {type(found).__name__}", hint=_what_hint())
    if isinstance(found, type) and issubclass(found, gymnasium.Env) and not hasattr(found, "num_envs"):
        raise EnvLoadError(f"{name!r} is a single environment, no vector environment", hint=_SYNC_HINT)
    given = dict(source.kwargs)
    if _takes(found, "seed"):
        given = {"seed": seed, **given}
    return _checked(_built(found, {"num_envs": n_envs, **given}, given, found, name), n_envs, name)


def _what_hint() -> str:
    return "name a gymnasium.vector.VectorEnv class, or a factory that is called with num_envs"


def _make_vec(spec: GymSpec, kwargs: Mapping[str, Any], n_envs: int, name: str) -> Vector:
    if spec.vector_entry_point is None:
        raise EnvLoadError(f"{name!r} has no vector entry point, so it cannot be vectorized natively", hint=_SYNC_HINT)
    entry = spec.vector_entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry

    def make(**arguments: Any) -> Vector:
        return gymnasium.make_vec(spec, num_envs=n_envs, vectorization_mode="vector_entry_point", **arguments)

    return _built(make, kwargs, {**spec.kwargs, **kwargs}, creator, name)


def _built(
    build: Callable[..., Vector], kwargs: Mapping[str, Any], given: Mapping[str, Any], creator: Any, name: str
) -> Vector:
    """Build, where it can be asked for such a thing without resets by the environment itself.

    Args:
        build: Is called.
        kwargs: What it gets.
        given: The arguments that reach `creator` anyway.
        creator: Whose signature tells what can be asked for.
        name: What to call it in messages.
    """
    if _MODE not in given and _takes(creator, _MODE):
        try:
            return called_builder(build, {**kwargs, _MODE: AutoresetMode.DISABLED}, name)
        except EnvLoadError:
            # It has other modes only (ALE up to 0.12), and resets itself; the dataset says what comes of that.
            return called_builder(build, kwargs, name)
    return called_builder(build, kwargs, name)


def _takes(creator: Any, argument: str) -> bool:
    try:
        return argument in inspect.signature(creator).parameters
    except (TypeError, ValueError):  # Built in a language that tells no signature.
        return False


def _checked(built: Any, n_envs: int, name: str) -> Vector:
    lacking = [verb for verb in ("reset", "step", "close", "num_envs") if not hasattr(built, verb)]
    if lacking:
        what = f"a {type(built).__name__} without {', '.join(lacking)}"
        raise EnvLoadError(f"{name!r} is no vector environment, but {what}", hint=_what_hint())
    if int(built.num_envs) != n_envs:
        built.close()
        raise EnvLoadError(
            f"{name!r} has {built.num_envs} rows, but {n_envs} were asked for", hint="let the factory take num_envs"
        )
    return built
