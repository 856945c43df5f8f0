"""Facts about a built environment: its spaces, its time limit, and the record that a dataset keeps of it."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import VectorEnv, VectorWrapper

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import space_leaves

Env = gymnasium.Env[Any, Any]


def env_spec_of(env: Any, max_episode_length: float | None = None) -> EnvSpec:
    """Return the spaces of one row of `env`, and the steps after which its episodes are truncated.

    Args:
        env: An environment or a vector environment.
        max_episode_length: The run's own limit; None or infinity for none. The lower one of both limits counts.

    Raises:
        UnsupportedSpaceError: If a space has no fixed set of columns.
    """
    is_vector = isinstance(env, VectorEnv)
    observation_space = env.single_observation_space if is_vector else env.observation_space
    action_space = env.single_action_space if is_vector else env.action_space
    space_leaves(observation_space)
    space_leaves(action_space)
    limits = [time_limit_of(env), max_episode_length]
    known = [int(limit) for limit in limits if limit is not None and limit != float("inf")]
    return EnvSpec(observation_space, action_space, min(known, default=None))


def time_limit_of(env: Any) -> int | None:
    """Return the steps after which the environment's own episodes are truncated; None where no limit is known.

    For an environment it is the lowest of the TimeLimit wrappers and of the limit in its own spec: an environment that
    an EnvSource built has no wrapper, and its worker counts. For a vector environment it is the limit that
    `gymnasium.make_vec` gave its constructor, or its attribute `max_episode_steps`.
    """
    if isinstance(env, VectorEnv):
        return _vector_limit(env)
    limits: list[int | None] = [
        layer._max_episode_steps  # noqa: SLF001  TimeLimit has no public name for its limit.
        for layer in _layers(env)
        if isinstance(layer, gymnasium.wrappers.TimeLimit)
    ]
    own = env.unwrapped.spec
    limits.append(own.max_episode_steps if isinstance(own, GymSpec) else None)
    return min((int(limit) for limit in limits if limit is not None), default=None)


def _vector_limit(env: Any) -> int | None:
    spec = env.spec
    limits = [
        spec.kwargs.get("max_episode_steps", spec.max_episode_steps) if isinstance(spec, GymSpec) else None,
        getattr(env.unwrapped, "max_episode_steps", None),
    ]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def describe_env(env: Any) -> dict[str, Any]:
    """Return the record that a dataset keeps of a built environment.

    `id` and `spec_json` are gymnasium's; both are None for an environment that was not made from a spec, and
    `spec_json` is None for a spec that holds objects that JSON does not have. `wrappers` are class names, the outermost
    first. A vector environment also has `num_envs` and `autoreset_mode`.
    """
    spec = env.spec if isinstance(env.spec, GymSpec) else None
    *wrappers, innermost = _layers(env)
    record: dict[str, Any] = {
        "id": spec.id if spec is not None else None,
        "spec_json": _spec_json(spec) if spec is not None else None,
        "class": _class_name(innermost),
        "wrappers": [_class_name(layer) for layer in wrappers],
        "max_episode_length": time_limit_of(env),
    }
    if isinstance(env, VectorEnv):
        mode = env.metadata.get("autoreset_mode")
        record |= {"num_envs": int(env.num_envs), "autoreset_mode": getattr(mode, "value", mode)}
    return record


def _layers(env: Any) -> Iterator[Any]:
    layer = env
    yield layer
    while isinstance(layer, gymnasium.Wrapper | VectorWrapper):
        layer = layer.env
        yield layer


def _spec_json(spec: GymSpec) -> str | None:
    try:
        return spec.to_json()
    except (TypeError, ValueError):
        return None


def _class_name(env: Any) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"


_LIBRARIES = {
    "torch": "torch",
    "stable_baselines3": "stable-baselines3",
    "mujoco": "mujoco",
    "ale_py": "ale-py",
    "Box2D": "box2d",
}
"""Modules whose version decides episodes, and the names of their distributions."""


def loaded_versions(env: Any) -> dict[str, str]:
    """Return the versions of the packages that this process has loaded and that decide its episodes.

    These are known libraries of environments and networks, and the packages that the layers of `env` come from.
    """
    modules = {type(layer).__module__.partition(".")[0] for layer in _layers(env)}
    names = {module: _LIBRARIES.get(module, module) for module in {*modules, *(_LIBRARIES.keys() & sys.modules.keys())}}
    found = {name: _version(module, name) for module, name in sorted(names.items())}
    return {name: version for name, version in found.items() if version is not None}


def _version(module: str, distribution: str) -> str | None:
    """Return the version of a package; None of one that has none, such as a module of the working folder."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = getattr(sys.modules.get(module), "__version__", None)
        return version if isinstance(version, str) else None
