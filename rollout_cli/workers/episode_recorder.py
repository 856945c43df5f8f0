"""EpisodeRecorder: the episode that runs in one environment, behind the finished ones that nobody took yet.

All steps lie in one list a column, the finished episodes' first, so that an episode's end costs a few appends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoColumn, InfoTable, tabulate
from rollout_cli.workers.checks import frozen_copy
from rollout_cli.workers.columns import ActionRecorder, SpaceRecorder
from rollout_cli.workers.worker import EpisodeRules

Array = npt.NDArray[Any]
Infos = dict[int, dict[Any, Any]]
"""Info dictionaries by row; rows with an empty one are missing."""

_NO_INFO: Mapping[Any, Any] = {}


class _Finished(NamedTuple):
    number: int
    seed: int
    length: int
    terminated: bool
    truncated: bool
    wall_time: float
    info: dict[Any, Any]


class EpisodeRecorder:
    """Records one environment's episodes.

    Attributes:
        observations, actions: Record samples here, one each a step.
        rewards: Append floats here, one a step; its length is the number of rows.
        env_infos, agent_infos: Put `frozen_copy` of info dictionaries that are not empty here, by row.
        first_row: The row of the running episode's first step.

    Args:
        env_spec: The spaces.
        worker_number: Which worker records.
        rules: What becomes of actions outside of their space.
        trusted: Whether actions are in their space by construction.
    """

    def __init__(self, env_spec: EnvSpec, worker_number: int, rules: EpisodeRules, *, trusted: bool) -> None:
        self.observations = SpaceRecorder(env_spec.observation_space, "the observation")
        self.actions = ActionRecorder(env_spec.action_space, rules.invalid_action, trusted=trusted)
        self.rewards: list[float] = []
        self.env_infos: Infos = {}
        self.agent_infos: Infos = {}
        self.first_row = 0
        self._last_observations = SpaceRecorder(env_spec.observation_space, "the observation")
        self._worker_number = worker_number
        self._finished: list[_Finished] = []
        self._info: dict[Any, Any] = {}

    @property
    def step(self) -> int:
        """Return how many steps the running episode has."""
        return len(self.rewards) - self.first_row

    @property
    def finished_bytes(self) -> int:
        """Return about how many bytes the finished episodes have."""
        return self.first_row * (self.observations.row_bytes + self.actions.row_bytes + 8)

    def begin(self, info: Any) -> None:
        """Begin an episode with the info of `env.reset`."""
        self._info = frozen_copy(info)

    def finish(
        self, *, number: int, seed: int, last_observation: Any, terminated: bool, truncated: bool, wall_time: float
    ) -> None:
        """End the episode, which has at least one step.

        Raises:
            BadValueError: If the last observation is none of its space.
        """
        self._last_observations.record(last_observation)
        episode = _Finished(number, seed, self.step, terminated, truncated, wall_time, self._info)
        self._finished.append(episode)
        self.first_row = len(self.rewards)

    def discard(self) -> None:
        """Forget the episode that runs, also where it failed in the middle of a step."""
        self.observations.truncate(self.first_row)
        self.actions.truncate(self.first_row)
        self._last_observations.truncate(len(self._finished))
        del self.rewards[self.first_row :]
        for infos in (self.env_infos, self.agent_infos):
            for row in [row for row in infos if row >= self.first_row]:
                del infos[row]

    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them in the order of their numbers; None where there are none."""
        episodes, count = self._finished, self.first_row
        if not episodes:
            return None
        columns = tuple(zip(*episodes, strict=True))
        chunk = Chunk(
            numbers=np.array(columns[0], np.int64),
            seeds=np.array(columns[1], np.int64),
            lengths=np.array(columns[2], np.int64),
            terminated=np.array(columns[3], bool),
            truncated=np.array(columns[4], bool),
            workers=np.full(len(episodes), self._worker_number, np.int32),
            wall_times=np.array(columns[5], np.float64),
            observations=self.observations.cut(count),
            actions=self.actions.cut(count),
            rewards=np.array(self.rewards[:count], np.float64),
            last_observations=self._last_observations.cut(len(episodes)),
            env_infos=_cut_infos(self.env_infos, count),
            agent_infos=_cut_infos(self.agent_infos, count),
            episode_infos=tabulate(columns[6]),
        )
        del self.rewards[:count]
        self._finished, self.first_row = [], 0
        return in_order(chunk)


def in_order(chunk: Chunk) -> Chunk:
    """Return a chunk's episodes in the order of their numbers."""
    if chunk.n_episodes < 2 or (np.diff(chunk.numbers) > 0).all():  # noqa: PLR2004
        return chunk
    order = np.argsort(chunk.numbers)
    lengths, stops = chunk.lengths[order], np.cumsum(chunk.lengths)
    # The rows of each episode, one episode after another.
    rows = np.repeat(stops[order] - np.cumsum(lengths), lengths) + np.arange(chunk.n_steps)
    names = ("numbers", "seeds", "lengths", "terminated", "truncated", "workers", "wall_times")
    return replace(
        chunk,
        **{name: getattr(chunk, name)[order] for name in names},
        observations=tuple(column[rows] for column in chunk.observations),
        actions=tuple(column[rows] for column in chunk.actions),
        rewards=chunk.rewards[rows],
        last_observations=tuple(column[order] for column in chunk.last_observations),
        env_infos=_reordered(chunk.env_infos, rows),
        agent_infos=_reordered(chunk.agent_infos, rows),
        episode_infos=_reordered(chunk.episode_infos, order),
    )


def _reordered(table: InfoTable, rows: Array) -> InfoTable:
    """Return a table with its rows in another order."""
    places = np.empty(len(rows), np.int64)
    places[rows] = np.arange(len(rows))
    columns = []
    for column in table.columns:
        now = places[column.row_numbers()]
        by_row = np.argsort(now)
        where = None if column.rows is None else now[by_row]
        columns.append(InfoColumn(column.path, column.kind, where, column.values[by_row]))
    dropped = {name: np.sort(places[where]) for name, where in table.dropped_rows.items()}
    return InfoTable(table.n_rows, tuple(columns), dropped)


def _cut_infos(infos: Infos, count: int) -> InfoTable:
    """Remove the infos of the first `count` rows and return them; the rows of the others count from there."""
    if not infos:
        return InfoTable(count)
    cut = tabulate([infos.pop(row, _NO_INFO) for row in range(count)])
    rest = {row - count: info for row, info in infos.items()}
    infos.clear()  # In place: the stepping loop holds on to the dictionary.
    infos.update(rest)
    return cut
