"""What an episodes file's footer states: the episode numbers that it settles, and how its shard can be continued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.cuts import CutState

_SETTLES, _OPEN = "rollout.settles", "rollout.open"


@dataclass(frozen=True, slots=True)
class OpenEnd:
    """The end of a shard that more episodes may join.

    Attributes:
        rows: How many of the shard's last rows are its open row group.
        cuts: What the cutter had counted.
    """

    rows: int
    cuts: CutState


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit settles.

    Attributes:
        start: The first episode number that the shard settles.
        stop: One past the last.
        skipped: Numbers between them that have no episode and never will.
        open: Where the shard can be continued; None where it is full.
    """

    start: int
    stop: int
    skipped: tuple[int, ...] = ()
    open: OpenEnd | None = None

    def footer(self) -> dict[str, str]:
        """Return the commit as metadata of a Parquet file."""
        settles = {"start": self.start, "stop": self.stop, "skipped": self.skipped}
        return {_SETTLES: json.dumps(settles), _OPEN: json.dumps(self.open and asdict(self.open))}

    @classmethod
    def from_footer(cls, metadata: Mapping[bytes, bytes]) -> Commit:
        """Return the commit that a file's metadata states.

        Raises:
            ValueError: If it states none.
        """
        try:
            settles = json.loads(metadata[_SETTLES.encode()])
            end = json.loads(metadata[_OPEN.encode()])
            opened = end and OpenEnd(end["rows"], CutState(**end["cuts"]))
            return cls(settles["start"], settles["stop"], tuple(settles["skipped"]), opened)
        except (KeyError, TypeError) as error:
            raise ValueError(f"its footer does not say what it settles: {error}") from error


class Settling:
    """Keeps account of the numbers that one lane's open shard settles.

    Within a lane numbers rise, so one that is left out between two others has no episode: it was skipped.

    Args:
        first: The lane's first number; None where that is the number of its first episode.
    """

    def __init__(self, first: int | None) -> None:
        self._start = self._next = first
        self._skipped: list[int] = []

    def add(self, numbers: Array) -> None:
        """Take the numbers of episodes, rising, that are wholly there."""
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        if self._start is None or self._next is None:
            self._start = self._next = first
        if stop - self._next != len(numbers):
            self._skipped += np.setdiff1d(np.arange(self._next, stop), numbers).tolist()
        # In the order of arrival they may be lower than one that came before.
        self._start, self._next = min(self._start, first), max(self._next, stop)

    def commit(self, end: OpenEnd | None) -> Commit:
        """Return what is settled so far by a shard that ends so."""
        start, stop = self._start or 0, self._next or 0
        return Commit(start, stop, tuple(self._skipped), end)

    def close(self) -> None:
        """Begin the next shard."""
        self._start, self._skipped = self._next, []

    def go_on(self, commit: Commit) -> None:
        """Go on after a commit, in its shard where that is open."""
        self._start, self._next, self._skipped = commit.start, commit.stop, list(commit.skipped)
        if commit.open is None:
            self.close()
