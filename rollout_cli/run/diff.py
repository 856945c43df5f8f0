"""Diff: the first place where two datasets differ, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_cli.dataset.reader import Dataset
from rollout_cli.run.compare import Difference, first_difference


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

    Spaces, numbers, seeds and all recorded values are compared, with their types; not which worker ran an
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
        if first_difference(block.batch(), other.batch()) is not None:  # Most blocks are the same.
            for place, pair in enumerate(zip(block.batches, other.batches, strict=True), start):
                if (difference := first_difference(*pair)) is not None:
                    return DatasetDifference(place, difference)
        start += len(block)
    if len(first) != len(second):
        return DatasetDifference(None, Difference("episodes", 0, [len(first), len(second)]))
    return None
