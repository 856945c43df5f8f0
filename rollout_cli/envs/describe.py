"""What is known of a built environment: its spaces, its limit, and what a dataset's header records of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import VectorWrapper

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.spaces import space_leaves

Env = gymnasium.Env[Any, Any]


def describe_env(env: Env) -> EnvSpec:
    """Return the spaces and the time limit of `env`.

    Raises:
        UnsupportedSpaceError: If a space has no fixed set of columns.
    """
    check_spaces(env)
    return EnvSpec(env.observation_space, env.action_space, time_limit(env))


def check_spaces(env: Env) -> None:
    """Check that both spaces can be recorded.

    Raises:
        UnsupportedSpaceError: If one has no fixed set of columns.
    """
    space_leaves(env.observation_space)
    space_leaves(env.action_space)


def has_time_limit(env: Env) -> bool:
    """Return whether an episode of `env` is known to end after some number of steps."""
    return time_limit(env) is not None


def time_limit(env: Env) -> int | None:
    """Return the smallest limit of the TimeLimit wrappers; a limit in the spec that no wrapper counts has no effect."""
    limiters = (layer for layer in _chain(env) if isinstance(layer, gymnasium.wrappers.TimeLimit))
    # TimeLimit tells its limit by its spec alone, which an environment that was not made from one does not have.
    return min((limiter._max_episode_steps for limiter in limiters), default=None)  # noqa: SLF001


def _chain(env: Any) -> Iterator[Any]:
    layer: Any = env
    yield layer
    while isinstance(layer, gymnasium.Wrapper | VectorWrapper):
        layer = layer.env
        yield layer


def env_record(env: Any) -> dict[str, Any]:
    """Return what a dataset records of a built environment.

    `id` and `spec_json` are gymnasium's; both are None for an environment that was not made from a spec, and
    `spec_json` for a spec that holds what JSON cannot. `wrappers` are class names, the outermost first.
    """
    spec = env.spec if isinstance(env.spec, GymSpec) else None  # An EnvPool's spec is of another kind.
    layers = list(_chain(env))
    return {
        "id": spec.id if spec is not None else None,
        "spec_json": _spec_json(spec) if spec is not None else None,
        "class": _class_name(layers[-1]),
        "wrappers": [_class_name(layer) for layer in layers[:-1]],
        "max_episode_length": time_limit(env),
    }


def _spec_json(spec: gymnasium.envs.registration.EnvSpec) -> str | None:
    try:
        return spec.to_json()
    except (TypeError, ValueError):
        return None


def _class_name(env: Any) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"
