"""Channel: messages come through whole, in order and bit for bit, and neither end ever waits for the other."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.memory import ReusedMemory
from rollout_cli.samplers.processes.channel import OUTBOX_BYTES, Channel

Ends = tuple[Channel, Channel]


def channel_pair() -> Ends:
    left, right = socket.socketpair()
    return Channel(left), Channel(right)


@pytest.fixture
def ends() -> Iterator[Ends]:
    left, right = channel_pair()
    with closing(left), closing(right):
        yield left, right


def exchange(sender: Channel, receiver: Channel, count: int) -> list[Any]:
    """Return `count` messages, driving both ends in turn."""
    received: list[Any] = []
    while len(received) < count:
        sender.flush_nowait()
        try:
            received.append(receiver.get_nowait())
        except queue.Empty:
            assert sender.unsent_bytes, f"only {len(received)} of {count} messages arrived"
    return received


MESSAGES = [None, "text \udcff", {"a": (1, 2.5, b"x" * 100_000)}, range(3, 9)]


def test_messages_come_in_order(ends: Ends) -> None:
    """What goes in at one end comes out at the other, whichever kind of value it is."""
    for message in MESSAGES:
        ends[0].put_nowait(message)
    assert MESSAGES == exchange(ends[0], ends[1], len(MESSAGES))
    with pytest.raises(queue.Empty):
        ends[1].get_nowait()


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 60_000), st.sampled_from(["u1", "?", "f8", "i2"])),
            max_size=6,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_arrays_come_bit_for_bit(shapes: list[list[tuple[int, str]]]) -> None:
    """Arrays of any length and type arrive as they were sent, aligned and writable."""
    sent = [
        [
            np.frombuffer(np.random.default_rng(at).bytes(n * np.dtype(t).itemsize), t)
            for at, (n, t) in enumerate(arrays)
        ]
        for arrays in shapes
    ]
    left, right = channel_pair()
    with closing(left), closing(right):
        for arrays in sent:
            left.put_nowait([array.copy() for array in arrays])
        received = exchange(left, right, len(sent))
    for expected, actual in zip(sent, received, strict=True):
        assert [(a.dtype, a.tobytes()) for a in expected] == [(a.dtype, a.tobytes()) for a in actual]
        assert all(array.flags.aligned and array.flags.writeable for array in actual)


def test_sending_never_waits(ends: Ends) -> None:
    """Nobody reads: all is taken, and the rest waits in the outbox."""
    block = np.zeros(OUTBOX_BYTES // 4, np.uint8)
    sent = 0
    while ends[0].unsent_bytes <= OUTBOX_BYTES:
        ends[0].put_nowait(block)
        sent += 1
    assert sent >= 4
    assert ends[0].unsent_bytes
    received = exchange(ends[0], ends[1], sent)
    assert [block.nbytes] * sent == [array.nbytes for array in received]
    assert 0 == ends[0].unsent_bytes


def test_waiting_ends_with_a_message_or_with_room(ends: Ends) -> None:
    """`wait` returns when something can be read, and when unsent bytes can be written."""
    ends[0].put_nowait("here")
    ends[1].wait()
    assert "here" == ends[1].get_nowait()
    large = np.ones(16 << 20, np.uint8)
    ends[0].put_nowait(large)
    received: list[Any] = []
    reader = threading.Thread(target=lambda: received.append(blocking_get(ends[1])))
    reader.start()
    while ends[0].unsent_bytes:
        ends[0].wait()
        ends[0].flush_nowait()
    reader.join()
    assert large.tobytes() == received[0].tobytes()


def blocking_get(channel: Channel) -> Any:
    while True:
        try:
            return channel.get_nowait()
        except queue.Empty:
            channel.wait()


def test_the_end_comes_after_the_last_message(ends: Ends) -> None:
    """Whole messages of an end that was closed are still read; half a message is not."""
    ends[0].put_nowait("first")
    ends[0].put_nowait(np.zeros(16 << 20, np.uint8))
    ends[0].close()
    assert "first" == ends[1].get_nowait()
    with pytest.raises(EOFError):
        ends[1].get_nowait()


def test_a_closed_other_end_is_a_connection_error(ends: Ends) -> None:
    """Also where it was closed with messages unread."""
    ends[0].put_nowait("unread")
    ends[1].close()
    with pytest.raises(ConnectionError):
        ends[0].put_nowait("more")


@pytest.mark.parametrize(
    "garbage", [b"hello world, this is no message at all", b"\xa7ro\xf2" + bytes(12), bytes(16)]
)
def test_garbage_is_seen(garbage: bytes) -> None:
    """Bytes that are no frame are refused at their head."""
    left, right = socket.socketpair()
    with left, closing(Channel(right)) as channel:
        left.sendall(garbage)
        with pytest.raises(ValueError, match="not a message"):
            channel.get_nowait()


def test_classes_of_the_main_script_travel_whole(ends: Ends) -> None:
    """A class that the other process cannot import arrives all the same: an environment's space may be one."""

    class Local:
        value = 7

    ends[0].put_nowait(Local())
    assert 7 == ends[1].get_nowait().value


def test_memory_is_used_again_when_its_last_array_dies() -> None:
    """Not while any view of a message lives, however it was made, and never more is kept than was asked for."""
    memory = ReusedMemory(keep=1 << 20)
    view = memory.take(600_000)
    array = np.frombuffer(view, np.uint8)[100:200].reshape(2, 50)
    address = array.ctypes.data - 100
    del view
    other = memory.take(600_000)
    assert address != np.frombuffer(other, np.uint8).ctypes.data
    del array
    again = np.frombuffer(memory.take(580_000), np.uint8)
    assert address == again.ctypes.data
    del again, other
    assert 600_000 <= sum(map(len, memory._free)) <= 1 << 20


def test_memory_is_given_up_by_whoever_takes_some() -> None:
    """The oldest go where there is no room; a block that comes back to full memory goes itself, and moves no other."""
    memory = ReusedMemory(keep=1 << 20)
    old, new, large = (memory.take(size) for size in (300_000, 200_000, 900_000))
    del old
    del new
    kept = list(map(len, memory._free))
    assert 2 == len(kept)
    del large
    assert kept == list(map(len, memory._free))
    small = memory.take(100_000)
    assert kept == list(map(len, memory._free))
    large = memory.take(700_000)
    assert kept[1:] == list(map(len, memory._free))
    del small, large
    assert sum(map(len, memory._free)) <= 1 << 20
