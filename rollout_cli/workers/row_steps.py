"""RowSteps: the loop of a VecWorker, which begins episodes in its rows and steps them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollout_cli.errors import EnvError, PolicyError
from rollout_cli.workers.acting import Actors
from rollout_cli.workers.env_slot import EnvSlot
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.recorder import frozen_copy
from rollout_cli.workers.seen_rows import SeenBytes
from rollout_cli.workers.step_values import as_reward

CHECKED_STEPS = 128
"""One of so many steps has its observations checked in full."""


class Ended(NamedTuple):
    """An episode that ended in this step; its last observation waits in its slot."""

    slot: EnvSlot
    terminated: bool
    truncated: bool


_Seeing = tuple[int, EnvSlot, Callable[[Any], None], list[float]]
"""What recording an observation needs of a row: the row, its slot, where bytes are appended, and its rewards."""

_Stepping = tuple[EnvSlot, Callable[[Any], Any], Callable[[Any], None], list[float]]
"""What a step needs of a row: its slot, what steps it, where actions are appended, and its rewards.

Plain tuples, which are taken apart several times as fast as named ones. Their lists stay the same from episode to
episode.
"""


class RowSteps:
    """Steps the rows of a VecWorker together; made anew where their environments, recorders or actors change.

    Attributes:
        actors: How they act.

    Args:
        slots: The rows; their environments are built, have equal specs, and are recorded.
        actors: As the attribute.
        max_episode_length: Steps after which the run truncates an episode; infinity for no limit.
        in_turn: Whether rows share generators, so that each begins and steps in its turn.
    """

    def __init__(self, slots: Sequence[EnvSlot], actors: Actors, *, max_episode_length: float, in_turn: bool) -> None:
        self._slots, self.actors, self._in_turn = slots, actors, in_turn
        self._seeing: list[_Seeing] = [_seeing(row, slot) for row, slot in enumerate(slots)]
        self._stepping: list[_Stepping] = [_stepping(slot, in_turn=in_turn) for slot in slots]
        self.look_again()
        self._steps_to_limit = 0
        self._steps_to_check = CHECKED_STEPS
        first = slots[0]
        self._limit = max_episode_length if first.limit is None else min(first.limit, max_episode_length)
        self._guard = first.recorder.most_steps
        self._row_bytes = first.recorder.row_bytes
        self._plain_dtype: np.dtype[Any] | None = None
        self._latest: list[bytes] = []
        if isinstance(actors.seen, SeenBytes):
            self._plain_dtype, self._latest = first.recorder.plain_dtype, actors.seen.latest
        self._int_type, self._numbers = first.recorder.int_type, first.recorder.numbers

    def look_again(self) -> None:
        """Find anew in which rows an episode runs: somebody else has begun or given up some."""
        self._running: list[int] | None = None
        self._run_seeing: list[_Seeing] = []
        self._run_stepping: list[_Stepping] = []

    def _find_running(self) -> list[int]:
        self._running = rows = [row for row, slot in enumerate(self._slots) if slot.number is not None]
        self._run_seeing = [self._seeing[row] for row in rows]
        self._run_stepping = [self._stepping[row] for row in rows]
        return rows

    def begin(self, numbers: Mapping[int, int]) -> None:
        """Begin episodes: their numbers by row; at least one."""
        for row, number in numbers.items():
            if self._in_turn:
                with self._slots[row].turn:
                    self._begin(row, number)
            else:
                self._begin(row, number)
        self._running = None
        self.actors.begun(min(numbers))

    def _begin(self, row: int, number: int) -> None:
        slot = self._slots[row]
        slot.prepare(number)
        self.actors.seed(row, slot.seeder.policy_seed(number))
        slot.reset()
        self.actors.begin(row)

    def step(self) -> list[Ended]:
        """Take a step in every row in which an episode runs; return the episodes that ended."""
        running = self._running or self._find_running()
        self._see()
        actions, agent_infos = self.actors.act(running)
        if agent_infos:
            for (slot, *_, rewards), info in zip(self._run_stepping, agent_infos, strict=True):
                if info:
                    slot.recorder.agent_infos[len(rewards)] = frozen_copy(info)
        ended = self._step(actions)
        if ended:
            self._running = None
        return ended

    def _see(self) -> None:
        """Record what the rows see, and show it to the policy.

        An episode's first and last observation are checked in full, as are those of one step of `CHECKED_STEPS`; the
        others by type and bytes. So an observation that changes its shape alone, (4,) to (2, 2), is found unless it
        changes back before one is checked.
        """
        latest, dtype, row_bytes, ndarray = self._latest, self._plain_dtype, self._row_bytes, np.ndarray
        self._steps_to_check -= 1
        if not self._steps_to_check:
            self._steps_to_check, dtype = CHECKED_STEPS, None
        for row, slot, append_seen, rewards in self._run_seeing:
            observation = slot.observation
            if (
                type(observation) is ndarray
                and observation.dtype is dtype
                and len(seen := observation.tobytes()) == row_bytes
                and rewards  # The first observation of an episode is checked in full.
            ):
                append_seen(seen)
                latest[row] = seen
            else:
                self._put(row, slot)

    def _put(self, row: int, slot: EnvSlot) -> None:
        seen, recorder = self.actors.seen, slot.recorder
        record = recorder.keep_observation if seen.copies else recorder.record_observation
        try:
            seen.put(row, record(slot.observation))
        except BadSampleError as error:
            raise slot.error(EnvError, "the observation", error) from error

    def _step(self, actions: Sequence[Any]) -> list[Ended]:
        int_type, numbers = self._int_type, self._numbers
        is_near = self._limit_is_near()
        ended: list[Ended] = []
        for (slot, step_env, append_action, rewards), action in zip(self._run_stepping, actions, strict=True):
            try:
                if type(action) is int_type:
                    append_action(action)
                    action = numbers[action]  # noqa: PLW2901  What is done is what is recorded.
                else:
                    action = slot.recorder.record_action(action)  # noqa: PLW2901
            except Exception as error:
                raise slot.error(PolicyError, "the policy", error) from error
            try:
                slot.observation, reward, terminated, truncated, env_info = step_env(action)
                if env_info:
                    slot.recorder.env_infos[len(rewards)] = frozen_copy(env_info)
                rewards.append(reward if type(reward) is float else as_reward(reward))
                may_end = terminated or truncated or is_near
            except Exception as error:
                raise slot.error(EnvError, "env.step", error) from error
            if may_end:
                at_limit = len(rewards) + slot.first_step >= self._limit
                if terminated or truncated or at_limit or len(rewards) >= self._guard:
                    ended.append(Ended(slot, *slot.ending(terminated, truncated, at_limit=at_limit)))
        return ended

    def _limit_is_near(self) -> bool:
        """Return whether an episode may come to its limit in this step, or be too long for one without a limit.

        Rows that begin meanwhile have further to go than this counts on.
        """
        if not self._steps_to_limit:
            counts = [(len(rewards), slot.first_step) for slot, *_, rewards in self._run_stepping]
            to_limit = self._limit - max(count + first for count, first in counts)
            self._steps_to_limit = max(1, math.ceil(min(to_limit, self._guard - max(counts)[0])))
        self._steps_to_limit -= 1
        return not self._steps_to_limit


def _seeing(row: int, slot: EnvSlot) -> _Seeing:
    return row, slot, slot.recorder.observation_rows.append, slot.recorder.rewards


def _stepping(slot: EnvSlot, *, in_turn: bool) -> _Stepping:
    step_env = _in_turn(slot) if in_turn else slot.stepped.step
    return slot, step_env, slot.recorder.action_rows.append, slot.recorder.rewards


def _in_turn(slot: EnvSlot) -> Callable[[Any], Any]:
    step = slot.stepped.step

    def step_in_turn(action: Any) -> Any:
        with slot.turn:
            return step(action)

    return step_in_turn
