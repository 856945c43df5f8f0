"""Where a worker's process begins: its channel, its crash box, and the loop that carries messages."""

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
    """Run one worker, with its end of a socket pair and its crash box, until its sampler ends it or dies."""
    box = CrashBox(box_descriptor)
    box.catch_signals()
    code = 0
    try:
        with socket.socket(fileno=channel_descriptor) as end:
            _run(Channel(end), box)
    except (EOFError, ConnectionError):
        pass  # The sampler gave the worker up, or is gone.
    except BaseException as error:  # noqa: BLE001  SystemExit of user code among them.
        try:
            box.write_story("".join(traceback.format_exception(error)))
        except OSError as refusal:
            sys.stderr.write(
                f"a worker cannot report why it ends: user code closed its file descriptors ({refusal})\n"
            )
        code = 1
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            code = (error.code or 0) & 0xFF
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The user's code may have put anything in its place.
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
        # The loop never runs ahead of a sampler that is slow to read, but hears commands all the same.
        if commands or channel.unsent_bytes <= OUTBOX_BYTES:
            for message in loop.turn(commands):
                channel.put_nowait(message)
        else:
            channel.wait()
        channel.flush_nowait()
    loop.close()


def _commands(channel: Channel, *, wait: bool) -> list[Any]:
    """Return all messages that have arrived, at least one with `wait`."""
    commands = []
    if wait:
        commands.append(_next(channel))
    with contextlib.suppress(queue.Empty):
        while True:
            commands.append(channel.get_nowait())
    return commands


def _next(channel: Channel) -> Any:
    """Return the next message, waiting for it; unsent messages go on being sent meanwhile."""
    while True:
        with contextlib.suppress(queue.Empty):
            return channel.get_nowait()
        channel.wait()
        channel.flush_nowait()
