"""Recording in one environment: the running episode, and what is kept of it once it has ended."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable, tabulate
from rollout_cli.episodes.spaces import Array, leaf_getter, space_leaves, unflatten
from rollout_cli.workers.checks import BadValueError
from rollout_cli.workers.rows.columns import Column, Record
from rollout_cli.workers.values import OnInvalidAction

Pieces = tuple[Any, ...]
"""Samples of an episode that were cut from its columns, one piece a leaf."""
Infos = dict[int, Mapping[Any, Any]]
"""Info dictionaries by step; steps with an empty one are missing."""

_NO_INFO: Mapping[Any, Any] = {}


class SpaceRecorder:
    """The samples of one space in one running episode.

    Attributes:
        columns: One a leaf.
        record: Append one sample. Returns it as its space has it: the very same one where its type is right,
            else a converted one. Raises BadValueError for a sample that is none of the space.
        row_bytes: The bytes of one sample, without its texts.

    Args:
        space: The space.
        name: What messages call a sample.
        rule: Given for actions: what becomes of one that is outside of its space.
    """

    def __init__(self, space: gymnasium.Space[Any], name: str, rule: OnInvalidAction | None = None) -> None:
        self.columns = [Column(leaf, name) for leaf in space_leaves(space)]
        self.row_bytes = sum(column.leaf.row_bytes for column in self.columns)
        if rule is None:
            records = [column.recording() for column in self.columns]
        else:
            records = [column.recording_actions(rule) for column in self.columns]
        self.record = _recording_tree(space, records, name)

    @property
    def casts(self) -> list[str]:
        """Return a warning for each column whose samples lost digits."""
        return [column.cast for column in self.columns if column.cast]

    def cut(self, start: int | None = None, stop: int | None = None) -> Pieces:
        """Return samples `start` to `stop - 1` as `joined` takes them; negative places count from the end."""
        return tuple([column.cut(start, stop) for column in self.columns])

    def clear(self) -> None:
        """Remove all samples."""
        for column in self.columns:
            column.samples.clear()

    def joined(self, pieces: Sequence[Pieces], count: int) -> tuple[Array, ...]:
        """Return `count` samples cut from any episodes, as one array (count, *leaf.shape) a leaf."""
        columns = zip(self.columns, zip(*pieces, strict=True), strict=True)
        return tuple([column.joined(parts, count) for column, parts in columns])


def _recording_tree(space: gymnasium.Space[Any], records: list[Record], name: str) -> Callable[[Any], Any]:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return records[0]
    getters = [*map(leaf_getter, space_leaves(space))]

    def record(sample: Any) -> Any:
        try:
            values = [get(sample) for get in getters]
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(
                f"{name} lacks {error!r}: {sample!r:.200}, expected a sample of {space}",
                code="value-structure",
            ) from error
        recorded = [record(value) for value, record in zip(values, records, strict=True)]
        # Only where a value was converted is another tree needed.
        return sample if all(map(operator.is_, values, recorded)) else unflatten(space, recorded)

    return record


class EndedEpisode(NamedTuple):
    """An episode that has ended, and waits to be taken."""

    number: int
    seed: int
    length: int
    terminated: bool
    truncated: bool
    started_at: float  # Seconds of the workers' clock, as `ended_at` is.
    ended_at: float
    observations: Pieces
    last_observation: Pieces
    actions: Pieces
    rewards: array[float]
    env_infos: Infos
    agent_infos: Infos
    reset_info: Mapping[Any, Any]


class EpisodeRecorder:
    """The episode that runs in one environment.

    Attributes:
        observations, actions: Record samples here: one observation at the reset, and then one each a step.
        rewards: Append floats here, one a step; its length is the number of steps.
        env_infos, agent_infos: Put `frozen_copy` of info dictionaries that are not empty here, by step.
        reset_info: The same of `env.reset`.
        row_bytes: The bytes of one step, without its infos and texts.
    """

    def __init__(self, env_spec: EnvSpec, rule: OnInvalidAction) -> None:
        self.observations = SpaceRecorder(env_spec.observation_space, "the observation")
        self.actions = SpaceRecorder(env_spec.action_space, "the action", rule)
        self.rewards = array("d")
        self.env_infos: Infos = {}
        self.agent_infos: Infos = {}
        self.reset_info: Mapping[Any, Any] = _NO_INFO
        self.row_bytes = self.observations.row_bytes + self.actions.row_bytes + 8

    def end(
        self, number: int, seed: int, flags: tuple[bool, bool], times: tuple[float, float]
    ) -> EndedEpisode:
        """Remove the episode and return it; `flags` are terminated, truncated; `times` of reset and end."""
        ended = EndedEpisode(
            number,
            seed,
            len(self.rewards),
            *flags,
            *times,
            self.observations.cut(0, -1),
            self.observations.cut(-1),
            self.actions.cut(),
            self.rewards[:],
            self.env_infos.copy(),
            self.agent_infos.copy(),
            self.reset_info,
        )
        self.clear()
        return ended

    def clear(self) -> None:
        """Forget the episode, also where it failed in the middle of a step."""
        self.observations.clear()
        self.actions.clear()
        del self.rewards[:]
        self.env_infos.clear()
        self.agent_infos.clear()

    def chunk(self, episodes: Sequence[EndedEpisode], worker_number: int) -> Chunk:
        """Return episodes of any rows of these spaces as a chunk."""
        columns: tuple[Sequence[Any], ...] = tuple(zip(*episodes, strict=True))
        numbers, seeds, lengths, terminated, truncated, started_at, ended_at, *pieces, reset_infos = columns
        observations, last_observations, actions, rewards, env_infos, agent_infos = pieces
        count = sum(lengths)
        return Chunk(
            numbers=np.array(numbers, np.int64),
            seeds=np.array(seeds, np.int64),
            lengths=np.array(lengths, np.int64),
            terminated=np.array(terminated, bool),
            truncated=np.array(truncated, bool),
            workers=np.full(len(episodes), worker_number, np.int32),
            wall_times=np.array(ended_at) - np.array(started_at),
            observations=self.observations.joined(observations, count),
            actions=self.actions.joined(actions, count),
            rewards=np.frombuffer(bytearray().join(rewards), np.float64),
            last_observations=self.observations.joined(last_observations, len(episodes)),
            env_infos=_info_table(env_infos, lengths),
            agent_infos=_info_table(agent_infos, lengths),
            episode_infos=tabulate(reset_infos),
        )


def _info_table(infos: Sequence[Infos], lengths: Sequence[int]) -> InfoTable:
    """Return the infos of some episodes, of so many steps each, as a table with one row a step."""
    if not any(infos):
        return InfoTable(sum(lengths))
    rows: list[Mapping[Any, Any]] = []
    for steps, length in zip(infos, lengths, strict=True):
        rows += [steps.get(step, _NO_INFO) for step in range(length)]
    return tabulate(rows)
