"""Recorders of the running episode in one environment, and EndedEpisode, the recorded result."""

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
"""Samples of an episode that were cut from its columns, one piece per leaf."""
Infos = dict[int, Mapping[Any, Any]]
"""Info dictionaries by step, without empty dictionaries."""

_NO_INFO: Mapping[Any, Any] = {}


class SpaceRecorder:
    """Records the samples of one space in one running episode.

    Attributes:
        columns: One column per leaf.
        record: Appends one sample and returns it, converted if its dtype differs from its space's. Raises
            BadValueError if the sample does not fit the space.
        row_bytes: Bytes of one sample, without its strings.

    Args:
        space: The space.
        name: The noun for a sample in messages.
        rule: Handling of actions outside the space; None for observations.
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
        """Warnings of the columns whose samples lost digits."""
        return [column.cast for column in self.columns if column.cast]

    def cut(self, start: int | None = None, stop: int | None = None) -> Pieces:
        """Return samples `start` to `stop - 1` as pieces for `joined`; both may be negative, as in slices."""
        return tuple([column.cut(start, stop) for column in self.columns])

    def clear(self) -> None:
        """Remove all samples."""
        for column in self.columns:
            column.samples.clear()

    def joined(self, pieces: Sequence[Pieces], count: int) -> tuple[Array, ...]:
        """Join pieces with `count` samples in total to one array (count, *leaf.shape) per leaf."""
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
                f"{name} is {sample!r:.200}, expected a sample of {space} ({type(error).__name__}: {error})",
                "return all keys and entries of the space",
                code="value-structure",
            ) from error
        recorded = [record(value) for value, record in zip(values, records, strict=True)]
        # A new tree is needed only if a value was converted.
        return sample if all(map(operator.is_, values, recorded)) else unflatten(space, recorded)

    return record


class EndedEpisode(NamedTuple):
    """An ended episode that waits to be taken."""

    number: int
    seed: int
    length: int
    terminated: bool
    truncated: bool
    started_at: float  # In seconds of the workers' clock, as is `ended_at`.
    ended_at: float
    observations: Pieces
    last_observation: Pieces
    actions: Pieces
    rewards: array[float]
    env_infos: Infos
    agent_infos: Infos
    reset_info: Mapping[Any, Any]


class EpisodeRecorder:
    """Records the running episode of one environment.

    Attributes:
        observations, actions: Recorders; an episode of T steps has T + 1 observations and T actions.
        rewards: One float per step; its length is the number of steps.
        env_infos, agent_infos: A `frozen_copy` of each info dictionary that is not empty, by step.
        reset_info: A `frozen_copy` of the info of `env.reset`.
        row_bytes: Bytes of one step, without its infos and strings.
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
        """Remove and return the episode; `flags` are terminated and truncated, `times` of reset and end."""
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
        """Delete the recorded episode, even if it failed in the middle of a step."""
        self.observations.clear()
        self.actions.clear()
        del self.rewards[:]
        self.env_infos.clear()
        self.agent_infos.clear()

    def chunk(self, episodes: Sequence[EndedEpisode], worker_number: int) -> Chunk:
        """Return a chunk of episodes, from any row with these spaces."""
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
    """Return a table of the infos of some episodes with one row per step; `lengths` are their steps."""
    if not any(infos):
        return InfoTable(sum(lengths))
    rows: list[Mapping[Any, Any]] = []
    for steps, length in zip(infos, lengths, strict=True):
        rows += [steps.get(step, _NO_INFO) for step in range(length)]
    return tabulate(rows)
