"""RowsTogether: n rows that take each step together, with one call of a batched policy."""

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


class RowsTogether(PythonRows):
    """A row takes its own next number in the step in which its episode ends; without one it rests.

    The environment of a row that rests is left alone, and what the policy does for it means nothing.
    """

    def __init__(self, setting: Setting, envs: list[Any], updates: Sequence[Any] | None) -> None:
        super().__init__(setting, envs, updates)
        self._observations = SpaceRows(self._spec.observation_space)
        self._actions = SpaceRows(self._spec.action_space)
        self._columns = list(zip(*(row.recorder.observations.columns for row in self._rows), strict=True))
        # Of a copy: nothing is drawn from the space itself.
        resting_space = copy.deepcopy(self._spec.observation_space)
        resting_space.seed(0)
        self._resting = resting_space.sample()
        for row in self._rows:
            self._rest(row)
        self._is_begun = False
        if not self._policy.row_wise:
            self.scope = "n_envs"

    def use_policy(self, policy: AdaptedPolicy) -> None:
        super().use_policy(policy)
        self._is_begun = False

    def begin(self) -> None:
        self._begin([row for row in self._rows if row.number == NO_NUMBER])

    def step(self) -> bool:
        before = len(self._ended)
        self.begin()
        self._step()
        return len(self._ended) > before

    def run(self, deadline: float, enough: float) -> None:
        self.begin()
        while any(row.number != NO_NUMBER for row in self._rows):
            self._step()
            if clock() >= deadline or self.finished_rows >= enough:
                break

    def _step(self) -> None:
        """Step every row: observations are recorded before the policy sees them, actions before the env."""
        self._row, self._where = None, self._acting
        observations = self._last_observations()
        if self._policy.takes_masks:
            actions, infos = self._policy.act_batch(observations, self._masks())
        else:
            actions, infos = self._policy.get_actions(observations)
        if infos or type(infos) is not dict:
            self._record_infos(infos)
        over = []
        for row, action in zip(self._rows, self._each(actions), strict=True):
            if row.number != NO_NUMBER:
                self._row = row
                if row.take_step(action) is None:
                    over.append(row)
        for row in over:
            self._row = row
            self._end(row)
            self._rest(row)
        if over:
            self._begin(over)

    def _last_observations(self) -> Any:
        """Return the observations to act on, a tree of arrays (n, *shape)."""
        count = len(self._rows)
        last = [
            columns[0].joined([column.cut(-1, None) for column in columns], count)
            for columns in self._columns
        ]
        return self._observations.tree(last)

    def _each(self, actions: Any) -> list[Any]:
        try:
            return self._actions.split(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(
                f"the actions lack {error!r}: {shown(actions)}", code="value-structure"
            ) from error

    def _record_infos(self, infos: Any) -> None:
        running = [row for row in self._rows if row.number != NO_NUMBER]
        each = infos_of_rows(infos, [row.index for row in running], len(self._rows))
        for row, info in zip(running, each or (), strict=False):
            if info:
                row.recorder.agent_infos[len(row.recorder.rewards)] = info

    def _masks(self) -> Array:
        """Return the rows' action masks (n, ...), all true for a row that rests: it is left alone."""
        masks = {row.index: masks_of(row.env) for row in self._rows if row.number != NO_NUMBER}
        resting = np.ones_like(next(iter(masks.values())))
        return np.stack([masks.get(row.index, resting) for row in self._rows])

    def _rest(self, row: Row) -> None:
        super()._rest(row)
        row.recorder.observations.record(self._resting)  # So that a batch has all rows.

    # -- beginning -------------------------------------------------------------------------------------------

    def _begin(self, free: Sequence[Row]) -> None:
        """Begin the next number of each of these rows that has one."""
        rows = []
        for row, number in zip(free, self._queue.take([row.index for row in free]), strict=True):
            if number != NO_NUMBER:
                self._row = row
                self._renew(row)
                self._note(row, number)
                rows.append(row)
        if not rows:
            return
        self._row, self._where = None, "policy.seed"
        self._seed(rows)
        for row in rows:
            self._row = row
            seed_globals(self._root, row.number)
            row.recorder.clear()
            self._reset(row, row.number)
        self._row, self._where = None, "policy.reset"
        if self._policy.resets:
            indices = [row.index for row in (rows if self._is_begun else self._rows)]
            self._policy.reset(row_mask(indices, len(self._rows)))
        if unwatched := [row for row in rows if not row.is_watched]:
            self._watch(unwatched)
        self._is_begun = True

    def _seed(self, rows: list[Row]) -> None:
        """Seed the episodes of these rows; the first time all rows, some of which may begin no episode."""
        numbers = {row.index: row.number for row in rows}
        if not self._is_begun:
            lowest = min(numbers.values())
            self._seeder.begin(lowest)
            numbers = {row.index: numbers.get(row.index, lowest + row.index) for row in self._rows}
        for index, number in numbers.items():
            self._rows[index].seeder.seed_found(number)
        if self._policy.seed_rows is not None:
            seeds = np.zeros(len(self._rows), np.uint64)
            seeds[list(numbers)] = [derive_seed(self._root, number, "policy") for number in numbers.values()]
            self._policy.seed_rows(row_mask(list(numbers), len(self._rows)), seeds)
