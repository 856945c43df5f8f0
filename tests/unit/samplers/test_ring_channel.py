"""PipeChannel with shared memory: large messages by the ring, the rest by the pipe, all in order, whoever dies."""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import signal
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from rollout_cli.buffer_pool import lent_array
from rollout_cli.samplers import shared_ring
from rollout_cli.samplers.channel import PipeChannel
from rollout_cli.samplers.shared_ring import RingMemory, RingReader, RingWriter

RING_BYTES = 1 << 20
LARGE = 300_000
"""Three of these fit into the ring, and none into the pipe."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PipeChannel, PipeChannel]]:
    """Give the worker's and the sampler's end of a channel with a small ring."""
    monkeypatch.setattr(shared_ring, "RING_BYTES", RING_BYTES)
    monkeypatch.setattr(shared_ring, "RING_MIN_BYTES", 1000)
    memory = RingMemory.create()
    theirs = RingMemory(os.dup(memory._descriptor or 0), memory.size, memory.least)
    one, other = Pipe(duplex=True)
    channels = PipeChannel(one, writer=RingWriter(memory)), PipeChannel(other, reader=RingReader(theirs))
    yield channels
    for channel in channels:
        channel.close()


def large(value: int) -> Any:
    return np.full(LARGE, value, np.uint8)


def values(messages: list[Any]) -> list[int]:
    """Return what each large message was filled with; it is the same all through."""
    assert all((message == message[0]).all() for message in messages)
    return [int(message[0]) for message in messages]


def test_large_messages_leave_the_pipe_free(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """As many as the ring holds are sent at once, with nothing left to write."""
    worker, sampler = ends
    for value in range(3):
        worker.put_nowait(large(value))
        assert not worker.has_unsent
    assert [0, 1, 2] == values(list(sampler.drain()))


def test_memory_is_used_again_when_its_message_is_gone(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """And not before: what is held stays as it was, whether it came by the ring or, beyond its room, by the pipe."""
    worker, sampler = ends

    def received() -> list[Any]:
        for value in range(5):
            worker.put_behind(large(value))
        found: list[Any] = []
        while len(found) < 5:
            worker.flush_nowait()
            found += sampler.drain()
        return found

    first, second = received(), received()
    places = {message.ctypes.data for message in [*first, *second]}
    assert 10 == len(places)
    assert [0, 1, 2, 3, 4] == values(first) == values(second)
    first.clear()
    third = received()
    assert {message.ctypes.data for message in third} < places
    assert [0, 1, 2, 3, 4] == values(second) == values(third)


def test_without_a_free_slot_a_message_goes_through_the_pipe(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """A reader that lags behind costs the ring's advantage, and neither a message nor the order."""
    worker, sampler = ends
    for value in range(4):
        worker.put_nowait(large(value))
    assert worker.has_unsent
    with pytest.raises(queue.Full):
        worker.put_nowait(large(4))
    received: list[Any] = []
    while not worker.flush_nowait():
        received += sampler.drain()
    assert [0, 1, 2, 3] == values([*received, *sampler.drain(), *sampler.drain()])


