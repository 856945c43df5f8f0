"""The commit record: the footer of each episodes file, and everything that is committed of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """The committed episodes of one partition.

    Attributes:
        next_number: The number of the episode to run next: all lower ones are in the dataset, or skipped.
        episodes: How many episodes there are.
        steps: Their steps.
        last_length: Steps of the last one; 0 where there is none.
        return_sum: The sum of their returns.
        skipped: Numbers of episodes that were skipped.
    """

    next_number: int
    episodes: int
    steps: int
    last_length: int
    return_sum: float
    skipped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed part of a dataset.

    Attributes:
        info: Its info.json.
        partitions: The committed episodes of each partition.
        notices: What the writer will do with damaged files when it resumes, one sentence each.
    """

    info: Mapping[str, Any]
    partitions: tuple[CommittedPartition, ...]
    notices: tuple[str, ...]

    @property
    def can_resume(self) -> bool:
        """Return whether a run can be resumed from it: it has episodes, and its columns are decided."""
        raise NotImplementedError

    @property
    def episodes(self) -> int:
        """Return how many episodes there are."""
        return sum(one.episodes for one in self.partitions)

    @property
    def steps(self) -> int:
        """Return how many steps they have."""
        return sum(one.steps for one in self.partitions)

    @property
    def return_sum(self) -> float:
        """Return the sum of their returns."""
        return sum(one.return_sum for one in self.partitions)

    @property
    def skipped(self) -> tuple[int, ...]:
        """Return the numbers of the episodes that were skipped."""
        return tuple(number for one in self.partitions for number in one.skipped)


def read_committed(root: Path, info: Mapping[str, Any]) -> Committed:
    """Return what is committed of the dataset in `root`, whose info.json is `info`.

    Raises:
        DatasetFormatError: If files contradict each other in a way that no kill leaves behind.
        StorageError: If they cannot be read.
    """
    raise NotImplementedError
