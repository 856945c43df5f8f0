"""NativeEngine, which steps all rows of a vector environment with one policy call and one `step` call."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from rollout_cli.envs.describe import AutoresetMode
from rollout_cli.episodes.spaces import Array, SpaceRows, space_leaves
from rollout_cli.errors import UnsupportedSpaceError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.workers.batches import flag_batch, infos_of_rows, leaf_batch, reward_batch
from rollout_cli.workers.checks import (
    RESET,
    RESET_RESULT,
    STEP,
    STEP_RESULT,
    BadValueError,
    shown,
)
from rollout_cli.workers.native.buffer import RolloutBuffer
from rollout_cli.workers.native.ring_engine import RingEngine
from rollout_cli.workers.native.rows import NativePolicy, NativeRows
from rollout_cli.workers.values import NO_NUMBER
from rollout_cli.workers.worker import Setting

_clock = time.perf_counter


class NativeEngine(RingEngine):
    """Runs one episode in each row of a vector environment, in any of the three autoreset modes.

    Args:
        setting: The worker, policy, queue and limit.
        rows: The vector environment.
    """

    def __init__(self, setting: Setting, rows: NativeRows) -> None:
        self._limit = setting.limit
        self._rows = rows
        self._spec = setting.worker.env_spec
        self._spaces = SpaceRows(self._spec.observation_space)
        actions = space_leaves(self._spec.action_space)
        if any(leaf.kind == "sequence" for leaf in (*self._spaces.leaves, *actions)):
            raise UnsupportedSpaceError(
                "vector environments with a Sequence space are not supported",
                code="space-unsupported",
                hint='omit {vectorization="native"} to step {envs_per_worker=…} copies of the environment',
            )
        buffer = RolloutBuffer(self._spaces.leaves, actions, rows.n_rows, setting.worker.worker_number)
        super().__init__(setting, buffer, rows.n_rows, rows.n_rows)
        # Rows that an environment with autoreset mode NEXT_STEP resets in the next step.
        self._resetting_rows = np.empty(0, np.int64)
        self._is_started = False
        self._leaves: list[Array] = []
        self._rewards = np.zeros(self._n_rows)  # Of the last step.
        self._policy = NativePolicy(setting, rows)
        self._policy.watch()
        if rows.resets_itself:
            self.not_reproducible = (
                f"the vector environment resets its rows itself (autoreset_mode {rows.mode.value}), "
                "without a seed per episode"
            )

    def use_policy(self, policy: AdaptedPolicy) -> None:
        self._policy.use(policy)
        self._is_started = False

    # -- starting episodes -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start waiting numbers in the free rows."""
        is_free = self._running.number == NO_NUMBER
        # Under autoreset an episode starts at its row's reset. If no row runs or is being reset, reset all.
        if not self._is_started or (
            self._rows.resets_itself and is_free.all() and not len(self._resetting_rows)
        ):
            self._begin_rows(np.arange(self._n_rows), are_all=True)
        elif not self._rows.resets_itself:
            rows = [row for row in np.flatnonzero(is_free).tolist() if self._queue.has(row)]
            if rows:
                self._begin_rows(np.array(rows))

    def _begin_rows(self, rows: Array, infos: Any = None, *, are_all: bool = False) -> None:
        """Start the next waiting number of each row in `rows` (k,); `are_all` is True if these are all rows.

        `infos` are the infos of the step in which the environment reset these rows. With None, reset them.
        """
        running = self._running
        numbers = np.array(self._queue.take(rows.tolist()), np.int64)
        running.number[rows] = numbers
        running.seed[rows] = -1
        running.start[rows] = running.unsaved[rows] = self._buffer.step
        running.started_at[rows] = _clock()
        self._worker.crash_box.note(running.number)
        runs = numbers != NO_NUMBER
        started_rows = rows[runs]
        if len(started_rows):
            self.where = "policy.seed"
            if are_all:
                self._policy.seed_all(numbers)
            elif not self._rows.resets_itself:  # Under autoreset the policy is seeded once.
                self._policy.seed(started_rows, numbers[runs])
        self.where = RESET
        if infos is None:
            infos = self._reset(rows)
        running.info[rows] = infos_of_rows(infos, rows.tolist(), self._n_rows)
        if len(started_rows):
            self.where = "policy.reset"
            self._policy.reset(started_rows if self._is_started else rows)
        if not self._is_started:
            self._is_started = True
            self._policy.watch()

    def _reset(self, rows: Array) -> Any:
        """Reset these rows of the environment and return the infos."""
        numbers = self._running.number
        # Copies: the environment may overwrite its arrays, as gymnasium's do with copy=False.
        old_leaves = self._leaves if self._rows.keeps_mask else list(map(np.copy, self._leaves))
        result, self._running.seed[rows] = self._rows.reset(rows, numbers, is_first=not self._is_started)
        self.where = RESET_RESULT
        observations, infos = result
        self._keep_observations(observations)
        self._rows.check_left_alone(rows, old_leaves, self._leaves)
        self._resetting_rows = np.empty(0, np.int64)
        return infos

    # -- a step ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        finished_rows = self._buffer.finished_rows
        self._step()
        return self._buffer.finished_rows > finished_rows

    def run(self, deadline: float, enough: float) -> None:
        if self._queue:
            self.begin()
        while self._queue or (self._running.number != NO_NUMBER).any():
            self._step()
            if _clock() >= deadline or self.finished_rows >= enough:
                break

    def _step(self) -> None:
        """Step every row; observations are recorded before the policy call, actions before `env.step`."""
        buffer = self._buffer
        n_rows = self._n_rows
        buffer.begin_step(self._leaves)
        self.where = self._acting
        # Rebuild the tree from the checked leaves: gymnasium batches strings as tuples.
        observations = self._spaces.tree(self._leaves)
        if self._policy.observes_rewards:
            has_step = (self._running.number != NO_NUMBER) & (buffer.step > self._running.start)
            self._policy.observe(has_step, self._rewards)
        action, actions, infos = self._policy.act(observations, self._running.number)
        buffer.put_actions(actions)
        buffer.put_infos("agent", infos)
        self.where = STEP
        result = self._rows.env.step(action)
        self.where = STEP_RESULT
        observations, rewards, terminated, truncated, infos = result
        self._rewards = reward_batch(rewards, n_rows)
        buffer.put_rewards(self._rewards)
        self._keep_observations(observations)
        terminated = flag_batch("terminated", terminated, n_rows)
        self._finish_step(terminated, flag_batch("truncated", truncated, n_rows), infos)

    def _keep_observations(self, observations: Any) -> None:
        """Keep the leaves of the observations for the next step."""
        self._leaves = self._checked_leaves("observations", observations)

    def _checked_leaves(self, name: str, observations: Any, n_samples: int = 0) -> list[Array]:
        """Return the leaves of observations, one array (n, *shape) per leaf; `name` is for errors.

        `observations` is a batch, or a list of `n_samples` single observations.
        """
        columns_of = self._spaces.columns
        try:
            columns = (
                zip(*map(columns_of, observations), strict=True) if n_samples else columns_of(observations)
            )
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(
                f"the {name} are {shown(observations)}, expected all parts of the observation space ({error!r})",
                "return all keys and entries of the space",
                code="value-structure",
            ) from error
        pairs = zip(self._spaces.leaves, columns, strict=True)
        return [leaf_batch(name, leaf, values, n_samples or self._n_rows) for leaf, values in pairs]

    def _finish_step(self, terminated: Array, truncated: Array, infos: Any) -> None:
        """Record a step's infos, finish the episodes that ended, and start new ones in the reset rows."""
        buffer = self._buffer
        mode = self._rows.mode
        leaves = self._leaves
        is_over = terminated | truncated
        numbers = self._running.number
        if mode is AutoresetMode.SAME_STEP and is_over.any():
            final, last_infos, infos = self._rows.final_infos(infos)
            buffer.put_infos("env", infos, ~is_over)
            for last_info in last_infos:
                buffer.put_infos("env", last_info, is_over)
            leaves = self._final_leaves(final, is_over)
        else:
            buffer.put_infos("env", infos)
        if buffer.end_step():
            self._make_room(buffer.most_block_steps)
        if mode is AutoresetMode.NEXT_STEP:
            is_over[self._resetting_rows] = False  # A step that resets a row has meaningless flags.
        elif mode is AutoresetMode.DISABLED and not math.isinf(self._limit):
            is_at_limit = buffer.step - self._running.start >= self._limit
            truncated = truncated | (is_at_limit & (numbers != NO_NUMBER))
            is_over |= truncated
        ended_rows = np.flatnonzero(is_over)
        episode_rows = ended_rows[numbers[ended_rows] != NO_NUMBER]
        if len(episode_rows):
            self._end(episode_rows, terminated, truncated, leaves)
        reset_rows = ended_rows
        if mode is AutoresetMode.NEXT_STEP:
            reset_rows = self._resetting_rows
            self._resetting_rows = ended_rows
        if len(reset_rows):
            self._begin_rows(reset_rows, None if mode is AutoresetMode.DISABLED else infos)
        elif len(ended_rows):
            self._worker.crash_box.note(numbers)

    def _final_leaves(self, final: Any, is_over: Array) -> list[Array]:
        """Return final observations, one array (n, *shape) per leaf; only rows in `is_over` are valid."""
        name = "final observations"
        if isinstance(final, np.ndarray) and final.dtype == object:
            samples = final[is_over].tolist()
            rows = np.cumsum(is_over) - 1
            return [leaf[rows] for leaf in self._checked_leaves(name, samples, len(samples))]
        return self._checked_leaves(name, final)

    def _end(self, rows: Array, terminated: Array, truncated: Array, leaves: list[Array]) -> None:
        """End the episodes in `rows` (k,); flags (n,) and final observations (n, *shape) cover all rows."""
        running = self._running
        running.stop[rows] = self._buffer.step
        running.ended_at[rows] = _clock()
        running.terminated = terminated
        running.truncated = truncated
        self._buffer.end(replace(running.select(rows), last=tuple([leaf[rows] for leaf in leaves])))
        running.number[rows] = NO_NUMBER

    def fail(self, error: BaseException) -> None:
        self._is_started = False
        super().fail(error)