def test_slots_that_were_read_are_used_again(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Without any reading by its owner, the writer learns of the places that it has back, and keeps what else came."""
    worker, sampler = ends
    for value in range(3):
        worker.put_nowait(large(value))
    received = list(sampler.drain())
    sampler.put_behind("a command")
    sampler.put_behind("another")
    for value in range(3, 6):
        worker.put_nowait(large(value))
        assert not worker.has_unsent
    assert list(range(6)) == values([*received, *sampler.drain()])
    assert worker.readable()
    assert ["a command", "another"] == list(worker.drain())


def test_a_message_that_was_read_stays_as_it_was(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """It has its own memory: its place is written over many times."""
    worker, sampler = ends
    received: list[Any] = []
    for value in range(20):
        worker.put_nowait(large(value))
        received += sampler.drain()
    assert list(range(20)) == values(received)
    assert all(message.flags.writeable for message in received)


def test_messages_of_every_size_come_in_order(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """By the ring or not, at any pace of both ends, with commands between: all arrives whole and in order."""
    worker, sampler = ends
    rng = random.Random(3)
    sizes = [rng.choice([0, 900, 5000, 70_000, 400_000, RING_BYTES - 500, RING_BYTES + 1]) for _ in range(150)]
    waiting = [(at, bytes([at]) * size) for at, size in enumerate(sizes)]
    sent, received, commands, heard = list(waiting), list[Any](), 0, list[Any]()
    while len(received) < len(sent):
        if waiting and rng.random() < 0.6:
            try:
                worker.put_nowait(waiting[0])
                waiting.pop(0)
            except queue.Full:
                assert worker.has_unsent
        if rng.random() < 0.2:
            sampler.put_behind(commands)
            commands += 1
        if rng.random() < 0.3:
            received += sampler.drain()
        if rng.random() < 0.1:
            heard += worker.drain()
        worker.flush_nowait()
    for _ in range(2):
        heard += worker.drain()
    assert sent == received
    assert list(range(commands)) == heard


def test_a_closed_sampler_is_noticed(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Sending ends in BrokenPipeError though the ring has room, and reading in EOFError."""
    worker, sampler = ends
    sampler.close()
    with pytest.raises(BrokenPipeError):
        worker.put_nowait(large(0))
    with pytest.raises(EOFError):
        worker.get(timeout=5)


def _die_while_sending(connection: Any, memory: RingMemory) -> None:
    writer = RingWriter(memory)
    channel = PipeChannel(connection, writer=writer)
    for value in range(2):
        channel.put_nowait(large(value))

    made = channel.lend(2 * LARGE)
    assert made is not None
    made[:LARGE] = large(77).data
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_worker_that_dies_while_it_writes(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """What it had announced is read, though it is gone; the message that it was making is none."""
    monkeypatch.setattr(shared_ring, "RING_BYTES", 5 * LARGE)
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=True)
    memory = RingMemory.create()
    process = context.Process(target=_die_while_sending, args=(theirs, memory))
    process.start()
    theirs.close()
    process.join()
    assert -signal.SIGKILL == process.exitcode
    sampler = PipeChannel(ours, reader=RingReader(memory))
    assert [0, 1] == values([sampler.get(timeout=5), sampler.get(timeout=5)])
    with pytest.raises(EOFError):
        sampler.get(timeout=5)
    sampler.close()


def lent(channel: PipeChannel, value: int, size: int = LARGE) -> Any:
    """Return what `large` does, made in memory that the channel lends."""
    array = lent_array((size,), np.dtype(np.uint8), channel.lend)
    array[:] = value
    return array


def test_what_was_made_in_the_ring_is_sent_from_there(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """It is not copied into the ring once more, which has room for three; whole, or in parts that were cut from it."""
    worker, sampler = ends
    for _ in range(3):
        for value in range(3):
            array = lent(worker, value)
            assert array.base is not None
            worker.put_nowait(array if value else [array[: LARGE // 2], b"between", array[LARGE // 2 :]])
            assert not worker.has_unsent
            del array
        halves, *others = sampler.drain()
        assert [0, b"between", 0] == [halves[0][0], halves[1], halves[2][-1]]
        assert not np.concatenate([halves[0], halves[2]]).any()
        assert [1, 2] == values(others)
        del halves, others
        with pytest.raises(queue.Empty):
            worker.get_nowait()


def test_what_is_held_is_not_lent_again(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Neither before it is sent, nor on its way, nor after it came: only once both sides have let it go."""
    worker, sampler = ends
    first = lent(worker, 1)
    second = lent(worker, 2)
    worker.put_nowait(second)
    others = [lent(worker, value) for value in (3, 4)]
    assert [True, False] == [other.base is not None for other in others], "a ring of a megabyte holds three of these"
    assert [1, 2, 3, 4] == values([first, second, *others])
    assert [2] == values(list(sampler.drain()))
    assert lent(worker, 5).base is None, "the first one is held, and nothing behind it counts as free"
    del first, second, others
    assert lent(worker, 6).base is not None


def test_where_the_ring_is_full_the_pipe_takes_it(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """What lies in the ring, too, where the rest of its message has no room there."""
    worker, sampler = ends
    array = lent(worker, 1, 600_000)
    worker.put_nowait([array, large(2), large(3)])
    array[:] = 1
    assert worker.has_unsent
    found: list[Any] = []
    while not found:
        worker.flush_nowait()
        found = list(sampler.drain())
    assert [1, 2, 3] == [int(part[0]) for part in found[0]]
    assert all((part == part[0]).all() for part in found[0])


def test_a_channel_without_a_ring_lends_nothing() -> None:
    """Nor one for what is too small to be worth it, or too large."""
    one, other = Pipe(duplex=True)
    with other:
        channel = PipeChannel(one)
        assert channel.lend(LARGE) is None
        channel.close()


@pytest.mark.parametrize(("size", "lends"), [(999, False), (1000, True), (RING_BYTES, True), (RING_BYTES + 1, False)])
def test_what_is_lent(ends: tuple[PipeChannel, PipeChannel], size: int, *, lends: bool) -> None:
    """What is worth the ring, and fits."""
    assert lends == (ends[0].lend(size) is not None)
