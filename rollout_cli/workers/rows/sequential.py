"""SequentialRows, which runs one episode at a time, for policies that act on one observation.

TrialRows does the same for episodes that depend on earlier ones, such as the episodes of a trial in RL2 and
PEARL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from rollout_cli.errors import UserCodeError
from rollout_cli.policies.policy import ActionAndInfo
from rollout_cli.seeding.seeds import derive_seed
from rollout_cli.sources.loading import reporting
from rollout_cli.workers.checks import frozen_copy
from rollout_cli.workers.policy_holder import masks_of
from rollout_cli.workers.rows.engine import PythonRows, Row, clock
from rollout_cli.workers.values import NO_NUMBER


class SequentialRows(PythonRows):
    """Runs one episode at a time, the lowest number first, each in its own row."""

    one_at_a_time = True

    def begin(self) -> None:
        self._begin_next()

    def step(self) -> bool:
        return self._run(-math.inf, math.inf).number == NO_NUMBER

    def run(self, deadline: float, enough: float) -> None:
        self._run(deadline, enough)

    def _run(self, deadline: float, enough: float) -> Row:
        """Step until the deadline, or until `enough` rows are finished, and return the row that ran last.

        Observations are recorded before the policy call, and actions before `env.step`.
        """
        act = self._act_masked if self._policy.takes_masks else self._policy.get_action
        if self._policy.observe_reward is not None:
            act = partial(self._act_after_reward, act, self._policy.observe_reward)
        row = self._row
        while True:
            if row is None or row.number == NO_NUMBER:
                row = self._begin_next()
            take_step = row.take_step
            observation = row.observation
            rewards = row.recorder.rewards
            infos = row.recorder.agent_infos
            while True:
                action, info = act(observation)
                if info or type(info) is not dict:
                    infos[len(rewards)] = frozen_copy(info)
                observation = take_step(action)
                if observation is None:
                    self._end(row)
                    break
                if clock() >= deadline:
                    row.observation = observation
                    return row
            if not self._queue or clock() >= deadline or self.finished_rows >= enough:
                return row

    def _act_after_reward(
        self, act: Callable[[Any], ActionAndInfo], observe: Callable[[float], Any], observation: Any
    ) -> ActionAndInfo:
        """Act, and before that give the policy the reward of the episode's last step."""
        assert self._row is not None
        if rewards := self._row.recorder.rewards:
            observe(float(rewards[-1]))
        return act(observation)

    def _act_masked(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        assert self._row is not None
        return self._policy.act(observation, masks_of(self._row.env))

    def _begin_next(self) -> Row:
        index, number = self._queue.take_lowest()
        row = self._row = self._rows[index]
        self._begin(row, number, number)
        return row

    def _begin(self, row: Row, number: int, seeded_as: int) -> None:
        """Start an episode in a row with the seeds of `seeded_as`, on behalf of episode `number`."""
        self._rebuild(row)
        self._set_number(row, number)
        self._crash_box.step()
        self._seeder.begin(seeded_as)
        if row.seeder is not self._seeder:
            row.seeder.seed_found(seeded_as)
        row.where = "policy.seed"
        if self._policy.seed is not None:
            self._policy.seed(derive_seed(self._root, seeded_as, "policy"))
        self._reset(row, seeded_as)
        row.where = "policy.reset"
        self._worker.reset_agent(self._worker.agent, seeded_as)
        if self._policy.observe_task is not None:
            row.where = "policy.observe_task"
            self._policy.observe_task(0, row.task)
        row.where = row.acting
        if not row.is_watched:
            self._watch([row])


class TrialRows(SequentialRows):
    """Runs the predecessors of an episode before it, unrecorded, unless it has just run them."""

    _last_run = NO_NUMBER  # The episode that ended last, or NO_NUMBER if another episode started since.
    _is_recorded = True

    def _begin(self, row: Row, number: int, seeded_as: int) -> None:
        with reporting(UserCodeError, f"{type(self._worker).__name__}.predecessors raised"):
            # A numpy array with one element may be false, and numpy integers overflow in seed arithmetic.
            predecessors = [int(earlier) for earlier in self._worker.predecessors(number)]
        if predecessors and predecessors[-1] != self._last_run:
            self._is_recorded = False
            try:
                for earlier in predecessors:
                    # A failure of a predecessor is reported as a failure of `number`.
                    super()._begin(row, number, earlier)
                    while not self.step():
                        self._crash_box.step()
            finally:
                self._is_recorded = True
        self._last_run = NO_NUMBER
        super()._begin(row, number, seeded_as)

    def _end(self, row: Row) -> None:
        if self._is_recorded:
            self._last_run = row.number
            super()._end(row)
        else:
            self._give_up(row)

    def forget(self, above: int) -> None:
        if above == NO_NUMBER or max(self.running_numbers, default=NO_NUMBER) > above:
            self._last_run = NO_NUMBER
        super().forget(above)
