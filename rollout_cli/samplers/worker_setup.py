"""WorkerSetup: what a worker in a process of its own, here or on another machine, is started with."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rollout_cli.cores import WORKER_VARIABLES
from rollout_cli.errors import UserCodeError
from rollout_cli.sources.loading import reporting
from rollout_cli.workers.factory import WorkerFactory


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker's process shares with its sampler's; the first message to it."""

    worker: int
    title: str  # What its process is called in `ps` and `top`.
    factory: bytes  # The pickled WorkerFactory.
    folder: str | None  # The working folder; None where the sampler's was deleted.
    argv: list[str]
    path: list[str]
    environment: dict[str, str]

    @classmethod
    def of(cls, worker: int, title: str, factory: bytes) -> Self:
        """Return what a worker shares with this process."""
        try:
            folder = str(Path.cwd())
        except FileNotFoundError:
            folder = None
        path = [entry or folder or os.curdir for entry in sys.path]
        return cls(worker, title, factory, folder, list(sys.argv), path, {**WORKER_VARIABLES, **os.environ})

    def load_factory(self) -> WorkerFactory:
        """Return the factory; UserCodeError where its pickle cannot be loaded."""
        with reporting(
            UserCodeError,
            "the worker class, its arguments or its set-up cannot be unpickled",
            code="unpickle-failed",
            hint="they must be importable in worker processes, too",
        ):
            # Pickled by the sampler's own process.
            factory: WorkerFactory = pickle.loads(self.factory)  # noqa: S301
        return factory

    def enter_folder(self) -> None:
        """Work in the sampler's folder, if it is there."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder or os.curdir)
