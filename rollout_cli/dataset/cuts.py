"""Where shards and row groups end: a pure function of each episode's length and nominal bytes.

Nominal bytes are counted before any encoding, so that the cuts, and with them the bytes of the dataset, depend on the
episodes alone: not on how they travelled, which worker ran them, or how well they compress.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.chunk import Chunk, episode_variable_bytes

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class CutLimits:
    """The sizes that shards and row groups may reach.

    Attributes:
        shard_bytes: Nominal bytes of a shard (of all lanes' open shards together).
        min_shard_bytes: The least that a lane's share of `shard_bytes` may be.
        group_bytes: Nominal bytes of a row group.
        group_rows: Rows of a row group.
    """

    shard_bytes: int = 384 << 20
    min_shard_bytes: int = 8 << 20
    group_bytes: int = 64 << 20
    group_rows: int = 131_072

    def for_lanes(self, n_lanes: int) -> CutLimits:
        """Return the limits of one of `n_lanes` lanes, which share the bytes of a shard."""
        least = min(self.min_shard_bytes, self.shard_bytes)
        return replace(self, shard_bytes=max(self.shard_bytes // n_lanes, least))

    def groups_needed(self, length: int, nominal: int) -> int:
        """Return how many row groups an episode fills: 1, or more where it is over a row group's limit by itself."""
        by_rows = -(-length // self.group_rows)
        by_bytes = -(-nominal // self.group_bytes)
        return max(1, min(length, max(by_rows, by_bytes)))


@dataclass(frozen=True, slots=True)
class CutState:
    """What a cutter has counted.

    Attributes:
        shard_bytes: Nominal bytes of the open shard.
        group_bytes: Nominal bytes of the open row group.
        group_rows: Rows of the open row group.
    """

    shard_bytes: int = 0
    group_bytes: int = 0
    group_rows: int = 0


class Cut(enum.IntEnum):
    """What ends before an episode; a shard's end is a row group's end too."""

    NONE = 0
    GROUP = 1
    SHARD = 2


@dataclass(frozen=True, slots=True)
class Placement:
    """An episode before which something ends, or that fills several row groups.

    Attributes:
        at: Its place among the episodes given.
        cut: What ends before it.
        groups: How many row groups it fills.
    """

    at: int
    cut: Cut
    groups: int


class Cutter:
    """Places the episodes of one lane, in order, into row groups and shards.

    Each is closed *before* the episode that would pass its limit. An episode over a row group's limit begins a row
    group and the next one begins another; it never spans shards.

    Args:
        limits: What they may reach.
        begun: What was counted before.
    """

    def __init__(self, limits: CutLimits, begun: CutState | None = None) -> None:
        begun = begun or CutState()
        self._limits = limits
        self._shard_bytes = begun.shard_bytes
        self._group_bytes = begun.group_bytes
        self._group_rows = begun.group_rows

    @property
    def state(self) -> CutState:
        """Return what was counted so far."""
        return CutState(self._shard_bytes, self._group_bytes, self._group_rows)

    def place(self, lengths: Array, nominal: Array) -> list[Placement]:
        """Place the next episodes; return those that do not simply join the open row group.

        Args:
            lengths: Their steps, int64 (N,), each at least 1.
            nominal: Their nominal bytes, int64 (N,).
        """
        rows, size = int(lengths.sum()), int(nominal.sum())
        if self._room_for(rows, size):
            self._add(rows, size)
            return []
        return self._place_from_cut_to_cut(lengths, nominal)

    def _place_from_cut_to_cut(self, lengths: Array, nominal: Array) -> list[Placement]:
        # What all episodes before the one at each place have; so a search finds the first that has no room.
        rows, size = _sums_before(lengths), _sums_before(nominal)
        out = []
        start = 0
        while start < len(lengths):
            at = start + self._count_with_room(rows[start:], size[start:])
            self._add(int(rows[at] - rows[start]), int(size[at] - size[start]))
            if at == len(lengths):
                break
            length, own = int(lengths[at]), int(nominal[at])
            placement = Placement(at, self._cut_before(own), self._limits.groups_needed(length, own))
            if placement.cut is not Cut.NONE or placement.groups > 1:
                out.append(placement)
            self._close(placement.cut)
            self._add(length, own)
            start = at + 1
        return out

    def _room_for(self, rows: int, size: int) -> bool:
        return (
            self._group_rows + rows <= self._limits.group_rows
            and self._group_bytes + size <= self._limits.group_bytes
            and self._shard_bytes + size <= self._limits.shard_bytes
        )

    def _count_with_room(self, rows: Array, size: Array) -> int:
        """Return how many of the next episodes join the open row group, from sums that begin before the first."""
        bytes_left = min(self._limits.group_bytes - self._group_bytes, self._limits.shard_bytes - self._shard_bytes)
        by_rows = np.searchsorted(rows, int(rows[0]) + self._limits.group_rows - self._group_rows, side="right")
        by_bytes = np.searchsorted(size, int(size[0]) + bytes_left, side="right")
        return max(0, int(min(by_rows, by_bytes)) - 1)

    def _cut_before(self, nominal: int) -> Cut:
        """Return what ends before an episode for which the open row group has no room."""
        if self._group_rows == 0:
            return Cut.NONE
        return Cut.SHARD if self._shard_bytes + nominal > self._limits.shard_bytes else Cut.GROUP

    def _close(self, cut: Cut) -> None:
        if cut is Cut.SHARD:
            self._shard_bytes = 0
        if cut is not Cut.NONE:
            self._group_bytes = self._group_rows = 0

    def _add(self, rows: int, size: int) -> None:
        self._shard_bytes += size
        self._group_bytes += size
        self._group_rows += rows


def _sums_before(values: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])


def nominal_bytes(chunk: Chunk, *, row_bytes: int, episode_bytes: int) -> Array:
    """Return the nominal bytes of each episode of `chunk`, int64 (N,); of a part, those of its whole episode.

    Args:
        chunk: Whole episodes, or a part of one.
        row_bytes: Bytes of a step's fixed-size columns.
        episode_bytes: Bytes of an episode's own row.
    """
    if chunk.part is not None:
        whole = chunk.part.episode_length * row_bytes + chunk.part.variable_bytes
        return np.array([whole + episode_bytes], np.int64)
    return np.asarray(chunk.lengths * row_bytes + episode_variable_bytes(chunk) + episode_bytes)


def group_edges(length: int, groups: int) -> list[int]:
    """Return the steps at which the row groups of a split episode end: `groups` numbers, rising to `length`."""
    return [length * (at + 1) // groups for at in range(groups)]
