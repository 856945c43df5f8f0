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


@given(st.integers(64, 2000), st.lists(st.tuples(st.booleans(), st.integers(1, 900)), max_size=200))
def test_slots_never_overlap(size: int, steps: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given back, in any order, slots are disjoint, in bounds, and refused only without room."""
    space, used, given_back = RingSpace(size), deque[tuple[int, int]](), set[int]()
    for gives_back, number in steps:
        if gives_back:
            held = [start for start, _ in used if start not in given_back]
            if held:
                given_back.add(held[number % len(held)])
                space.give_back(held[number % len(held)])
            continue
        start = space.take(number)
        while used and used[0][0] in given_back:
            given_back.remove(used.popleft()[0])
        while used and used[-1][0] in given_back:
            given_back.remove(used.pop()[0])
        if start is None:
            gaps = _gaps(size, used)
            assert all(gap < number + 64 for gap in gaps), (gaps, number)
            continue
        assert 0 <= start
        assert start + number <= size
        assert all(start + number <= other or stop <= start for other, stop in used)
        used.append((start, start + number))


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
            space.give_back(expected)
            assert expected == space.take(64)


def test_a_slot_that_does_not_fit_at_the_end_begins_at_the_front() -> None:
    """It stays in one piece: the end is left empty until the ring has gone round."""
    space = RingSpace(256)
    assert [0, 128] == [space.take(128), space.take(64)]
    assert space.take(65) is None
    space.give_back(0)
    assert 0 == space.take(65)
    assert space.take(1) is None
    space.give_back(128)
    assert 128 == space.take(128)


def test_a_slot_between_others_is_free_once_these_are() -> None:
    """It may be given back at any time; the newest one's room is there again at once."""
    space = RingSpace(256)
    assert [0, 64, 128, 192] == [space.take(64) for _ in range(4)]
    space.give_back(64)
    assert space.take(64) is None
    space.give_back(192)
    assert 192 == space.take(64)
    space.give_back(0)
    assert [0, 64, None] == [space.take(64) for _ in range(3)]


def test_an_empty_ring_begins_at_its_first_byte() -> None:
    """A reader that keeps pace lets the same memory be used for every message."""
    space = RingSpace(256)
    for _ in range(5):
        assert 0 == space.take(200)
        space.give_back(0)


@pytest.mark.parametrize("size", [1, 63, 64, 4097, SIZE])
def test_what_is_written_is_read(memory: RingMemory, size: int) -> None:
    """Messages of any size up to the whole ring, in pieces, come out as they were put in."""
    writer, reader = RingWriter(memory), RingReader(memory)
    data = np.random.default_rng(size).bytes(size)
    for _ in range(3):
        assert [(0, size)] == writer.write(pieces_of(data[: size // 3], b"", data[size // 3 :]))
        assert data == read(reader, 0, size)
        writer.give_back()


def test_what_was_read_stays(memory: RingMemory) -> None:
    """A message that was read does not change when its place is written to again."""
    writer, reader = RingWriter(memory), RingReader(memory)
    assert [(0, 5)] == writer.write(pieces_of(b"first"))
    first = bytearray(5)
    reader.read_into(memoryview(first), 0)
    writer.give_back()
    assert [(0, 5)] == writer.write(pieces_of(b"other"))
    assert b"first" == first


def test_lent_memory_is_sent_without_a_copy(memory: RingMemory) -> None:
    """Its place is told in the message's order, with those of what was copied; next to each other they are one."""
    writer, reader = RingWriter(memory), RingReader(memory)
    lent = writer.lend(100)
    assert lent is not None
    lent[:] = bytes(range(100))
    places = writer.write([memoryview(b"head"), lent[:50], b"", lent[50:], lent[10:20], memoryview(b"tail")])
    assert [(128, 4), (0, 100), (10, 10), (132, 4)] == places
    assert places is not None
    assert b"head" + bytes(range(100)) + bytes(range(10, 20)) + b"tail" == b"".join(
        read(reader, *place) for place in places
    )


def test_lent_memory_comes_back_when_nobody_holds_it(memory: RingMemory) -> None:
    """Held by a part of it, or by a message that was told, it is not lent again."""
    writer = RingWriter(memory)
    lent: memoryview | None = writer.lend(SIZE)
    assert lent is not None
    part = lent[5:6]
    del lent
    assert writer.lend(1) is None
    writer.write([part])
    del part
    assert writer.lend(1) is None
    writer.give_back()
    assert writer.lend(SIZE) is not None


def test_what_is_lent_outlives_its_ring(memory: RingMemory) -> None:
    """Whoever holds an array in it may go on reading, though both ends are closed."""
    writer = RingWriter(memory)
    lent = writer.lend(3)
    assert lent is not None
    lent[:] = b"abc"
    writer.close()
    assert b"abc" == bytes(lent)


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
        writer.write(pieces_of(b"x" * mmap.PAGESIZE))
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
            RingWriter(one).write(pieces_of(b"x"))
            read(RingReader(one), 0, 1)
        one.close()
    assert before == sorted(Path("/proc/self/fd").iterdir())


def test_memory_travels_to_processes_only(memory: RingMemory) -> None:
    """Outside of the start of a process, and once it is in use, it is no value to pickle."""
    RingWriter(memory).write(pieces_of(b"x"))
    with pytest.raises(TypeError, match="in use or closed"):
        pickle.dumps(memory)


def _write(memory: RingMemory, ends: Any) -> None:
    writer = RingWriter(memory)
    for at in itertools.count():
        size = 1000 + 37 * at
        places = writer.write(pieces_of(bytes([at % 251]) * size))
        if places is None:
            ends.send(None)
            return
        ((start, _),) = places
        ends.send(start)


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
