"""The folder of a dataset: what may be replaced, one writer at a time, odd names and special files."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from rollout_cli.dataset import folder as folder_module
from rollout_cli.dataset.committed import read_committed
from rollout_cli.dataset.folder import FolderLock, check_folder, check_free_space, has_no_dataset, staged
from rollout_cli.dataset.layout import LOCK_NAME, info_path, read_info
from rollout_cli.dataset.store import FileStore
from rollout_cli.errors import DatasetExistsError, DatasetFormatError, DatasetLockedError, StorageError
from tests.helpers.chunks import episode
from tests.helpers.datasets import source_of
from tests.helpers.errors import raises
from tests.helpers.writing import all_files, hidden_files, open_writer, resume_dataset, write_dataset

EPISODES = [episode(number, 300) for number in range(6)]


# Existing folders.


def test_an_empty_folder_is_used_as_a_missing_one_is(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).touch()
    assert has_no_dataset(tmp_path)
    assert has_no_dataset(tmp_path / "missing")
    assert 6 == write_dataset(tmp_path, EPISODES).episodes


def test_a_dataset_is_not_replaced_unasked(tmp_path: Path) -> None:
    """The hint names the option, and nothing changes."""
    write_dataset(tmp_path, EPISODES)
    before = all_files(tmp_path)
    with raises(DatasetExistsError, "folder-not-empty") as caught:
        write_dataset(tmp_path, EPISODES)
    assert "overwrite=True" in caught.value.hint
    assert 5 == caught.value.exit_code
    assert before == all_files(tmp_path)


def test_a_dataset_is_replaced_when_asked_and_other_files_stay(tmp_path: Path) -> None:
    write_dataset(tmp_path, EPISODES)
    (tmp_path / "notes.txt").write_text("mine")
    write_dataset(tmp_path, EPISODES[:2], overwrite=True)
    assert 2 == read_info(tmp_path)["episodes"]
    assert "mine" == (tmp_path / "notes.txt").read_text()
    assert [] == hidden_files(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "data", "README.md", "meta", "meta/info.json"])
def test_a_folder_that_is_not_a_dataset_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"codebase_version": "v3.0"}')
    with pytest.raises(DatasetExistsError):
        write_dataset(tmp_path, EPISODES, overwrite=True)
    assert "v3.0" in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    "name", ["data/notes.txt", "data/chunk-00000/mine.parquet", "meta/Mine", "meta/episodes/x"]
)
def test_files_of_others_inside_the_dataset_are_not_removed(tmp_path: Path, name: str) -> None:
    write_dataset(tmp_path, EPISODES)
    (tmp_path / name).write_text("mine")
    with raises(DatasetExistsError, "folder-has-other-files", repr(name)):
        write_dataset(tmp_path, EPISODES, overwrite=True)
    assert "mine" == (tmp_path / name).read_text()


@pytest.mark.parametrize("name", ["data", "data/chunk-00000", "meta/episodes", "README.md"])
def test_links_inside_are_not_replaced(tmp_path: Path, name: str) -> None:
    """They lead to files of somebody, so neither they nor those are touched."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    write_dataset(out, EPISODES)
    (out / name).rename(elsewhere)
    (out / name).symlink_to(elsewhere)
    before = all_files(tmp_path)
    with raises(DatasetExistsError, "folder-has-other-files", repr(name)):
        write_dataset(out, EPISODES, overwrite=True)
    assert before == all_files(tmp_path)


