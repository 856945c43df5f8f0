"""What is known of a native vector environment: its name, its time limit, and what a dataset's header records."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec

from rollout_cli.envs.describe import env_record, time_limit


def vector_name(env: Any) -> str:
    """Return a short text for messages: the id it was made from, else its class."""
    spec = getattr(env, "spec", None)
    return repr(spec.id) if isinstance(spec, GymSpec) else type(env).__name__


def vector_limit(env: Any) -> int | None:
    """Return the steps after which every row's episode ends, as far as the environment tells; else None."""
    told = [_of_spec(env), _of_rows(env), getattr(env.unwrapped, "max_episode_steps", None)]
    limits = [int(limit) for limit in told if isinstance(limit, int) and limit > 0]
    return min(limits, default=None)


def _of_spec(env: Any) -> int | None:
    """Return the limit that `make_vec` gave the constructor, or that a pool was configured with."""
    spec = getattr(env, "spec", None)
    if isinstance(spec, GymSpec):
        limit: int | None = spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
        return limit
    return getattr(getattr(spec, "config", None), "max_episode_steps", None)


def _of_rows(env: Any) -> int | None:
    rows = getattr(env.unwrapped, "envs", None)
    if not isinstance(rows, list) or not all(isinstance(row, gymnasium.Env) for row in rows):
        return None
    limits = [time_limit(row) for row in rows]
    return None if not limits or None in limits else max(limit for limit in limits if limit is not None)


def vector_record(env: Any) -> dict[str, Any]:
    """Return what `env_record` records of a single environment, and the way in which rows are reset."""
    mode = getattr(env, "metadata", {}).get("autoreset_mode")
    return {
        **env_record(env),
        "max_episode_length": vector_limit(env),
        "autoreset_mode": getattr(mode, "value", mode),
        "num_envs": int(env.num_envs),
    }
