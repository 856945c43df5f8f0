"""FunctionalEngine, which runs the rows of a JAX environment and its policy in blocks of steps, one call each."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rollout_cli.envs.functional.protocol import FunctionalEnv
from rollout_cli.envs.functional.rows import no_rows
from rollout_cli.episodes.spaces import Array, SpaceRows
from rollout_cli.policies.functional import FunctionalPolicy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.seeds import env_seeds
from rollout_cli.workers.checks import (
    RESET,
    STEP,
    BadValueError,
    bad_action,
)
from rollout_cli.workers.functional.program import LANES, Block, JaxAct, Program
from rollout_cli.workers.functional.types import check_action, check_step, reset_types
from rollout_cli.workers.native.buffer import RolloutBuffer
from rollout_cli.workers.native.ring_engine import RingEngine
from rollout_cli.workers.values import NO_NUMBER
from rollout_cli.workers.worker import Setting

_clock = time.perf_counter

_BLOCK_STEPS = 1 << 17
_MOST_STEPS = 512
"""The maximum number of steps of a block, of all rows and of each row."""


class FunctionalEngine(RingEngine):
    """Runs one episode in each row; rows that end start the next numbers inside the compiled program.

    Args:
        setting: The worker, policy, queue and limit.
        env: The environment.
        act: The policy's function.
        n_rows: Number of rows.
    """

    def __init__(self, setting: Setting, env: FunctionalEnv, act: JaxAct, n_rows: int) -> None:
        self._root = setting.root
        self._policy = setting.policy
        self._act = act
        self._width = -(-n_rows // LANES) * LANES
        spec = setting.worker.env_spec
        self._limit = spec.max_episode_length
        self._env = env
        self._observations = SpaceRows(spec.observation_space)
        self._actions = SpaceRows(spec.action_space)
        buffer = RolloutBuffer(
            self._observations.leaves, self._actions.leaves, self._width, setting.worker.worker_number
        )
        super().__init__(setting, buffer, n_rows, self._width)
        self._rule = None if setting.rule == "warn" else setting.rule
        self._n_steps = min(buffer.most_block_steps, _MOST_STEPS, max(1, _BLOCK_STEPS // self._width))
        self._program = self._new_program()
        self._rows: Any = None  # Known after the first start.
        self._n_started = self._n_steps * self._width // 16  # Episodes that the last block started.
        self._params_types: Any = None  # Those for which the program is compiled.

    def _new_program(self) -> Program:
        return Program(
            self._env,
            self._act,
            self._actions,
            limit=self._limit,
            rule=self._rule,
            n_steps=self._n_steps,
        )

    def use_policy(self, policy: AdaptedPolicy) -> None:
        if policy is not self._policy and isinstance(policy, FunctionalPolicy):
            self._act = policy.function
            self._program = self._new_program()
            self._params_types = None
        self._policy = policy

    # -- running ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start waiting numbers in the free rows."""
        free_rows = np.flatnonzero(self._running.number[: self._n_rows] == NO_NUMBER)
        numbers = np.array(self._queue.next_numbers(len(free_rows)), np.int64)
        if not len(numbers):
            return
        self._queue.remove_next(len(numbers))
        rows = free_rows[: len(numbers)]
        running = self._running
        running.number[rows] = numbers
        running.seed[rows] = env_seeds(self._root, numbers)
        running.start[rows] = running.unsaved[rows] = self._buffer.step
        self._worker.crash_box.note(running.number[: self._n_rows])
        self.prepare()
        self.where = RESET
        running.started_at[rows] = _clock()
        mask = np.zeros(self._width, bool)
        mask[rows] = True
        if self._rows is None:
            self._rows = no_rows(self._env, self._width)
            mask[:] = True  # Rows without an episode need a state to step, too.
        self._rows = self._program.start(self._rows, mask, np.maximum(running.seed, 0).astype(np.uint32))

    def step(self) -> bool:
        finished_rows = self.finished_rows
        self.begin()  # Rows may rest, if more episodes ended than the last block had numbers for.
        self._run_block()
        return self.finished_rows > finished_rows

    def run(self, deadline: float, enough: float) -> None:
        while self._queue or (self._running.number != NO_NUMBER).any():
            self.begin()
            self._run_block()
            if _clock() >= deadline or self.finished_rows >= enough:
                break

    def _run_block(self) -> None:
        """Run a block of steps, record it, and end and start its episodes."""
        started_at = _clock()
        # In each step each row can end an episode and start the next number.
        seeds = np.zeros(self._n_steps * self._width, np.uint32)
        # Few rows end in every step: pass seeds for twice the starts of the last block.
        n_seeds = min(len(seeds), self._width + 2 * self._n_started)
        numbers = np.array(self._queue.next_numbers(n_seeds), np.int64)
        seeds[: len(numbers)] = env_seeds(self._root, numbers)
        is_running = self._running.number != NO_NUMBER
        self.where = self._acting
        params = self._policy.get_param_values()
        self.where = STEP
        rows, block = self._program.run(params, self._rows, is_running, seeds, np.int32(len(numbers)))
        block = jax.tree.map(np.asarray, block)
        self._rows = rows
        n_valid = self._n_steps
        if not block.is_valid.all():
            n_valid = int(np.flatnonzero(~block.is_valid.all(axis=1))[0])
        self._record(block)
        self._n_started = self._end_and_start(block, n_valid, numbers, seeds, started_at)
        self._queue.remove_next(self._n_started)
        self._worker.crash_box.note(self._running.number[: self._n_rows])
        self._make_room(self._n_steps)
        if n_valid < self._n_steps:
            raise self._invalid_action(block, n_valid)

    def _record(self, block: Block) -> None:
        leaves = (
            *self._observations.columns(block.observations),
            *self._actions.columns(block.steps.action),
            block.steps.reward,
        )
        self._buffer.put_block(
            leaves, {"env": block.steps.env_infos, "agent": block.steps.agent_infos}, self._n_steps
        )

    def _end_and_start(
        self, block: Block, n_valid: int, numbers: Array, seeds: Array, started_at: float
    ) -> int:
        """End the episodes of the block's first `n_valid` steps; return how many of the `numbers` started.

        The j-th end, in the order of steps and then of rows, starts the j-th number, with its seed, in its row.
        """
        running = self._running
        first_step = self._buffer.step - self._n_steps
        step_seconds = (_clock() - started_at) / self._n_steps
        steps, rows = np.nonzero(block.is_over[:n_valid])
        if not len(steps):
            return 0
        n_started = min(len(steps), len(numbers))
        started = np.full((2, len(steps)), NO_NUMBER)  # The numbers and their seeds.
        started[:, :n_started] = numbers[:n_started], seeds[:n_started]
        # Of each end, the end before it in its row, or -1: there the episode started that ends here.
        by_row = np.argsort(rows, kind="stable")
        is_first = np.diff(rows[by_row], prepend=-1) != 0
        before = np.full(len(steps), -1)
        before[by_row] = np.where(is_first, -1, np.roll(by_row, 1))
        is_new = before >= 0
        stops = first_step + steps + 1
        times = started_at + (steps + 1) * step_seconds
        ended = replace(running.select(rows), stop=stops, ended_at=times)
        ended.number[is_new], ended.seed[is_new] = started[:, before[is_new]]
        ended.start[is_new] = ended.unsaved[is_new] = stops[before[is_new]]
        ended.started_at[is_new] = times[before[is_new]]
        ended.terminated = block.steps.terminated[steps, rows]
        ended.truncated = block.steps.truncated[steps, rows]
        ended.last = tuple(
            leaf[steps, rows].astype(column.dtype, copy=False)
            for leaf, column in zip(
                self._observations.columns(block.last), self._observations.leaves, strict=True
            )
        )
        self._buffer.end(ended)
        last = by_row[np.append(is_first[1:], True)]  # The last end of each row.
        running.number[rows[last]], running.seed[rows[last]] = started[:, last]
        running.start[rows[last]] = running.unsaved[rows[last]] = stops[last]
        running.started_at[rows[last]] = times[last]
        return n_started

    # -- checks and errors -----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Check shapes and dtypes of observations, actions, rewards and flags, then compile.

        That is done once for a program and the types of the policy's parameters.

        Nothing runs: the caller may limit the seconds of a step, but not of compiling.
        """
        self.where = self._acting
        params = self._policy.get_param_values()
        leaves, structure = jax.tree.flatten(params)
        types = [structure, *map(jax.typeof, leaves)]
        if self._params_types == types:
            return
        self.where = RESET
        row = reset_types(self._program, self._observations)
        self.where = self._acting
        check_action(self._program, self._actions, params, row)
        self.where = STEP
        check_step(self._program, params, row)
        self.where = RESET
        rows = no_rows(self._env, self._width)
        mask = np.zeros(self._width, bool)
        seeds = np.zeros(self._n_steps * self._width, np.uint32)
        self._program.start.lower(rows, mask, seeds[: self._width]).compile()
        self._program.run.lower(params, rows, mask, seeds, np.int32(0)).compile()
        self._params_types = types

    def _invalid_action(self, block: Block, step: int) -> BadValueError:
        """Return the error for the first row that has an invalid action in a step of the block."""
        row = int(np.flatnonzero(~block.is_valid[step])[0])
        self.where = self._acting
        self._running.start[row] += self._n_steps - step  # `fail` counts up to the end of the block.
        for leaf, values in zip(self._actions.leaves, self._actions.columns(block.steps.action), strict=True):
            value = values[step, row]
            low, high = leaf.bounds or (value, value)
            if not ((value >= low) & (value <= high)).all():
                return bad_action(leaf, value, self._rule or "error", row=row)
        raise AssertionError("a row is invalid only if a leaf is")
