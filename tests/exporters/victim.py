"""A program that exports and kills itself at a moment: `python -m tests.exporters.victim FOLDER`.

Each moment is a process of its own; then the export is tried again. It prints one line of JSON a moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rollout_cli.dataset import folder as folder_module
from rollout_cli.dataset.store import FileStore
from rollout_cli.exporters.columns import TIANSHOU
from rollout_cli.exporters.export import FORMATS, export
from rollout_cli.exporters.format import Export
from rollout_cli.exporters.source import MemoryEpisode
from tests.exporters.cases import SPECS, MemoryDataset, batch_of

MOMENTS = ("staged", "second episode", "written", "fsync", "rename", "never")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fragile(MemoryDataset):
    """Episodes, the second of which kills the process."""

    def __iter__(self) -> Iterator[MemoryEpisode]:
        for at, episode in enumerate(super().__iter__()):
            if at == 1:
                die()
            yield episode


def attempt(moment: str, path: Path) -> None:
    batch = batch_of(SPECS["box"])
    dataset = Fragile(batch) if moment == "second episode" else MemoryDataset(batch)

    def write(job: Export) -> None:
        if moment == "written":
            TIANSHOU.write(job)
        if moment in {"staged", "written"}:
            die()
        TIANSHOU.write(job)

    class DyingStore(FileStore):
        def before(self, operation: str, path: Path) -> None:
            if operation == moment:
                die()

    FORMATS["tianshou"] = replace(TIANSHOU, write=write)
    setattr(folder_module, "FileStore", DyingStore)  # noqa: B010 - the type checker knows no such name there
    export(dataset, "tianshou", path)


def main(folder: Path) -> None:
    for moment in MOMENTS:
        path = folder / moment / "exported.h5"
        child = os.fork()
        if child == 0:
            attempt(moment, path)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        left = [str(file.relative_to(path.parent)) for file in path.parent.rglob("*")]
        if moment != "never":
            export(MemoryDataset(batch_of(SPECS["box"])), "tianshou", path)
        files = [file.name for file in path.parent.iterdir()]
        sys.stdout.write(json.dumps([moment, os.waitstatus_to_exitcode(status), sorted(left), files]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
