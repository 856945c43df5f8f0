"""Recording: EpisodeRecorder holds the episode that runs, EpisodeStore those that are finished and not yet handed on.

Several recorders (one an environment) may fill one store; what it hands on is sorted by episode number.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.infos import InfoTable, tabulate
from rollout_cli.spaces import space_leaves
from rollout_cli.workers.leaf_columns import LeafRows
from rollout_cli.workers.rules import EpisodeRules
from rollout_cli.workers.space_recorder import SpaceRecorder, clipping

_VALUES = (bool, int, float, str, np.generic, type(None))
_EMPTY: Mapping[Any, Any] = {}

HOLD_SECONDS = 0.25
"""How long a finished episode waits at most for lower numbers of its worker to end."""

Infos = dict[int, dict[Any, Any]]
"""Info dictionaries by row; rows with an empty one are left out."""


def frozen_copy(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return an info dictionary that later changes to `info`, or to what it holds, do not reach.

    Raises:
        TypeError: If it is no mapping.
    """
    if not isinstance(info, Mapping):
        raise TypeError(f"an info is a mapping, not {type(info).__name__} {info!r:.80}")
    return {key: value if isinstance(value, _VALUES) else _copied(value) for key, value in info.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    try:
        return frozen_copy(value) if isinstance(value, Mapping) else copy.deepcopy(value)
    except Exception:  # noqa: BLE001  A foreign object may refuse in any way; it is kept and counted as unstorable later.
        return value


class FinishedEpisode(NamedTuple):
    """One episode as it was recorded: lists of rows, not yet joined. A tuple, which is made three times as fast."""

    number: int
    seed: int
    terminated: bool
    truncated: bool
    wall_time: float
    observations: list[LeafRows]
    actions: list[LeafRows]
    rewards: list[float]
    last_observation: list[LeafRows]
    env_infos: Infos
    agent_infos: Infos
    episode_info: dict[Any, Any]


class EpisodeStore:
    """Finished episodes, joined into a chunk when they are taken.

    Args:
        env_spec: The spaces of the episodes.
        worker_number: Who runs them.
        rules: What is done about actions outside of their space, and about episodes that do not end.
    """

    def __init__(self, env_spec: EnvSpec, *, worker_number: int, rules: EpisodeRules | None = None) -> None:
        self.env_spec = env_spec
        self.rules = rules or EpisodeRules()
        self.numbers: list[int] = []
        self.lengths: list[int] = []
        self.n_rows = 0
        self._worker_number = worker_number
        self._observations = SpaceRecorder(env_spec.observation_space)
        self._actions = SpaceRecorder(env_spec.action_space)
        self._episodes: list[FinishedEpisode] = []
        self.holding = False
        self._held: list[FinishedEpisode] = []
        self._held_since = 0.0

    def add(self, episode: FinishedEpisode) -> None:
        """Take a finished episode; while `holding`, it waits for `release`."""
        if self.holding:
            self._held.append(episode)
        else:
            self._show(episode)

    def release(self, lowest_open: int | None, now: float) -> None:
        """Let episodes be taken that no lower number holds up, so that the numbers of a chunk follow each other.

        A gap costs the sampler as much as another message does. A number that takes long holds the others up for
        `HOLD_SECONDS` at most.

        Args:
            lowest_open: The lowest number that waits or runs; None where there is none, or nothing is to be held.
            now: Seconds, of any one clock.
        """
        if not self._held:
            self._held_since = now
            return
        ready, held = self._held, []
        if lowest_open is not None and now - self._held_since < HOLD_SECONDS:
            ready = [episode for episode in self._held if episode.number < lowest_open]
            held = [episode for episode in self._held if episode.number > lowest_open]
        if ready:
            self._held, self._held_since = held, now
        for episode in ready:
            self._show(episode)

    def drop_held(self, above: int) -> None:
        """Drop held episodes, which nobody was told of, with higher numbers than `above`."""
        self._held = [episode for episode in self._held if episode.number <= above]

    def _show(self, episode: FinishedEpisode) -> None:
        self._episodes.append(episode)
        self.numbers.append(episode.number)
        self.lengths.append(len(episode.rewards))
        self.n_rows += len(episode.rewards)

    def take(self) -> Chunk | None:
        """Remove all episodes and return them in the order of their numbers; None where there are none."""
        if not self._episodes:
            return None
        episodes = self._episodes
        if any(after < before for before, after in pairwise(self.numbers)):
            episodes.sort(key=attrgetter("number"))
        self._episodes, self.numbers, self.lengths, self.n_rows = [], [], [], 0
        return self._joined(episodes)

    def _joined(self, episodes: list[FinishedEpisode]) -> Chunk:
        lengths = [len(episode.rewards) for episode in episodes]
        return Chunk(
            numbers=np.array([episode.number for episode in episodes], np.int64),
            seeds=np.array([episode.seed for episode in episodes], np.int64),
            lengths=np.array(lengths, np.int64),
            terminated=np.array([episode.terminated for episode in episodes], bool),
            truncated=np.array([episode.truncated for episode in episodes], bool),
            workers=np.full(len(episodes), self._worker_number, np.int32),
            wall_times=np.array([episode.wall_time for episode in episodes], np.float64),
            observations=self._observations.join([episode.observations for episode in episodes]),
            actions=self._actions.join([episode.actions for episode in episodes]),
            rewards=np.fromiter(chain.from_iterable(episode.rewards for episode in episodes), np.float64, sum(lengths)),
            last_observations=self._observations.join([episode.last_observation for episode in episodes]),
            env_infos=_table([episode.env_infos for episode in episodes], lengths),
            agent_infos=_table([episode.agent_infos for episode in episodes], lengths),
            episode_infos=tabulate([episode.episode_info for episode in episodes]),
        )


def _table(infos: list[Infos], lengths: list[int]) -> InfoTable:
    if not any(infos):
        return InfoTable(sum(lengths))
    rows = (found.get(row, _EMPTY) for found, length in zip(infos, lengths, strict=True) for row in range(length))
    return tabulate(list(rows))


class EpisodeRecorder:
    """Records the episode that runs in one environment.

    Attributes:
        record_observation: Append an observation and return a private copy of it.
        keep_observation: The same for a policy that leaves observations alone: it is not copied.
        record_action: Append an action and return it in its space's types.
        plain_dtype: The dtype of observations that are one array, else None.
        row_bytes: The bytes of one observation.
        int_type: `int` where integers may be appended to `action_rows` as they are; else None.
        numbers: What the environment gets for such an integer.
        observation_rows: Append the bytes of such observations here, after the first one of an episode.
        rewards: Append rewards here, one a step; its length is the number of steps so far.
        most_steps: Steps after which an episode without a limit is taken to have no end.
        env_infos, agent_infos: Put `frozen_copy` of non-empty info dictionaries here, by step.

    Args:
        store: Where finished episodes go.
    """

    def __init__(self, store: EpisodeStore) -> None:
        spec = store.env_spec
        self._store = store
        self._observations = SpaceRecorder(spec.observation_space)
        self._actions = SpaceRecorder(spec.action_space, strict=store.rules.invalid_action != "warn")
        self._last_observation = SpaceRecorder(spec.observation_space)
        self._episode_info: dict[Any, Any] = {}
        self.record_observation = self._observations.record
        self.keep_observation = self._observations.keep
        self.record_action = self._actions.keep
        if store.rules.invalid_action == "clip":
            self.record_action = clipping(spec.action_space, self._actions.keep)
        self.plain_dtype = self._observations.plain_dtype
        self.row_bytes = sum(leaf.row_bytes for leaf in space_leaves(spec.observation_space))
        self.most_steps = store.rules.most_steps(self.row_bytes)
        self.observation_rows = self._observations.rows
        self.action_rows = self._actions.rows
        self.numbers = self._actions.numbers
        self.int_type = int if self.numbers else None
        self.rewards: list[float] = []
        self.env_infos: Infos = {}
        self.agent_infos: Infos = {}

    @property
    def episode_info(self) -> Mapping[Any, Any]:
        """Return what `env.reset` told of the episode that runs."""
        return self._episode_info

    def begin(self, episode_info: Mapping[Any, Any]) -> None:
        """Begin an episode with what `env.reset` told."""
        self._episode_info = frozen_copy(episode_info) if episode_info else {}

    def finish(
        self, *, number: int, seed: int, last_observation: Any, terminated: bool, truncated: bool, wall_time: float
    ) -> None:
        """End the episode, which has at least one step, and put it into the store.

        Raises:
            BadSampleError: If the last observation is none of its space.
        """
        self._last_observation.keep(last_observation)
        self._store.add(
            FinishedEpisode(
                number,
                seed,
                terminated,
                truncated,
                wall_time,
                self._observations.cut(),
                self._actions.cut(),
                self.rewards.copy(),
                self._last_observation.cut(),
                self.env_infos,
                self.agent_infos,
                self._episode_info,
            )
        )
        self.rewards.clear()
        self.env_infos, self.agent_infos, self._episode_info = {}, {}, {}

    def discard(self) -> None:
        """Forget the episode that runs."""
        # Lists are emptied in place: the stepping loop holds on to them.
        for recorder in (self._observations, self._actions, self._last_observation):
            recorder.cut()
        self.rewards.clear()
        self.env_infos, self.agent_infos, self._episode_info = {}, {}, {}
