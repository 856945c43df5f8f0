"""Datasets that are broken in one way, and commands that are killed before a chosen change on disk."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from tests.helpers.processes import ROOT, running

SMALL = ("--segment-bytes", "20000")
"""Segments of some 300 steps."""


def data_files(path: Path) -> list[Path]:
    return sorted((path / "data").rglob("file-*.parquet"))


def episode_files(path: Path) -> list[Path]:
    return sorted((path / "meta" / "episodes").rglob("file-*.parquet"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _flip(path: Path) -> None:
    """Change one byte in the middle of the first column's pages."""
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


def _file_for_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no folder")


def _lose_last(path: Path) -> None:
    data_files(path)[-1].unlink()
    episode_files(path)[-1].unlink()


BREAKS: dict[str, Callable[[Path], object]] = {
    "the last segment is missing": _lose_last,
    "the last episodes file is missing": lambda path: episode_files(path)[-1].unlink(),
    "all episodes files are missing": lambda path: shutil.rmtree(path / "meta" / "episodes"),
    "a data file in the middle is missing": lambda path: data_files(path)[1].unlink(),
    "the last data file is cut short": lambda path: os.truncate(data_files(path)[-1], 1000),
    "a byte of the second data file is flipped": lambda path: _flip(data_files(path)[1]),
    "a data file is a FIFO": lambda path: _fifo(data_files(path)[0]),
    "an episodes file is a FIFO": lambda path: _fifo(episode_files(path)[0]),
    "info.json is a FIFO": lambda path: _fifo(path / "meta" / "info.json"),
    "stats.json is a FIFO": lambda path: _fifo(path / "meta" / "stats.json"),
    "info.json is cut short": lambda path: os.truncate(path / "meta" / "info.json", 100),
    "a folder has an episodes file's name": lambda path: (
        episode_files(path)[0].parent / "file-00099.parquet"
    ).mkdir(),
    "data is a file": lambda path: _file_for_folder(path / "data"),
}
"""What is done to a whole dataset of several segments."""


def contents(folder: Path) -> Counter[str]:
    """Return the hashes of all Parquet files at any depth, hidden folders too."""
    files = [path for path in folder.rglob("file-*.parquet") if path.is_file()]
    return Counter(sha256(path.read_bytes()).hexdigest() for path in files)


def killed(note: Path, change: int, *words: str | Path, kind: str = "any") -> bool:
    """Run `rollout` until it kills itself before this change on disk; return whether it came so far.

    With 0 it is not killed, and the note says how many changes there were.
    """
    note.unlink(missing_ok=True)
    program = [sys.executable, "-m", "tests.helpers.victim", str(note), str(change), kind]
    with running([str(word) for word in words], cwd=ROOT, program=program) as run:
        ran = run.end()
    assert ran.code in (0, -signal.SIGKILL), ran.said
    return ran.code != 0
