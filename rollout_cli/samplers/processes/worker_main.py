"""worker_main: the entry point of a worker process, and the loop that transports its messages."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import traceback
from typing import Any

import setproctitle

from rollout_cli.samplers.processes.channel import OUTBOX_BYTES, Channel
from rollout_cli.samplers.processes.crash_box import CrashBox
from rollout_cli.samplers.worker_loop import WorkerLoop
from rollout_cli.samplers.worker_setup import WorkerSetup


def worker_main(channel_descriptor: int, box_descriptor: int) -> None:
    """Run one worker, given the descriptors of its channel and crash box, until its sampler ends it or dies."""
    box = CrashBox(box_descriptor)
    box.catch_signals()
    code = 0
    try:
        with socket.socket(fileno=channel_descriptor) as end:
            _run(Channel(end), box)
    except (EOFError, ConnectionError):
        pass  # The sampler closed the channel or died.
    except BaseException as error:  # noqa: BLE001  Includes SystemExit of user code.
        try:
            box.write_story("".join(traceback.format_exception(error)))
        except OSError as refusal:
            sys.stderr.write(
                f"a worker cannot report its error: user code closed its file descriptors ({refusal})\n"
            )
        code = 1
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            code = (error.code or 0) & 0xFF
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # User code may have replaced the stream.
            stream.flush()
    os._exit(code)  # Threads that user code left running must not keep the process alive.


def _run(channel: Channel, box: CrashBox) -> None:
    setup: WorkerSetup = _next(channel)
    setproctitle.setproctitle(setup.title)
    os.environ.clear()
    os.environ.update(setup.environment)
    sys.argv[:] = setup.argv
    sys.path[:] = setup.path
    setup.enter_folder()
    loop = WorkerLoop(setup.load_factory, setup.worker, box)
    while not loop.ended:
        commands = _commands(channel, wait=loop.idle)
        # The loop pauses while the sampler is slow to read, but still handles commands.
        if commands or channel.unsent_bytes <= OUTBOX_BYTES:
            for message in loop.turn(commands):
                channel.put_nowait(message)
        else:
            channel.wait()
        channel.flush_nowait()
    loop.close()


def _commands(channel: Channel, *, wait: bool) -> list[Any]:
    """Return all messages that have arrived; with `wait`, wait for at least one."""
    commands = []
    if wait:
        commands.append(_next(channel))
    with contextlib.suppress(queue.Empty):
        while True:
            commands.append(channel.get_nowait())
    return commands


def _next(channel: Channel) -> Any:
    """Wait for the next message and return it; unsent messages are sent meanwhile."""
    while True:
        with contextlib.suppress(queue.Empty):
            return channel.get_nowait()
        channel.wait()
        channel.flush_nowait()
