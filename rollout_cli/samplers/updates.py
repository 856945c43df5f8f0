"""UpdateHistory: what a worker that starts late must be sent to be where the others are."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_cli.envs import EnvUpdate
from rollout_cli.samplers.messages import Pickled

Update = tuple[Pickled | None, Pickled | None]


class UpdateHistory:
    """The updates of one worker, without those that a later one makes void.

    Args:
        agent: The first policy.
        env: The first environment.
    """

    def __init__(self, agent: Pickled | None, env: Pickled | None) -> None:
        self._agents = [agent]
        self._envs = [env]

    def add(self, update: Update, given: tuple[Any, Any]) -> None:
        """Note the (agent, env) updates of one call.

        Args:
            update: The updates, pickled; None is none.
            given: The updates themselves, which tell whether they build on those before.
        """
        agent, env = update
        if agent is not None:
            # Parameters replace earlier parameters; a whole policy replaces everything.
            parameters = isinstance(given[0], dict | tuple | np.ndarray)
            self._agents = [self._agents[0], agent] if parameters else [agent]
        if env is not None:
            rows = given[1] if isinstance(given[1], list) else [given[1]]
            builds_on = any(isinstance(row, EnvUpdate) and not row.replaces_env for row in rows)
            self._envs = [*self._envs, env] if builds_on else [env]

    @property
    def updates(self) -> list[Update]:
        """Return all updates to apply to a new worker, in order: those of the environment first."""
        first = (self._agents[0], self._envs[0])
        envs: list[Update] = [(None, env) for env in self._envs[1:]]
        agents: list[Update] = [(agent, None) for agent in self._agents[1:]]
        return [first, *envs, *agents]
