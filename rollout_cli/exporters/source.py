"""What exporters read: the episodes of a dataset, or of a batch in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree, derive_step_types
from rollout_cli.episodes.spaces import SpaceRows, map_tree, space_leaves

Array = npt.NDArray[Any]

_BLOCK_BYTES = 32 << 20
"""The observations and actions that are in memory together; an episode is held whole, however long it is."""


class EpisodeLike(Protocol):
    """One episode; the attributes are those of `rollout_cli.dataset.reader.Episode`."""

    @property
    def id(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def terminated(self) -> bool: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def observations(self) -> Tree: ...
    @property
    def actions(self) -> Tree: ...
    @property
    def rewards(self) -> Array: ...
    @property
    def last_observation(self) -> Tree: ...
    @property
    def batch(self) -> EpisodeBatch: ...
    def __len__(self) -> int: ...


class EpisodeSource(Protocol):
    """Whole episodes, and where they came from: a `Dataset`, or a `MemoryDataset`."""

    @property
    def env_spec(self) -> EnvSpec: ...
    @property
    def info(self) -> Mapping[str, Any]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[EpisodeLike]: ...


@dataclass(frozen=True, eq=False)
class MemoryEpisode:
    """One episode whose fields are in memory."""

    id: int
    number: int
    seed: int
    terminated: bool
    truncated: bool
    observations: Tree
    actions: Tree
    rewards: Array
    last_observation: Tree
    recorded: EpisodeBatch | EpisodeLike

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def batch(self) -> EpisodeBatch:
        """The episode as a batch of one, as it was recorded."""
        return self.recorded if isinstance(self.recorded, EpisodeBatch) else self.recorded.batch


class MemoryDataset:
    """The episodes of a batch; `info` is what a dataset's info.json would say of where they came from."""

    def __init__(self, batch: EpisodeBatch, info: Mapping[str, Any] | None = None) -> None:
        self._batch = batch
        self.env_spec = batch.env_spec
        self.info: Mapping[str, Any] = {"sources": [], "derived": []} if info is None else info

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[MemoryEpisode]:
        for at, batch in enumerate(self._batch.split()):
            yield MemoryEpisode(
                id=at,
                number=int(batch.numbers[0]),
                seed=int(batch.seeds[0]),
                terminated=bool(batch.terminated[0]),
                truncated=bool(batch.truncated[0]),
                observations=batch.observations,
                actions=batch.actions,
                rewards=batch.rewards,
                last_observation=map_tree(itemgetter(0), batch.last_observations),
                recorded=batch,
            )


def with_last(values: Array, last: Any) -> Array:
    """Return the values (T, *shape) of an episode's steps and what followed the last one, (T + 1, *shape)."""
    return np.concatenate([values, np.asarray(last, values.dtype)[None]])


def row_bytes(spec: EnvSpec) -> int:
    """Return the bytes of an observation and an action, texts not counted."""
    spaces = (spec.observation_space, spec.action_space)
    return sum(leaf.row_bytes for space in spaces for leaf in space_leaves(space))


def blocks(source: EpisodeSource) -> Iterator[EpisodeBatch]:
    """Yield the episodes of a source in order, many in one batch, without their infos."""
    spec = source.env_spec
    most_steps = max(1, _BLOCK_BYTES // max(row_bytes(spec), 64))
    episodes: list[EpisodeLike] = []
    steps = 0
    for episode in source:
        episodes.append(episode)
        steps += len(episode)
        if steps >= most_steps:
            yield _joined(spec, episodes)
            episodes, steps = [], 0
    if episodes:
        yield _joined(spec, episodes)


def _joined(spec: EnvSpec, episodes: Sequence[EpisodeLike]) -> EpisodeBatch:
    def joined(name: str) -> Tree:
        return map_tree(lambda *parts: np.concatenate(parts), *(getattr(each, name) for each in episodes))

    lengths = np.array([len(each) for each in episodes], np.int64)
    terminated, truncated = (
        np.array([getattr(each, name) for each in episodes], np.bool_) for name in ("terminated", "truncated")
    )
    return EpisodeBatch(
        env_spec=spec,
        episode_infos={},
        observations=joined("observations"),
        last_observations=SpaceRows(spec.observation_space).stack(
            [each.last_observation for each in episodes]
        ),
        actions=joined("actions"),
        rewards=joined("rewards"),
        env_infos={},
        agent_infos={},
        step_types=derive_step_types(lengths, terminated, truncated),
        lengths=lengths,
        terminated=terminated,
        truncated=truncated,
        numbers=np.array([each.number for each in episodes], np.int64),
        seeds=np.array([each.seed for each in episodes], np.int64),
    )
