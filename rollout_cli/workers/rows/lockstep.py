"""LockstepRows, which steps n rows in lockstep, with one call of a batched policy per step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_cli.episodes.spaces import Array, SpaceRows
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.seeds import derive_seed, seed_globals
from rollout_cli.workers.batches import infos_of_rows, row_mask
from rollout_cli.workers.checks import BadValueError, shown
from rollout_cli.workers.policy_holder import masks_of
from rollout_cli.workers.rows.engine import PythonRows, Row, clock
from rollout_cli.workers.values import NO_NUMBER
from rollout_cli.workers.worker import Setting


class LockstepRows(PythonRows):
    """Steps all rows in lockstep; a row starts its next number when its episode ends, or idles if none waits.

    The environment of an idle row is not stepped, and the policy's action for it is ignored.
    """

    def __init__(self, setting: Setting, envs: list[Any], updates: Sequence[Any] | None) -> None:
        super().__init__(setting, envs, updates)
        self._observations = SpaceRows(self._spec.observation_space)
        self._actions = SpaceRows(self._spec.action_space)
        columns = [row.recorder.observations.columns for row in self._rows]
        self._columns = list(zip(*columns, strict=True))
        # Sample from a copy, so that the generator of the space does not advance.
        space = copy.deepcopy(self._spec.observation_space)
        space.seed(0)
        self._idle_observation = space.sample()
        for row in self._rows:
            self._give_up(row)
        self._is_started = False
        if not self._policy.row_wise:
            self.scope = "n_envs"

    def use_policy(self, policy: AdaptedPolicy) -> None:
        super().use_policy(policy)
        self._is_started = False

    def begin(self) -> None:
        self._begin([row for row in self._rows if row.number == NO_NUMBER])

    def step(self) -> bool:
        n_ended = len(self._ended)
        self.begin()
        self._step()
        return len(self._ended) > n_ended

    def run(self, deadline: float, enough: float) -> None:
        self.begin()
        while any(row.number != NO_NUMBER for row in self._rows):
            self._step()
            if clock() >= deadline or self.finished_rows >= enough:
                break

    def _step(self) -> None:
        """Step every row; observations are recorded before the policy call, actions before `env.step`."""
        self._row = None
        self.where = self._acting
        observations = self._last_observations()
        if self._policy.observe_rewards is not None:
            self._policy.observe_rewards(*self._last_rewards())
        if self._policy.takes_masks:
            actions, infos = self._policy.act_batch(observations, self._masks())
        else:
            actions, infos = self._policy.get_actions(observations)
        if infos or type(infos) is not dict:
            self._record_infos(infos)
        ended = []
        for row, action in zip(self._rows, self._split(actions), strict=True):
            if row.number != NO_NUMBER:
                self._row = row
                if row.take_step(action) is None:
                    ended.append(row)
        for row in ended:
            self._row = row
            self._end(row)
            self._give_up(row)
        if ended:
            self._begin(ended)

    def _last_observations(self) -> Any:
        """Return the rows' last observations, a tree of arrays (n, *shape)."""
        leaves = []
        for columns in self._columns:
            pieces = [column.cut(-1, None) for column in columns]
            leaves.append(columns[0].joined(pieces, len(pieces)))
        return self._observations.tree(leaves)

    def _last_rewards(self) -> tuple[Array, Array]:
        """Return the rows whose episode has a step, bool (n,), and the rewards of their last steps, float64 (n,)."""
        mask = np.zeros(len(self._rows), bool)
        rewards = np.zeros(len(self._rows))
        for row in self._rows:
            if row.number != NO_NUMBER and row.recorder.rewards:
                mask[row.index] = True
                rewards[row.index] = row.recorder.rewards[-1]
        return mask, rewards

    def _split(self, actions: Any) -> list[Any]:
        try:
            return self._actions.split(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(
                f"the actions are {shown(actions)}, expected all parts of the action space ({error!r})",
                "return all keys and entries of the space",
                code="value-structure",
            ) from error

    def _record_infos(self, infos: Any) -> None:
        running = [row for row in self._rows if row.number != NO_NUMBER]
        row_infos = infos_of_rows(infos, [row.index for row in running], len(self._rows))
        for row, info in zip(running, row_infos or (), strict=False):
            if info:
                row.recorder.agent_infos[len(row.recorder.rewards)] = info

    def _masks(self) -> Array:
        """Return the rows' action masks (n, ...), all true for idle rows, whose actions are ignored."""
        masks = {row.index: masks_of(row.env) for row in self._rows if row.number != NO_NUMBER}
        idle = np.ones_like(next(iter(masks.values())))
        return np.stack([masks.get(row.index, idle) for row in self._rows])

    def _give_up(self, row: Row) -> None:
        super()._give_up(row)
        row.recorder.observations.record(self._idle_observation)  # A batch needs every row.

    # -- starting episodes -----------------------------------------------------------------------------------

    def _begin(self, free_rows: Sequence[Row]) -> None:
        """Start the next waiting number, if any, of each of these rows."""
        rows = []
        numbers = self._queue.take([row.index for row in free_rows])
        for row, number in zip(free_rows, numbers, strict=True):
            if number != NO_NUMBER:
                self._row = row
                self._rebuild(row)
                self._set_number(row, number)
                rows.append(row)
        if not rows:
            return
        self._row = None
        self.where = "policy.seed"
        self._seed(rows)
        for row in rows:
            self._row = row
            seed_globals(self._root, row.number)
            row.recorder.clear()
            self._reset(row, row.number)
        self._row = None
        self.where = "policy.reset"
        if self._policy.resets:
            reset_rows = rows if self._is_started else self._rows
            self._policy.reset(row_mask([row.index for row in reset_rows], len(self._rows)))
        if self._policy.observe_task is not None:
            self.where = "policy.observe_task"
            for row in rows:
                self._policy.observe_task(row.index, row.task)
        if unwatched := [row for row in rows if not row.is_watched]:
            self._watch(unwatched)
        self._is_started = True

    def _seed(self, rows: list[Row]) -> None:
        """Seed the episodes of these rows; the first time, seed all rows, including idle rows."""
        numbers = {row.index: row.number for row in rows}
        if not self._is_started:
            lowest = min(numbers.values())
            self._seeder.begin(lowest)
            numbers = {row.index: numbers.get(row.index, lowest + row.index) for row in self._rows}
        for index, number in numbers.items():
            self._rows[index].seeder.seed_found(number)
        if self._policy.seed_rows is not None:
            seeds = np.zeros(len(self._rows), np.uint64)
            seeds[list(numbers)] = [derive_seed(self._root, number, "policy") for number in numbers.values()]
            self._policy.seed_rows(row_mask(list(numbers), len(self._rows)), seeds)
