"""Vector environments: building native ones and synchronous ones, and how they say that they reset rows.

`metadata["autoreset_mode"]` says how a row begins anew after its episode's end. DISABLED: it is reset from outside, by
a mask. NEXT_STEP: the environment resets it in the following step, which belongs to no episode. SAME_STEP: the
environment resets it in the last step itself, and gives the last observation and info beside the new ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rollout_cli.envs.source import EnvSource, call_builder
from rollout_cli.errors import EnvLoadError

Vector = VectorEnv[Any, Any, Any]

_MODE = "autoreset_mode"
_SYNC_HINT = "omit --vectorization native: --envs-per-worker then steps that many copies of the environment"
_VECTOR_HINT = "name a gymnasium.vector.VectorEnv class, or a factory that is called with num_envs"


def build_native(source: EnvSource, n_rows: int) -> Vector:
    """Build a vector environment of `n_rows` rows.

    A gymnasium id or EnvSpec must have a vector entry point; a class or factory is called with `num_envs`. Where it
    takes `autoreset_mode` and none is given, it is asked not to reset itself: only then can episodes be reproduced.

    Raises:
        EnvLoadError: If the source has no vector form, raises, or gives something else.
    """
    found, name = source.resolve(), source.label
    given = source.kwargs
    if isinstance(found, GymSpec):
        creator: Any = found.vector_entry_point
        if creator is None:
            what = "has no vector entry point, so it cannot be vectorized natively"
            raise EnvLoadError(f"{name!r} {what}", hint=_SYNC_HINT)
        creator = load_env_creator(creator) if isinstance(creator, str) else creator
        build = partial(gymnasium.make_vec, found, num_envs=n_rows, vectorization_mode="vector_entry_point")
        given = {**found.kwargs, **given}
    else:
        if isinstance(found, type) and issubclass(found, gymnasium.Env):
            raise EnvLoadError(f"{name!r} is a single environment, no vector environment", hint=_SYNC_HINT)
        if not callable(found):
            raise EnvLoadError(f"{name!r} is no vector environment, but a {type(found).__name__}", hint=_VECTOR_HINT)
        creator, build = found, partial(found, num_envs=n_rows)
    built = _built(build, source.kwargs, name, asks=_MODE not in given and _takes_mode(creator))
    if not isinstance(built, VectorEnv):
        raise EnvLoadError(f"{name!r} gave {type(built).__name__}, no vector environment", hint=_VECTOR_HINT)
    if int(built.num_envs) != n_rows:
        built.close()
        hint = "let the factory take num_envs"
        raise EnvLoadError(f"{name!r} has {built.num_envs} rows, but {n_rows} were asked for", hint=hint)
    return built


def _built(build: Callable[..., Any], kwargs: Mapping[str, Any], name: str, *, asks: bool) -> Any:
    if asks:
        try:
            return call_builder(build, {**kwargs, _MODE: AutoresetMode.DISABLED}, name)
        except EnvLoadError as error:
            # ALE up to 0.12 has the argument, and no such mode; the dataset says what comes of that.
            if not isinstance(error.__cause__, ValueError) or _MODE not in str(error.__cause__):
                raise
    return call_builder(build, kwargs, name)


def _takes_mode(creator: Any) -> bool:
    try:
        return _MODE in inspect.signature(creator).parameters
    except (TypeError, ValueError):  # Built in a language that has no signatures.
        return False


def sync_vector(envs: Sequence[gymnasium.Env[Any, Any]]) -> Vector:
    """Return gymnasium's vector environment of these rows, which are reset from outside.

    Raises:
        EnvLoadError: If their spaces differ.
    """
    spaces = [(env.observation_space, env.action_space) for env in envs]
    if any(other != spaces[0] for other in spaces):
        hint = "give each worker environments of one kind"
        raise EnvLoadError("the environments of one worker have different spaces", hint=hint)
    given = iter(envs)
    return SyncVectorEnv([lambda: next(given)] * len(envs), autoreset_mode=AutoresetMode.DISABLED)


def autoreset_mode(env: Vector) -> AutoresetMode:
    """Return how a vector environment resets rows.

    Raises:
        EnvLoadError: If it does not say.
    """
    given = env.metadata.get(_MODE)
    try:
        return AutoresetMode(given)
    except ValueError as error:
        raise EnvLoadError(
            f"{vector_name(env)} does not say how it resets rows: metadata[{_MODE!r}] is {given!r}",
            hint="set it to one of gymnasium.vector.AutoresetMode: DISABLED, NEXT_STEP or SAME_STEP",
        ) from error


def vector_name(env: Vector) -> str:
    """Return the id that a vector environment was made from, else its class."""
    return repr(env.spec.id) if isinstance(env.spec, GymSpec) else type(env).__name__
