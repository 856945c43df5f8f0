"""EpisodeRecorder: the columns of the running episode and of those that are finished but not yet handed on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.infos import InfoTable, tabulate
from rollout_cli.workers.space_recorder import SpaceRecorder

_VALUES = (bool, int, float, str, np.generic, type(None))
_EMPTY: Mapping[Any, Any] = {}


def frozen_copy(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return an info dictionary that later changes to `info`, or to what it holds, do not reach."""
    return {key: value if isinstance(value, _VALUES) else _copied(value) for key, value in info.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    if isinstance(value, Mapping):
        return frozen_copy(value)
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  A foreign object may refuse in any way; it is kept and counted as unstorable later.
        return value


class InfoRecorder:
    """Info dictionaries by row; rows with an empty one cost nothing."""

    def __init__(self) -> None:
        self._infos: dict[int, dict[Any, Any]] = {}

    def record(self, row: int, info: Mapping[Any, Any]) -> None:
        """Keep `info` for `row`."""
        self._infos[row] = frozen_copy(info)

    def truncate(self, rows: int) -> None:
        """Forget all rows from row number `rows` on."""
        # Rows rise in the order of insertion, so the ones to go are the last ones.
        while self._infos and next(reversed(self._infos)) >= rows:
            self._infos.popitem()

    def take(self, rows: int) -> InfoTable:
        """Remove the first `rows` rows and return them as a table."""
        if not self._infos:
            return InfoTable(rows)
        taken = [self._infos.get(row, _EMPTY) for row in range(rows)]
        self._infos = {row - rows: info for row, info in self._infos.items() if row >= rows}
        return tabulate(taken)


@dataclass(slots=True)
class _Finished:
    """What is known of each finished episode, one list a field of `Chunk`."""

    numbers: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    wall_times: list[float] = field(default_factory=list)


class EpisodeRecorder:
    """Records one episode after another; finished ones are taken as a chunk.

    Attributes:
        record_observation: Append an observation and return a private copy of it.
        record_action: Append an action and return it in its space's types.
        rewards: Append rewards here, one a step.
        env_infos, agent_infos: Record non-empty info dictionaries at row `len(rewards)` before the reward is appended.
    """

    def __init__(self, env_spec: EnvSpec, *, worker_number: int) -> None:
        self._worker_number = worker_number
        self._observations = SpaceRecorder(env_spec.observation_space)
        self._actions = SpaceRecorder(env_spec.action_space, copy=False)
        self._last_observations = SpaceRecorder(env_spec.observation_space)
        self._episode_infos = InfoRecorder()
        self._finished = _Finished()
        self._finished_rows = 0
        self.record_observation: Callable[[Any], Any] = self._observations.record
        self.record_action: Callable[[Any], Any] = self._actions.record
        self.rewards: list[float] = []
        self.env_infos = InfoRecorder()
        self.agent_infos = InfoRecorder()

    @property
    def finished_numbers(self) -> list[int]:
        """Return the numbers of the episodes that wait to be taken."""
        return self._finished.numbers

    @property
    def finished_rows(self) -> int:
        """Return how many rows wait to be taken."""
        return self._finished_rows

    @property
    def running_rows(self) -> int:
        """Return how many rows the running episode has."""
        return len(self.rewards) - self._finished_rows

    def begin(self, episode_info: Mapping[Any, Any]) -> None:
        """Begin an episode with what `env.reset` told."""
        if episode_info:
            self._episode_infos.record(len(self._finished.numbers), episode_info)

    def finish(
        self, *, number: int, seed: int, last_observation: Any, terminated: bool, truncated: bool, wall_time: float
    ) -> None:
        """End the running episode, which has at least one row."""
        self._last_observations.record(last_observation)
        done = self._finished
        done.numbers.append(number)
        done.seeds.append(seed)
        done.lengths.append(self.running_rows)
        done.terminated.append(terminated)
        done.truncated.append(truncated)
        done.wall_times.append(wall_time)
        self._finished_rows = len(self.rewards)

    def discard_running(self) -> None:
        """Forget the running episode."""
        rows, episodes = self._finished_rows, len(self._finished.numbers)
        self._observations.truncate(rows)
        self._actions.truncate(rows)
        del self.rewards[rows:]
        self.env_infos.truncate(rows)
        self.agent_infos.truncate(rows)
        self._last_observations.truncate(episodes)
        self._episode_infos.truncate(episodes)

    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them as one chunk; None where there are none."""
        done, rows = self._finished, self._finished_rows
        episodes = len(done.numbers)
        if not episodes:
            return None
        self._finished, self._finished_rows = _Finished(), 0
        rewards, self.rewards[:rows] = self.rewards[:rows], []
        return Chunk(
            numbers=np.array(done.numbers, np.int64),
            seeds=np.array(done.seeds, np.int64),
            lengths=np.array(done.lengths, np.int64),
            terminated=np.array(done.terminated, bool),
            truncated=np.array(done.truncated, bool),
            workers=np.full(episodes, self._worker_number, np.int32),
            wall_times=np.array(done.wall_times, np.float64),
            observations=self._observations.take(rows),
            actions=self._actions.take(rows),
            rewards=np.array(rewards, np.float64),
            last_observations=self._last_observations.take(episodes),
            env_infos=self.env_infos.take(rows),
            agent_infos=self.agent_infos.take(rows),
            episode_infos=self._episode_infos.take(episodes),
        )
