"""Links: one way to a sampler for a worker's shell, over a pipe or over two queues."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rollout_cli.samplers.channel import PipeChannel
from rollout_cli.samplers.links import Link, PipeLink, QueueLink, link

Ends = tuple[Link, Any, Any]
"""The worker's link; how the sampler sends; how it receives with a timeout."""


@pytest.fixture(params=["pipe", "queues"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Give a link and the sampler's side of it."""
    if request.param == "pipe":
        ours, theirs = multiprocessing.Pipe(duplex=True)
        sampler, worker = PipeChannel(ours), PipeChannel(theirs)
        yield link(worker, worker), sampler.put_behind, sampler.get
        sampler.close()
        worker.close()
    else:
        inbox: Any = queue.Queue()
        outbox: Any = queue.Queue(maxsize=1)
        inbox.close = outbox.close = lambda: None
        yield link(inbox, outbox), inbox.put, outbox.get


def test_the_kind_of_channel_decides() -> None:
    """A PipeChannel gives a link that can tell when it has room; anything else is taken for queues."""
    ours, theirs = multiprocessing.Pipe(duplex=True)
    channel = PipeChannel(ours)
    assert [PipeLink, QueueLink] == [type(link(channel, channel)), type(link(queue.Queue(), queue.Queue()))]
    channel.close()
    theirs.close()


def test_polling_never_waits(ends: Ends) -> None:
    """Without a command there is None; with one there it is, once."""
    worker, send, _ = ends
    assert worker.poll() is None
    send("command")
    assert "command" == worker.wait(keeping=False)
    assert worker.poll() is None


def test_waiting_takes_a_command_that_comes_later(ends: Ends) -> None:
    """An idle worker wakes with the command."""
    worker, send, _ = ends
    thread = threading.Timer(0.05, send, ["command"])
    thread.start()
    assert "command" == worker.wait(keeping=False)
    thread.join()


def test_a_worker_that_keeps_messages_is_told_when_to_try_again(ends: Ends) -> None:
    """With a message that was refused, waiting ends without a command once there is room."""
    worker, _, receive = ends
    kept = 0
    while not kept:
        try:
            worker.put_nowait(bytes(1 << 20))
        except queue.Full:
            kept = 1
    reader = threading.Thread(target=lambda: receive(timeout=30))
    reader.start()
    while kept:
        assert worker.wait(keeping=True) is None
        try:
            worker.put_nowait("kept")
            kept = 0
        except queue.Full:
            continue
    reader.join()
    assert "kept" == receive(timeout=30)
