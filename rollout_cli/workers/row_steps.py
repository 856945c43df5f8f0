"""RowSteps: the loop of a VecWorker, which begins episodes in its rows and steps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollout_cli.errors import EnvError, PolicyError
from rollout_cli.workers.acting import Actors
from rollout_cli.workers.env_slot import EnvSlot
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.recorder import frozen_copy
from rollout_cli.workers.seen_rows import SeenBytes


class Ended(NamedTuple):
    """An episode that ended in this step; its last observation waits in its slot."""

    slot: EnvSlot
    terminated: bool
    truncated: bool


class _Row(NamedTuple):
    """What the loop needs of a row: bound methods, and a list that stays the same from episode to episode."""

    row: int
    slot: EnvSlot
    step_env: Callable[[Any], Any]
    append_seen: Callable[[Any], None]
    append_action: Callable[[Any], None]
    rewards: list[float]


class RowSteps:
    """Steps the rows of a VecWorker together; made anew where their environments, recorders or actors change.

    Args:
        slots: The rows; their environments are built, have equal specs, and are recorded.
        actors: How they act.
        max_episode_length: Steps after which the run truncates an episode; infinity for no limit.
        in_turn: Whether rows share generators, so that each begins and steps in its turn.
    """

    def __init__(self, slots: Sequence[EnvSlot], actors: Actors, *, max_episode_length: float, in_turn: bool) -> None:
        self._slots, self._actors, self._in_turn = slots, actors, in_turn
        self._rows = [_row(row, slot, in_turn=in_turn) for row, slot in enumerate(slots)]
        first = slots[0]
        self._limit = max_episode_length if first.limit is None else min(first.limit, max_episode_length)
        self._row_bytes = first.recorder.row_bytes
        self._plain_dtype: np.dtype[Any] | None = None
        self._latest: list[bytes] = []
        if isinstance(actors.seen, SeenBytes):
            self._plain_dtype, self._latest = first.recorder.plain_dtype, actors.seen.latest
        self._int_type, self._numbers = first.recorder.int_type, first.recorder.numbers

    @property
    def running(self) -> list[_Row]:
        """Return the rows in which an episode runs."""
        return [row for row in self._rows if row.slot.number is not None]

    def begin(self, numbers: Mapping[int, int]) -> None:
        """Begin episodes: their numbers by row; at least one."""
        for row, number in numbers.items():
            if self._in_turn:
                with self._slots[row].turn:
                    self._begin(row, number)
            else:
                self._begin(row, number)
        self._actors.begun(min(numbers))

    def _begin(self, row: int, number: int) -> None:
        slot = self._slots[row]
        slot.prepare(number)
        self._actors.seed(row, slot.seeder.policy_seed(number))
        slot.reset()
        self._actors.begin(row)

    def step(self) -> list[Ended]:
        """Take a step in every row in which an episode runs; return the episodes that ended."""
        running = self.running
        self._see(running)
        actions, agent_infos = self._actors.act([row.row for row in running])
        if agent_infos:
            for (_, slot, *_, rewards), info in zip(running, agent_infos, strict=True):
                if info:
                    slot.recorder.agent_infos[len(rewards)] = frozen_copy(info)
        return self._step(running, actions)

    def _see(self, running: list[_Row]) -> None:
        """Record what the rows see, and show it to the policy."""
        latest, dtype, row_bytes, ndarray = self._latest, self._plain_dtype, self._row_bytes, np.ndarray
        for row, slot, _, append_seen, _, rewards in running:
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
        seen, recorder = self._actors.seen, slot.recorder
        record = recorder.keep_observation if seen.copies else recorder.record_observation
        try:
            seen.put(row, record(slot.observation))
        except BadSampleError as error:
            raise slot.error(EnvError, "the observation", error) from error

    def _step(self, running: list[_Row], actions: Sequence[Any]) -> list[Ended]:
        limit, int_type, numbers = self._limit, self._int_type, self._numbers
        ended: list[Ended] = []
        for (_, slot, step_env, _, append_action, rewards), action in zip(running, actions, strict=True):
            if type(action) is int_type:
                append_action(action)
                action = numbers[action]  # noqa: PLW2901  What is done is what is recorded.
            else:
                action = _recorded(slot, action)  # noqa: PLW2901
            try:
                slot.observation, reward, terminated, truncated, env_info = step_env(action)
                if env_info:
                    slot.recorder.env_infos[len(rewards)] = frozen_copy(env_info)
                rewards.append(float(reward))
            except Exception as error:
                raise slot.error(EnvError, "env.step", error) from error
            is_last = len(rewards) + slot.first_step >= limit
            if terminated or truncated or is_last:
                ended.append(Ended(slot, bool(terminated), bool(truncated) or is_last))
        return ended


def _row(row: int, slot: EnvSlot, *, in_turn: bool) -> _Row:
    recorder = slot.recorder
    step_env = _in_turn(slot) if in_turn else slot.stepped.step
    return _Row(row, slot, step_env, recorder.observation_rows.append, recorder.action_rows.append, recorder.rewards)


def _in_turn(slot: EnvSlot) -> Callable[[Any], Any]:
    step = slot.stepped.step

    def step_in_turn(action: Any) -> Any:
        with slot.turn:
            return step(action)

    return step_in_turn


def _recorded(slot: EnvSlot, action: Any) -> Any:
    """Record an action; return it in its space's types."""
    try:
        return slot.recorder.record_action(action)
    except Exception as error:
        raise slot.error(PolicyError, "the policy", error) from error
