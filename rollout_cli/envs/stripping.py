"""Taking off wrappers whose work is done: the time limit, which a worker counts itself, and checks that were passed.

Together they cost a tenth of a step of a small environment. Only environments that `gymnasium.make` built are stripped,
for there nobody else holds the wrappers, and only from the outside in, up to the first wrapper of another kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rollout_cli.policies.random import RandomPolicy

Env = gymnasium.Env[Any, Any]


class Stripped(NamedTuple):
    """What is stepped in place of an environment.

    Attributes:
        env: The environment below the wrappers that were taken off.
        limit: Steps after which an episode must be truncated; None for no limit.
    """

    env: Env
    limit: int | None


def strip_env(env: Env) -> Stripped:
    """Take the time limit and the checks off `env`, after one reset and step that they watched.

    Order is enforced by the worker, which resets before it steps. The episode is the same one, flag for flag: at the
    limit the step is truncated, and terminated too where it was.
    """
    inner: Env = env
    limit: int | None = None
    if type(env) in _WATCHERS:
        env.reset(seed=0)
        # Not from the space itself, for one that has drawn would be seeded before every episode.
        env.step(RandomPolicy(env.action_space).get_action(None)[0])
    while type(inner) in _WATCHERS:
        assert isinstance(inner, gymnasium.Wrapper)
        if isinstance(inner, TimeLimit):
            # Wrappers count alike, so the lowest limit of several is the one that acts.
            steps: int = inner._max_episode_steps  # noqa: SLF001  TimeLimit tells its limit by its spec alone.
            limit = steps if limit is None else min(limit, steps)
        inner = inner.env
    return Stripped(inner, limit)


_WATCHERS: set[type] = {TimeLimit, OrderEnforcing, PassiveEnvChecker}
