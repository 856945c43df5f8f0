"""NewFile: what is written is handed to the disk while the file grows, and not kept in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rollout_cli.dataset import files
from rollout_cli.dataset.files import FileStore

WINDOW = 1000
Advice = tuple[int, int, int]


@pytest.fixture
def advice(monkeypatch: pytest.MonkeyPatch) -> list[Advice]:
    """What the system was advised: beginning and end of a stretch of the file, and what to do with it."""
    given: list[Advice] = []
    monkeypatch.setattr(files, "_WINDOW", WINDOW)
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, start, size, what: given.append((start, start + size, what)))
    return given


def test_each_stretch_is_begun_and_then_dropped(tmp_path: Path, advice: list[Advice]) -> None:
    """Twice: at first its bytes are not on the disk, and only begin to be written. The file has all of them."""
    path = tmp_path / "a"
    with FileStore().create(path) as file:
        for at in range(45):
            file.write(bytes([at]) * 100)
        file.finish()
    assert [(0, 1000), (0, 2000), (1000, 3000), (2000, 4000)] == [(start, stop) for start, stop, _ in advice]
    assert {os.POSIX_FADV_DONTNEED} == {what for _, _, what in advice}
    assert b"".join(bytes([at]) * 100 for at in range(45)) == path.read_bytes()


def test_a_small_file_stays_in_memory(tmp_path: Path, advice: list[Advice]) -> None:
    """Who reads it next finds it there."""
    with FileStore().create(tmp_path / "a") as file:
        file.write(b"x" * (WINDOW - 1))
        file.finish()
    assert [] == advice


def test_nothing_is_handed_on_of_a_discarded_file(tmp_path: Path, advice: list[Advice]) -> None:
    """Its descriptor is closed; a Parquet writer writes on nevertheless."""
    file = FileStore().create(tmp_path / "a")
    file.discard()
    file.write(b"x" * (2 * WINDOW))
    assert [] == advice


@pytest.mark.parametrize("lacking", [True, False], ids=["no such call", "refused"])
def test_a_system_that_takes_no_advice_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lacking: bool
) -> None:
    """One of macOS has no such call, and a file system may refuse it."""

    def refuse(*_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(files, "_WINDOW", WINDOW)
    if lacking:
        monkeypatch.delattr(os, "posix_fadvise")
    else:
        monkeypatch.setattr(os, "posix_fadvise", refuse)
    with FileStore().create(tmp_path / "a") as file:
        file.write(b"x" * (3 * WINDOW))
        assert 3 * WINDOW == file.finish()
    assert b"x" * (3 * WINDOW) == (tmp_path / "a").read_bytes()


def test_the_system_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real call, of a file of many windows."""
    monkeypatch.setattr(files, "_WINDOW", 64 << 10)
    content = os.urandom(1 << 20)
    with FileStore().create(tmp_path / "a") as file:
        for start in range(0, len(content), 10_000):
            file.write(content[start : start + 10_000])
        file.finish()
    assert content == (tmp_path / "a").read_bytes()
