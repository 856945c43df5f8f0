"""Where a worker's process begins: its channel, its crash box, and the loop that carries messages to and fro."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import setproctitle

from rollout_cli.errors import UserCodeError
from rollout_cli.loading import first_line, traceback_text
from rollout_cli.samplers.channel import Channel
from rollout_cli.samplers.crash_box import CrashBox
from rollout_cli.samplers.messages import Exit, Failed, Start
from rollout_cli.samplers.worker_loop import WorkerLoop


@dataclass(frozen=True, slots=True)
class Birth:
    """The first message to a worker's process: the surroundings that it shares with its sampler.

    Attributes:
        worker: Its number.
        title: What its process is called in `ps` and `top`.
        factory: The pickled WorkerFactory.
        folder: The working folder; None where the sampler's was deleted.
        argv: `sys.argv`.
        path: `sys.path`.
        environment: The environment variables.
    """

    worker: int
    title: str
    factory: bytes
    folder: str | None
    argv: list[str]
    path: list[str]
    environment: dict[str, str]


def worker_main(channel_descriptor: int, box_descriptor: int) -> None:
    """Run one worker until its sampler lets it exit or is gone.

    Args:
        channel_descriptor: Its end of a socket pair.
        box_descriptor: The file of its crash box.
    """
    box = CrashBox(box_descriptor)
    box.catch_signals()
    code = 0
    try:
        _run(Channel(socket.socket(fileno=channel_descriptor)), box)
    except (EOFError, ConnectionError):
        pass  # The sampler gave the worker up, or is gone.
    except BaseException as error:  # noqa: BLE001  SystemExit of user code among them.
        box.write_story("".join(traceback.format_exception(error)))
        code = _exit_code(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The user's code may have put anything in its place.
            stream.flush()
    os._exit(code)  # Threads that user code left running must not keep the process alive.


def _run(channel: Channel, box: CrashBox) -> None:
    birth = _next(channel)
    _take_surroundings(birth)
    try:
        factory = pickle.loads(birth.factory)  # noqa: S301  It was pickled by the sampler's own process.
    except Exception as error:  # noqa: BLE001  It is the user's code that could not be imported.
        _refuse(channel, birth.worker, error)
        return
    loop = WorkerLoop(factory, birth.worker, box)
    _carry_messages(channel, loop)
    loop.close()


def _refuse(channel: Channel, worker: int, error: Exception) -> None:
    """Answer each `Start` with the error of a worker that cannot be built, until the process is ended."""
    message = f"the worker class, its arguments or its set-up cannot be unpickled: {first_line(error)}"
    hint = "they must be importable in worker processes, too"
    refusal = UserCodeError(message, hint=hint, details=traceback_text(error))
    while True:
        command = _next(channel)
        if isinstance(command, Start):
            channel.put_nowait(Failed(worker, command.generation, refusal))
        elif isinstance(command, Exit):
            return


def _take_surroundings(birth: Birth) -> None:
    setproctitle.setproctitle(birth.title)
    os.environ.clear()
    os.environ.update(birth.environment)
    sys.argv[:], sys.path[:] = birth.argv, birth.path
    with contextlib.suppress(OSError):  # It was deleted meanwhile.
        os.chdir(birth.folder or os.curdir)


def _carry_messages(channel: Channel, loop: WorkerLoop) -> None:
    while not loop.ended:
        commands = _commands(channel, wait=loop.idle)
        # The loop never runs ahead of a sampler that is slow to read, but hears commands all the same.
        if channel.has_room or commands:
            for message in loop.turn(commands):
                channel.put_nowait(message)
        else:
            channel.wait()
        channel.flush_nowait()


def _commands(channel: Channel, *, wait: bool) -> list[Any]:
    """Return all messages that have arrived, at least one with `wait`."""
    commands = [_next(channel)] if wait else []
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


def _exit_code(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)
