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
from pathlib import Path
from typing import Any, Self

import setproctitle

from rollout_cli.errors import UserCodeError
from rollout_cli.loading import reporting
from rollout_cli.samplers.channel import OUTBOX_BYTES, Channel
from rollout_cli.samplers.crash_box import CrashBox
from rollout_cli.samplers.fork_server import ONE_THREAD
from rollout_cli.samplers.messages import Exit, Failed, Start
from rollout_cli.samplers.worker_loop import WorkerLoop
from rollout_cli.workers.factory import WorkerFactory


@dataclass(frozen=True, slots=True)
class Birth:
    """The first message to a worker's process: the surroundings that it shares with its sampler."""

    worker: int
    title: str  # What its process is called in `ps` and `top`.
    factory: bytes  # The pickled WorkerFactory.
    folder: str | None  # The working folder; None where the sampler's was deleted.
    argv: list[str]
    path: list[str]
    environment: dict[str, str]

    @classmethod
    def of(cls, worker: int, title: str, factory: bytes) -> Self:
        """Return the surroundings of this process."""
        try:
            folder = str(Path.cwd())
        except FileNotFoundError:
            folder = None
        path = [entry or folder or os.curdir for entry in sys.path]
        return cls(worker, title, factory, folder, list(sys.argv), path, {**ONE_THREAD, **os.environ})

    def load_factory(self) -> WorkerFactory:
        """Return the factory; UserCodeError where its pickle cannot be loaded."""
        what = "the worker class, its arguments or its set-up cannot be unpickled"
        with reporting(UserCodeError, what, hint="they must be importable in worker processes, too"):
            factory: WorkerFactory = pickle.loads(self.factory)  # noqa: S301  Pickled by the sampler's own process.
        return factory

    def enter_folder(self) -> None:
        """Work in the sampler's folder, if it is there."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder or os.curdir)


def worker_main(channel_descriptor: int, box_descriptor: int) -> None:
    """Run one worker, with its end of a socket pair and its crash box, until its sampler lets it exit or is gone."""
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
            sys.stderr.write(f"a worker cannot report why it ends: user code closed its file descriptors ({refusal})\n")
        asked = error.code if isinstance(error, SystemExit) else 1
        code = asked & 0xFF if isinstance(asked, int) else int(asked is not None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The user's code may have put anything in its place.
            stream.flush()
    os._exit(code)  # Threads that user code left running must not keep the process alive.


def _run(channel: Channel, box: CrashBox) -> None:
    birth = _next(channel)
    setproctitle.setproctitle(birth.title)
    os.environ.clear()
    os.environ.update(birth.environment)
    sys.argv[:], sys.path[:] = birth.argv, birth.path
    birth.enter_folder()
    try:
        factory = birth.load_factory()
    except UserCodeError as refusal:
        # Each `Start` gets this answer.
        while not isinstance(command := _next(channel), Exit):
            if isinstance(command, Start):
                channel.put_nowait(Failed(birth.worker, command.generation, refusal))
        return
    loop = WorkerLoop(factory, birth.worker, box)
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