def test_a_link_to_a_dataset_is_the_dataset(tmp_path: Path) -> None:
    write_dataset(tmp_path / "out", EPISODES)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    write_dataset(tmp_path / "link", EPISODES[:2], overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert 2 == read_info(tmp_path / "out")["episodes"]


def test_a_dataset_of_links_is_read_and_resumed(tmp_path: Path) -> None:
    """The cache of the Hugging Face hub is made of links to files elsewhere."""
    write_dataset(tmp_path / "out", EPISODES[:5])
    for number, path in enumerate(sorted((tmp_path / "out").rglob("*.*"))):
        if path.is_file():
            path.rename(tmp_path / f"blob{number}")
            path.symlink_to(tmp_path / f"blob{number}")
    assert 5 == resume_dataset(tmp_path / "out", EPISODES).episodes
    assert 6 == read_committed(tmp_path / "out", read_info(tmp_path / "out")).episodes


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_in_the_way_is_refused(tmp_path: Path, *, overwrite: bool) -> None:
    (tmp_path / "out").write_text("mine")
    with raises(DatasetExistsError, "folder-is-a-file"):
        write_dataset(tmp_path / "out", EPISODES, overwrite=overwrite)
    with pytest.raises(DatasetExistsError):
        has_no_dataset(tmp_path / "out")
    with raises(DatasetExistsError, "folder-is-a-file"):
        write_dataset(tmp_path / "out" / "deeper", EPISODES, overwrite=overwrite)


@pytest.mark.parametrize(("names", "expected"), [
    ([".data-00000-00000.parquet.tmp"], True),
    (["meta/.info.json.tmp"], True),
    (["meta/info.json"], False),
    (["data/chunk-00000/file-00000.parquet"], False),
    (["notes.txt"], False),
])  # fmt: skip
def test_a_run_that_was_killed_before_its_info_has_not_begun(
    tmp_path: Path, names: list[str], expected: bool
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert expected == has_no_dataset(tmp_path)


@pytest.mark.parametrize("name", [".data-00000-00000.parquet.tmp", "meta/.info.json.tmp"])
def test_what_a_killed_start_left_is_overwritten(tmp_path: Path, name: str) -> None:
    """Without `overwrite` the folder is refused, as each that is not empty."""
    (tmp_path / "d/meta").mkdir(parents=True)
    (tmp_path / "d" / name).touch()
    with raises(DatasetExistsError, "folder-not-empty"):
        write_dataset(tmp_path / "d", EPISODES)
    write_dataset(tmp_path / "d", EPISODES, overwrite=True)
    assert 6 == read_info(tmp_path / "d")["episodes"]


def test_a_run_that_came_to_nothing_removes_its_own_files_only(tmp_path: Path) -> None:
    """The folder goes if it was made for it, and nothing else has come there since."""
    there, noted, gone = tmp_path / "there", tmp_path / "noted", tmp_path / "gone"
    there.mkdir()
    for path in (there, noted, gone):
        writer = open_writer(path)
        if path == noted:
            (path / "notes.txt").write_text("mine")
        writer.abort()
        assert [] == hidden_files(path)  # Not even the lock.
    assert [noted, there] == sorted(tmp_path.iterdir())
    assert ([noted / "notes.txt"], []) == (list(noted.iterdir()), list(there.iterdir()))


# Reading info.json.


@pytest.mark.parametrize(("content", "code", "versions"), [
    (b"", "info-not-json", ()), (b"{", "info-not-json", ()), (b"\xff", "info-not-json", ()),
    (b"[" * 100_000, "info-not-json", ()),
    (b"[]", "info-format", ()), (b'{"format": "other"}', "info-format", ()),
    (b'{"format": "rollout"}', "info-version", (None, 3)),
    (b'{"format": "rollout", "format_version": 99}', "info-version", (99, 3)),
    (b'{"format": "rollout", "format_version": 1}', "info-version", (1, 3)),
])  # fmt: skip
def test_an_info_that_is_not_ours_is_a_format_error(
    tmp_path: Path, content: bytes, code: str, versions: tuple[int | None, ...]
) -> None:
    (tmp_path / "meta").mkdir()
    info_path(tmp_path).write_bytes(content)
    with raises(DatasetFormatError, code, info_path(tmp_path), *versions):
        read_info(tmp_path)


def test_special_files_are_an_error_and_do_not_block(tmp_path: Path) -> None:
    write_dataset(tmp_path, EPISODES)
    info, data = read_info(tmp_path), tmp_path / "data/chunk-00000/file-00000.parquet"
    for path in (data, info_path(tmp_path)):
        path.unlink()
        os.mkfifo(path)
    assert str(data) in read_committed(tmp_path, info).notices[0]
    with raises(DatasetFormatError, "not-a-regular-file"):
        read_info(tmp_path)


# Odd names.


def test_a_path_that_is_not_utf8_works(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff"))
    header = {
        "collector": {"output": str(path)},
        "env": {"id": "a\udcff\nb", "kwargs": {"limit": float("inf")}},
    }
    write_dataset(path, EPISODES[:5], header=header)
    assert 5 == resume_dataset(path, EPISODES, header=header).episodes
    assert str(path) == source_of(path)["collector"]["output"]
    assert {"limit": "inf"} == source_of(path)["env"]["kwargs"]
    assert "# Episodes of a\\udcff\\nb" in (path / "README.md").read_text()


@pytest.mark.parametrize("name", ["n" * 300, "/".join(["n" * 200] * 21)])
def test_a_name_that_is_too_long_is_a_storage_error(tmp_path: Path, name: str) -> None:
    for action in (
        lambda: write_dataset(tmp_path / name, EPISODES),
        lambda: check_folder(tmp_path / name, overwrite=False),
        lambda: has_no_dataset(tmp_path / name),
        lambda: check_free_space(tmp_path / name),
        lambda: read_info(tmp_path / name),
    ):
        with raises(StorageError, "read-failed"):
            action()


def test_a_long_path_works(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["n" * 200] * 8)
    assert 6 == write_dataset(path, EPISODES).episodes


# The lock.


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """The first one goes on, and afterwards the folder is free."""
    with open_writer(tmp_path) as writer:
        with raises(DatasetLockedError, "dataset-locked") as caught:
            open_writer(tmp_path, overwrite=True)
        assert (5, True) == (caught.value.exit_code, str(tmp_path) in caught.value.message)
        writer.write(EPISODES[0])
        writer.close(status="complete")
    write_dataset(tmp_path, EPISODES, overwrite=True)
    assert [] == hidden_files(tmp_path)


def test_a_kill_releases_the_lock_and_leaves_its_file(tmp_path: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        from rollout_cli.dataset.folder import FolderLock
        from rollout_cli.dataset.store import FileStore

        lock = FolderLock(FileStore(), Path({str(tmp_path)!r}))
        print("locked", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", dedent(script)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert "locked\n" == other.stdout.readline()
        with pytest.raises(DatasetLockedError):
            FolderLock(FileStore(), tmp_path)
        other.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK_NAME).exists()
    FolderLock(FileStore(), tmp_path).release()
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_lock_whose_file_the_previous_holder_removed_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fcntl.flock
    removed: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if len(removed) < 2:
            removed.append(descriptor)
            (tmp_path / LOCK_NAME).unlink()
            if len(removed) == 2:
                (tmp_path / LOCK_NAME).touch()
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FolderLock(FileStore(), tmp_path)
    with pytest.raises(DatasetLockedError):
        FolderLock(FileStore(), tmp_path)
    lock.release()
    assert 2 == len(removed)


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning, match="cannot lock"):
        FolderLock(FileStore(), tmp_path).release()


def wait_for(connection: Connection) -> None:
    connection.send("running")
    connection.recv()


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    """It outlives a killed run for a moment, and the run may be resumed at once."""
    lock = FolderLock(FileStore(), tmp_path)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=wait_for, args=(there,))
    child.start()
    assert "running" == here.recv()
    with pytest.raises(DatasetLockedError):
        FolderLock(FileStore(), tmp_path)
    descriptor = lock._descriptor
    assert descriptor is not None
    folder_module._held.remove(descriptor)
    os.close(descriptor)  # As a kill does, which leaves the file.
    FolderLock(FileStore(), tmp_path).release()
    here.send("end")
    child.join(timeout=30)
    assert 0 == child.exitcode


def test_two_writers_of_one_output_do_not_mix(tmp_path: Path) -> None:
    with staged(tmp_path / "out") as place:
        place.write_text("first")
        with pytest.raises(DatasetLockedError), staged(tmp_path / "out"):
            pass
    assert {"out": b"first"} == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


# Free space.


@pytest.mark.parametrize(("free", "expected"), [(1 << 40, None), (100 << 20, "only 100 MB are free")])
def test_little_free_space_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, expected: str | None
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    found = check_free_space(tmp_path / "not/yet/made")
    assert found is None if expected is None else expected in str(found)


def test_a_folder_that_cannot_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with raises(StorageError, "folder-not-writable"):
        check_free_space(tmp_path / "file")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with raises(StorageError, "folder-not-writable"):
        check_free_space(tmp_path)
