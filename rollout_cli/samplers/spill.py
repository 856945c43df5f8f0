"""SpillStore: payloads in memory up to a limit, and in unlinked temporary files beyond it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from rollout_cli.packing import Piece

SEGMENT_BYTES = 64 << 20

Payload = Sequence[Piece]
"""What `packing.pack` gives."""


@dataclass(slots=True)
class _Segment:
    """One temporary file; it goes when everything in it was taken."""

    file: IO[bytes]
    size: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True)
class Handle:
    """Where one payload is kept: in memory, or in a segment."""

    payload: Payload | None
    segment: _Segment | None
    offset: int
    size: int


class SpillStore:
    """Keeps payloads until they are taken.

    Args:
        memory_limit: Bytes kept in memory.
        disk_limit: Bytes kept in temporary files, at least 1; from there on the store is full, but keeps more.
    """

    def __init__(self, *, memory_limit: int, disk_limit: int) -> None:
        self._memory_limit, self._disk_limit = memory_limit, disk_limit
        self._in_memory = 0
        self._segments: list[_Segment] = []

    @property
    def is_full(self) -> bool:
        """Return whether both limits are reached: what is on disk is there because it had no place in memory."""
        return self.on_disk >= self._disk_limit

    @property
    def on_disk(self) -> int:
        """Return the bytes in temporary files."""
        return sum(segment.size for segment in self._segments)

    def put(self, payload: Payload) -> Handle:
        """Keep one payload."""
        size = sum(map(len, payload))
        if self._in_memory + size <= self._memory_limit:
            self._in_memory += size
            return Handle(payload, None, 0, size)
        segment = self._open_segment()
        offset = segment.size
        segment.file.seek(offset)
        segment.file.writelines(payload)
        segment.size += size
        segment.live += 1
        return Handle(None, segment, offset, size)

    def take(self, handle: Handle) -> Payload | bytes:
        """Give a payload back, from a file as one piece, and forget it."""
        if handle.segment is None:
            assert handle.payload is not None
            self._in_memory -= handle.size
            return handle.payload
        segment = handle.segment
        segment.file.seek(handle.offset)
        payload = segment.file.read(handle.size)
        segment.live -= 1
        if segment.live == 0:
            self._drop(segment)
        return payload

    def close(self) -> None:
        """Forget everything."""
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()

    def _open_segment(self) -> _Segment:
        if not self._segments or self._segments[-1].size >= SEGMENT_BYTES:
            # An unlinked file: whatever happens to this process, the disk gets the space back.
            self._segments.append(_Segment(tempfile.TemporaryFile(prefix="rollout-spill-")))  # noqa: SIM115
        return self._segments[-1]

    def _drop(self, segment: _Segment) -> None:
        segment.file.close()
        self._segments.remove(segment)
