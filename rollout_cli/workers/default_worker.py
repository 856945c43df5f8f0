"""DefaultWorker: one policy in one environment, one episode after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from rollout_cli.envs.describe import env_spec_of, time_limit_of
from rollout_cli.envs.updates import check_env, check_makes_new, updated_env
from rollout_cli.errors import EnvLoadError
from rollout_cli.seeding.seeds import SETUP, seed_globals
from rollout_cli.workers.rows.in_turn import RowsInTurn
from rollout_cli.workers.rows.together import RowsTogether
from rollout_cli.workers.rows.trials import TrialRows
from rollout_cli.workers.worker import Engine, Env, Setting, Worker


class DefaultWorker(Worker):
    """Runs one policy in one environment, one episode after another; see `Worker`."""

    _env_updates: Sequence[Any] = ()  # The last ones: with `fresh_env` they build each environment.

    def update_env(self, env_update: Any) -> None:
        if env_update is None:
            return
        check_env(
            env_update, gymnasium.Env, hint="VecWorker takes vector environments and lists", or_update=True
        )
        self._update_rows([env_update])

    def _update_rows(self, updates: Sequence[Any]) -> None:
        """Apply one update a row."""
        if self._fresh_env:
            for update in updates:
                check_makes_new(update)
        self._forget()
        seed_globals(self._seed, SETUP)
        before = self._envs or [None] * len(updates)
        envs = [updated_env(old, update, gymnasium.Env) for old, update in zip(before, updates, strict=True)]
        check_alike(envs)
        self._envs, self._env_updates = envs, updates
        self._take_spec(env_spec_of(envs[0], self._limit))
        self._make_ready()

    def _adapt(self) -> None:
        self._holder.adapt([self.env_spec], self._envs)

    def _new_engine(self, setting: Setting) -> Engine:
        kind: type[RowsInTurn | RowsTogether] = RowsTogether
        if self._n_envs == 1 or setting.policies[0].row_by_row:
            kind = RowsInTurn if type(self).predecessors is Worker.predecessors else TrialRows
        return kind(setting, self._envs, self._env_updates if self._fresh_env else None)


def check_alike(envs: Sequence[Env]) -> None:
    """Raise EnvLoadError for environments with different spaces or limits."""
    hint = "give each worker environments of one kind"
    first, *others = ((env.observation_space, env.action_space) for env in envs)
    if any(other != first for other in others):
        raise EnvLoadError("the environments of one worker have different spaces", hint=hint)
    if len({time_limit_of(env) for env in envs}) > 1:
        raise EnvLoadError("the environments of one worker have different limits", hint=hint)
