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
    group_rows: int = 65_536

    def for_lanes(self, n_lanes: int) -> CutLimits:
        """Return the limits of one of `n_lanes` lanes, which share the bytes of a shard."""
        least = min(self.min_shard_bytes, self.shard_bytes)
        return replace(self, shard_bytes=max(self.shard_bytes // n_lanes, least))

    def groups_needed(self, length: int, nominal: int) -> int:
        """Return how many row groups an episode fills: 1, or more where it is over a row group's limit by itself."""
        by_rows = -(-length // self.group_rows)
        by_bytes = -(-nominal // self.group_bytes)
        return max(1, min(length, max(by_rows, by_bytes)))


class Cut(enum.IntEnum):
    """What ends before an episode; a shard's end is a row group's end too."""

    NONE = 0
    GROUP = 1
    SHARD = 2


class Cutter:
    """Places the episodes of one lane, in order, into row groups and shards.

    Each is closed *before* the episode that would pass its limit. An episode over a row group's limit begins a row
    group and the next one begins another; it never spans shards.
    """

    def __init__(self, limits: CutLimits) -> None:
        self._limits = limits
        self._shard_bytes = 0
        self._group_bytes = 0
        self._group_rows = 0

    def place(self, length: int, nominal: int) -> Cut:
        """Place the next episode; return what to close before it."""
        cut = self._cut_before(length, nominal)
        if cut is Cut.SHARD:
            self._shard_bytes = 0
        if cut is not Cut.NONE:
            self._group_bytes = self._group_rows = 0
        self._shard_bytes += nominal
        self._group_bytes += nominal
        self._group_rows += length
        return cut

    def _cut_before(self, length: int, nominal: int) -> Cut:
        if self._group_rows == 0:
            return Cut.NONE
        if self._shard_bytes + nominal > self._limits.shard_bytes:
            return Cut.SHARD
        full = self._group_rows + length > self._limits.group_rows
        return Cut.GROUP if full or self._group_bytes + nominal > self._limits.group_bytes else Cut.NONE


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
