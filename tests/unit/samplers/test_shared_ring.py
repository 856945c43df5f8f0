"""Shared memory: slots never overlap, come back in order, hold what was written, and go with the last process."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.samplers import shared_ring
from rollout_cli.samplers.shared_ring import RingMemory, RingReader, RingSpace, RingWriter

SIZE = 1 << 14


@pytest.fixture(params=["memfd", "segment"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RingMemory]:
    """Give memory of SIZE bytes, for messages of any size; made in both of the ways that systems offer."""
    monkeypatch.setattr(shared_ring, "RING_BYTES", SIZE)
    monkeypatch.setattr(shared_ring, "RING_MIN_BYTES", 1)
    if request.param == "segment":
        monkeypatch.delattr(os, "memfd_create")
    made = RingMemory.create()
    yield made
    made.close()


def read(reader: RingReader, start: int, size: int) -> bytes:
    """Return the message at `start`."""
    target = bytearray(size)
    reader.read_into(memoryview(target), start)
    return bytes(target)


def pieces_of(*pieces: bytes) -> list[memoryview]:
    return [memoryview(piece) for piece in pieces]


@given(st.integers(64, 2000), st.lists(st.one_of(st.none(), st.integers(1, 900)), max_size=200))
def test_slots_never_overlap(size: int, steps: list[int | None]) -> None:
    """Whatever is taken and given back (None), slots are disjoint, in bounds, and refused only for want of room."""
    space, used = RingSpace(size), deque[tuple[int, int]]()
    for step in steps:
        if step is None:
            if used:
                used.popleft()
                space.give_back()
            continue
        start = space.take(step)
        if start is None:
            gaps = _gaps(size, used)
            assert all(gap < step + 64 for gap in gaps), (gaps, step)
            continue
        assert 0 <= start
        assert start + step <= size
        assert all(start + step <= other or stop <= start for other, stop in used)
        used.append((start, start + step))


def _gaps(size: int, used: deque[tuple[int, int]]) -> list[int]:
    """Return the bytes after the newest slot and, where these lie at the end, those before the oldest one."""
    if not used:
        return [size]
    first, last = used[0][0], used[-1][1]
    return [first - last] if last <= first else [size - last, first]


def test_a_slot_is_taken_again_only_after_it_was_given_back() -> None:
    """A full ring refuses; the place of the oldest slot is the next one's, round and round."""
    space = RingSpace(256)
    starts = [space.take(64) for _ in range(5)]
    assert [0, 64, 128, 192, None] == starts
    for lap in range(3):
        for expected in (0, 64, 128, 192):
            assert space.take(1) is None, lap
            space.give_back()
            assert expected == space.take(64)


def test_a_slot_that_does_not_fit_at_the_end_begins_at_the_front() -> None:
    """It stays in one piece: the end is left empty until the ring has gone round."""
    space = RingSpace(256)
    assert [0, 128] == [space.take(128), space.take(64)]
    assert space.take(65) is None
    space.give_back()
    assert 0 == space.take(65)
    assert space.take(1) is None
    space.give_back()
    assert 128 == space.take(128)


def test_an_empty_ring_begins_at_its_first_byte() -> None:
    """A reader that keeps pace lets the same memory be used for every message."""
    space = RingSpace(256)
    for _ in range(5):
        assert 0 == space.take(200)
        space.give_back()


@pytest.mark.parametrize("size", [1, 63, 64, 4097, SIZE])
def test_what_is_written_is_read(memory: RingMemory, size: int) -> None:
    """Messages of any size up to the whole ring, in pieces, come out as they were put in."""
    writer, reader = RingWriter(memory), RingReader(memory)
    data = np.random.default_rng(size).bytes(size)
    for _ in range(3):
        start = writer.write(pieces_of(data[: size // 3], b"", data[size // 3 :]), size)
        assert start is not None
        assert data == read(reader, start, size)
        writer.give_back()


def test_what_was_read_stays(memory: RingMemory) -> None:
    """A message that was read does not change when its place is written to again."""
    writer, reader = RingWriter(memory), RingReader(memory)
    place = writer.write(pieces_of(b"first"), 5)
    assert 0 == place
    first = bytearray(5)
    reader.read_into(memoryview(first), 0)
    writer.give_back()
    assert 0 == writer.write(pieces_of(b"other"), 5)
    assert b"first" == first


def test_what_is_worth_the_ring(memory: RingMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither small messages nor those larger than the ring."""
    monkeypatch.setattr(shared_ring, "RING_MIN_BYTES", 100)
    writer = RingWriter(RingMemory.create())
    assert [False, True, True, False] == [writer.takes(size) for size in (99, 100, SIZE, SIZE + 1)]
    writer.close()


def test_nothing_is_mapped_before_it_is_used(memory: RingMemory) -> None:
    """A run with small messages pays for a descriptor, and for no memory."""
    writer = RingWriter(memory)
    assert memory._descriptor is not None
    descriptor = os.dup(memory._descriptor)
    try:
        before = os.fstat(descriptor).st_blocks, memory._map
        writer.write(pieces_of(b"x" * mmap.PAGESIZE), mmap.PAGESIZE)
        after = os.fstat(descriptor).st_blocks * 512, type(memory._map)
    finally:
        os.close(descriptor)
    assert ((0, None), (mmap.PAGESIZE, mmap.mmap)) == (before, after)


def test_memory_has_no_name(memory: RingMemory) -> None:
    """It stands nowhere in the file system from the moment at which it was made, so nothing can be left there."""
    assert str(Path(f"/proc/self/fd/{memory._descriptor}").readlink()).endswith(" (deleted)")


def test_closing_gives_everything_back(memory: RingMemory) -> None:
    """Descriptors and mappings are those of before, whether the memory was used or not."""
    before = sorted(Path("/proc/self/fd").iterdir())
    for used in (False, True) * 3:
        one = RingMemory.create()
        if used:
            RingWriter(one).write(pieces_of(b"x"), 1)
            read(RingReader(one), 0, 1)
        one.close()
    assert before == sorted(Path("/proc/self/fd").iterdir())


def test_memory_travels_to_processes_only(memory: RingMemory) -> None:
    """Outside of the start of a process, and once it is in use, it is no value to pickle."""
    RingWriter(memory).write(pieces_of(b"x"), 1)
    with pytest.raises(TypeError, match="in use or closed"):
        pickle.dumps(memory)


def _write(memory: RingMemory, ends: Any) -> None:
    writer = RingWriter(memory)
    for at in itertools.count():
        size = 1000 + 37 * at
        place = writer.write(pieces_of(bytes([at % 251]) * size), size)
        ends.send(place)
        if place is None:
            return


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_another_process_writes(memory: RingMemory, method: str) -> None:
    """Memory that was an argument of a process is the same memory there, and stays when that process ends."""
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_write, args=(memory, theirs))
    process.start()
    theirs.close()
    places = list(iter(ours.recv, None))
    process.join()
    reader = RingReader(memory)
    assert len(places) > 5
    for at, place in enumerate(places):
        size = 1000 + 37 * at
        assert bytes([at % 251]) * size == read(reader, place, size)
