"""PipeChannel over real pipes: whole messages, in order, without ever waiting for the other end."""

from __future__ import annotations

import os
import queue
import random
import select
import socket
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from rollout_cli.samplers.channel import PipeChannel

PIPE_BYTES = 1 << 15
"""The kernel doubles it; small, so that messages do not fit."""


@pytest.fixture
def ends() -> Iterator[tuple[PipeChannel, PipeChannel]]:
    """Give both ends of a small pipe."""
    one, other = Pipe(duplex=True)
    for end in (one, other):
        _shrink(end)
    channels = PipeChannel(one), PipeChannel(other)
    yield channels
    for channel in channels:
        channel.close()


def _shrink(end: Connection[Any, Any]) -> None:
    with socket.socket(fileno=os.dup(end.fileno())) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIPE_BYTES)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIPE_BYTES)


def messages_of_many_sizes(count: int) -> list[Any]:
    """Return messages from a few bytes to a megabyte, some with arrays."""
    rng = random.Random(1)
    sizes = [rng.choice([0, 1, 7, 100, 5000, 70_000, 300_000]) for _ in range(count)]
    return [(at, np.full(size, at % 251, np.uint8) if at % 2 else bytes(size)) for at, size in enumerate(sizes)]


def assert_same(expected: Any, actual: Any) -> None:
    assert expected[0] == actual[0]
    assert bytes(memoryview(expected[1])) == bytes(memoryview(actual[1]))


