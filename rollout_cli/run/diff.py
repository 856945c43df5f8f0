"""Diff: the first place where two datasets differ, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.rows import Rows
from rollout_cli.run.compare import Difference, first_difference

_IDENTITY = ("root_seed", "episode_number")


@dataclass(frozen=True, slots=True)
class DatasetDifference:
    """Where two datasets differ first."""

    episode: int | None  # Its place in both; None where they differ as a whole.
    difference: Difference

    @property
    def place(self) -> str:
        if self.episode is None:
            return self.difference.field
        return f"{self.difference.place} of episode {self.episode}"


def diff(first: Dataset, second: Dataset) -> DatasetDifference | None:
    """Return where two datasets differ, episode by episode in their orders; None where they are the same.

    Spaces, seeds, numbers and all recorded values are compared, with their types; not which worker ran an
    episode and how long that took, how a dataset is cut into files, or what else info.json records.

    Raises:
        DatasetFormatError: If the files of one are damaged.
        StorageError: If they cannot be read.
    """
    texts = [str(dataset.info["spaces"]) for dataset in (first, second)]
    if texts[0] != texts[1]:
        return DatasetDifference(None, Difference("spaces", 0, texts))
    n_episodes, start = min(len(first), len(second)), 0
    for block in first.rows.select(slice(n_episodes)).blocks():
        other = second.rows.select(slice(start, start + len(block)))
        if (found := _first_difference(block, other)) is not None:
            return DatasetDifference(start + found[0], found[1])
        start += len(block)
    if len(first) != len(second):
        return DatasetDifference(None, Difference("episodes", 0, [len(first), len(second)]))
    return None


def _first_difference(block: Rows, other: Rows) -> tuple[int, Difference] | None:
    """Return the place of the first episode that differs, and where."""
    ours, theirs = (np.column_stack([rows.column(name) for name in _IDENTITY]) for rows in (block, other))
    if np.array_equal(ours, theirs) and first_difference(block.batch(), other.batch()) is None:
        return None  # All of them at once: most are the same.
    for place, (left, right) in enumerate(zip(block.batches, other.batches, strict=True)):
        for name, *values in zip(_IDENTITY, ours[place].tolist(), theirs[place].tolist(), strict=True):
            if values[0] != values[1]:
                return place, Difference(name, 0, values)
        if (difference := first_difference(left, right)) is not None:
            return place, difference
    return None
