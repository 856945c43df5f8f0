"""A place that cannot be written to is found before anything starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rollout_cli.dataset.room import check_room
from rollout_cli.errors import StorageError


class Usage(NamedTuple):
    free: int


def with_free(monkeypatch: pytest.MonkeyPatch, megabytes: int) -> list[Path]:
    """Let all disks have so much room; return the list of the places that are asked about."""
    asked: list[Path] = []

    def usage(place: Path) -> Usage:
        asked.append(place)
        return Usage(megabytes << 20)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked


def test_enough_room_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked of the nearest folder that is there."""
    asked = with_free(monkeypatch, 10_000)
    assert check_room(tmp_path / "a" / "b") is None
    assert [tmp_path] == asked


def test_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how much there is."""
    with_free(monkeypatch, 100)
    assert f"only 100 MB are free at {tmp_path}" == check_room(tmp_path / "out")


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With exit code 5."""
    with_free(monkeypatch, 3)
    with pytest.raises(StorageError, match="is full: 3 MB are free") as caught:
        check_room(tmp_path / "out")
    assert 5 == caught.value.exit_code


def denied(_place: Path, _mode: int) -> bool:
    return False


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of a disk that is read-only."""
    answer: Callable[[Path, int], bool] = denied
    monkeypatch.setattr(os, "access", answer)
    with pytest.raises(StorageError, match="cannot be written to"):
        check_room(tmp_path / "out")


def test_a_file_above_is_refused(tmp_path: Path) -> None:
    """It has no room for folders."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is no folder"):
        check_room(tmp_path / "file" / "out")