def test_messages_of_every_size_come_in_order(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Sent while the other end reads now and then, every message arrives whole and in order."""
    sender, receiver = ends
    rng = random.Random(2)
    messages = messages_of_many_sizes(120)
    waiting = list(messages)
    received: list[Any] = []
    while len(received) < len(messages):
        if waiting and rng.random() < 0.5:
            try:
                sender.put_nowait(waiting[0])
                waiting.pop(0)
            except queue.Full:
                assert sender.has_unsent
        sender.flush_nowait()
        if rng.random() < 0.5:
            received += receiver.drain()
    for expected, actual in zip(messages, received, strict=True):
        assert_same(expected, actual)


def test_a_half_sent_message_is_not_there_yet(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Reading a message that is only half in the pipe gives Empty at once, and the whole message later."""
    sender, receiver = ends
    big = bytes(1 << 20)
    sender.put_nowait(big)
    assert sender.has_unsent
    with pytest.raises(queue.Empty):
        receiver.get_nowait()
    assert [] == list(receiver.drain())
    while not sender.flush_nowait():
        with pytest.raises(queue.Empty):
            receiver.get_nowait()
    assert big == receiver.get_nowait()


def test_a_full_channel_takes_nothing_more(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """While a message waits, another one is refused and not sent; it is taken once the first one is gone."""
    sender, receiver = ends
    sender.put_nowait(bytes(1 << 18))
    with pytest.raises(queue.Full):
        sender.put_nowait("refused")
    received: list[Any] = []
    while not sender.flush_nowait():
        received += receiver.drain()
    sender.put_nowait("taken")
    while len(received) < 2:
        received.append(receiver.get(timeout=5))
    assert [bytes(1 << 18), "taken"] == received


def test_a_channel_may_keep_more(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """A channel that keeps n bytes takes messages until more than n wait, and is then as full as any other."""
    sender, receiver = PipeChannel(ends[0]._connection, keeps=1 << 20), ends[1]
    sent = 0
    while not sender.is_full:
        sender.put_nowait(bytes(1 << 18))
        sent += 1
    assert 4 < sent < 8
    with pytest.raises(queue.Full):
        sender.put_nowait("refused")
    received: list[Any] = []
    while not sender.flush_nowait():
        received += receiver.drain()
    assert [bytes(1 << 18)] * sent == [*received, *receiver.drain(), *receiver.drain()]
    assert not sender.is_full


def test_a_wider_pipe_takes_more_at_once() -> None:
    """What the kernel takes ahead grows, as far as it may."""
    one, other = Pipe(duplex=True)
    sender, receiver = PipeChannel(one), PipeChannel(other)
    waiting = []
    for _ in range(2):
        sender.put_nowait(bytes(1 << 23))
        waiting.append(sender._unsent_bytes)
        while not sender.flush_nowait():
            list(receiver.drain())
        sender.widen()
    assert waiting[1] < waiting[0]
    sender.close()
    receiver.close()


def test_messages_wait_behind_each_other(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """`put_behind` takes any number of messages and keeps their order."""
    sender, receiver = ends
    for at in range(500):
        sender.put_behind((at, bytes(200)))
    received: list[Any] = []
    while len(received) < 500:
        sender.flush_nowait()
        received += receiver.drain()
    assert list(range(500)) == [message[0] for message in received]


def test_get_waits_for_a_message(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """`get` returns a message that is sent later, by a thread, though it is larger than the pipe."""
    sender, receiver = ends
    big = np.arange(200_000)

    def send() -> None:
        sender.put_nowait(big)
        while sender.has_unsent:
            sender.wait()

    thread = threading.Thread(target=send)
    thread.start()
    got = receiver.get(timeout=30)
    thread.join()
    assert big.tolist() == got.tolist()


def test_get_gives_up_after_its_timeout(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Without a message, `get` raises Empty when its time is over; with none to spend, at once."""
    for timeout in (0.0, 0.02):
        with pytest.raises(queue.Empty):
            ends[1].get(timeout=timeout)


def test_both_ends_may_be_full_at_once(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Two ends that both sent more than the pipe holds read each other's messages all the same."""
    one, other = ends
    one.put_nowait(("from one", bytes(1 << 19)))
    other.put_nowait(("from other", bytes(1 << 19)))
    got: dict[str, int] = {}
    while len(got) < 2:
        for end in ends:
            end.flush_nowait()
            got |= {name: len(data) for name, data in end.drain()}
    assert {"from one": 1 << 19, "from other": 1 << 19} == got


def test_the_end_comes_after_the_last_message(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """What was sent before the other end closed is read; then comes EOFError, again and again."""
    sender, receiver = ends
    for at in range(20):
        sender.put_nowait(at)
    sender.close()
    assert list(range(20)) == [receiver.get(timeout=5) for _ in range(20)]
    for _ in range(2):
        with pytest.raises(EOFError):
            receiver.get(timeout=5)


def test_half_a_message_and_the_end_is_the_end(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """A sender that dies in the middle of a message leaves the whole ones, and no piece of the last one."""
    sender, receiver = ends
    sender.put_nowait("whole")
    sender.put_nowait(bytes(1 << 20))
    sender.close()
    assert "whole" == receiver.get(timeout=5)
    with pytest.raises(EOFError):
        receiver.get(timeout=5)


def test_writing_to_a_closed_end_breaks(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """A message to nobody raises BrokenPipeError."""
    sender, receiver = ends
    receiver.close()
    with pytest.raises(BrokenPipeError):
        sender.put_nowait("nobody")


def test_a_selector_can_watch_it(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Its descriptor is readable exactly while there is something to read, and `readable` says the same."""
    sender, receiver = ends
    poller = select.poll()
    poller.register(receiver.fileno(), select.POLLIN)
    states = [(bool(poller.poll(0)), receiver.readable())]
    sender.put_nowait("something")
    states.append((bool(poller.poll(0)), receiver.readable()))
    receiver.get_nowait()
    states.append((bool(poller.poll(0)), receiver.readable()))
    assert [(False, False), (True, True), (False, False)] == states


def test_a_message_that_was_read_ahead_is_readable(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """Two small messages come with one reading; the second one counts as readable though the pipe is empty."""
    sender, receiver = ends
    sender.put_nowait("first")
    sender.put_nowait("second")
    assert "first" == receiver.get_nowait()
    assert receiver.readable()
    assert "second" == receiver.get_nowait()


def test_received_arrays_have_their_own_memory(ends: tuple[PipeChannel, PipeChannel]) -> None:
    """A message that is kept does not change when later ones are read over the same buffer."""
    sender, receiver = ends
    sender.put_nowait(np.full(100, 1))
    first = receiver.get_nowait()
    for value in range(2, 30):
        sender.put_nowait(np.full(100, value))
        receiver.get(timeout=5)
    assert {1} == set(first.tolist())
