"""WorkerSetup: the first message to a worker in a separate process, on this machine or another."""

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
    """State of the sampler's process that a worker's process copies; the first message to the worker."""

    worker: int
    title: str  # The name of its process in `ps` and `top`.
    factory: bytes  # The pickled WorkerFactory.
    folder: str | None  # The working folder; None if the sampler's was deleted.
    argv: list[str]
    path: list[str]
    environment: dict[str, str]

    @classmethod
    def of(cls, worker: int, title: str, factory: bytes) -> Self:
        """Return the setup with the state of this process."""
        try:
            folder = str(Path.cwd())
        except FileNotFoundError:
            folder = None
        path = [entry or folder or os.curdir for entry in sys.path]
        return cls(worker, title, factory, folder, list(sys.argv), path, {**WORKER_VARIABLES, **os.environ})

    def load_factory(self) -> WorkerFactory:
        """Return the factory; raise UserCodeError if it cannot be unpickled."""
        with reporting(
            UserCodeError,
            "the worker class, its arguments or worker_setup cannot be unpickled in the worker",
            code="unpickle-failed",
            hint="make their modules importable in worker processes",
        ):
            # Pickled by the sampler's own process.
            factory: WorkerFactory = pickle.loads(self.factory)  # noqa: S301
        return factory

    def enter_folder(self) -> None:
        """Change to the sampler's working folder, if it exists."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder or os.curdir)
