"""What exporters read: the episodes of a dataset, or of a batch in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree
from rollout_cli.episodes.spaces import map_tree

Array = npt.NDArray[Any]


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
    """One episode of a batch in memory."""

    batch: EpisodeBatch
    id: int

    def __len__(self) -> int:
        return int(self.batch.lengths[0])

    @property
    def number(self) -> int:
        return int(self.batch.numbers[0])

    @property
    def seed(self) -> int:
        return int(self.batch.seeds[0])

    @property
    def terminated(self) -> bool:
        return bool(self.batch.terminated[0])

    @property
    def truncated(self) -> bool:
        return bool(self.batch.truncated[0])

    @property
    def observations(self) -> Tree:
        return self.batch.observations

    @property
    def actions(self) -> Tree:
        return self.batch.actions

    @property
    def rewards(self) -> Array:
        return self.batch.rewards

    @property
    def last_observation(self) -> Tree:
        return map_tree(itemgetter(0), self.batch.last_observations)


class MemoryDataset:
    """The episodes of a batch; `info` is what a dataset's info.json would say of where they came from."""

    def __init__(self, batch: EpisodeBatch, info: Mapping[str, Any] | None = None) -> None:
        self._batch = batch
        self.env_spec = batch.env_spec
        self.info: Mapping[str, Any] = {"sources": [], "derived": []} if info is None else info

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[MemoryEpisode]:
        return (MemoryEpisode(batch, at) for at, batch in enumerate(self._batch.split()))
