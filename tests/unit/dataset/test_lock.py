"""One writer a folder."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import dedent

import pytest

from rollout_cli.dataset import DatasetWriter, load
from rollout_cli.dataset import lock as lock_module
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.lock import LOCK_NAME, FolderLock
from rollout_cli.errors import DatasetLockedError, StorageError
from tests.support.chunks import BOX_SPEC, episode
from tests.support.datasets import leftovers, write_dataset


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """With exit code 5 and the folder's name; the first one goes on, and afterwards the folder is free."""
    with DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0) as writer:
        with pytest.raises(DatasetLockedError, match="being written by another run") as caught:
            DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0, overwrite=True)
        assert (5, True) == (caught.value.exit_code, str(tmp_path / "out") in caught.value.message)
        writer.write(episode(0, 3))
        writer.close(status="complete")
    assert 1 == len(load(tmp_path / "out"))
    write_dataset(tmp_path / "out", [episode(1, 3)], overwrite=True)
    assert [] == leftovers(tmp_path)


def test_an_aborted_writer_lets_go(tmp_path: Path) -> None:
    """And so does one that is removed, or that could not begin."""
    DatasetWriter(tmp_path / "a", env_spec=BOX_SPEC, root_seed=0).abort()
    DatasetWriter(tmp_path / "b", env_spec=BOX_SPEC, root_seed=0).remove()
    assert not (tmp_path / "b").exists()
    assert [] == leftovers(tmp_path)
    FolderLock(FileStore(), tmp_path / "a").release()


def test_a_kill_lets_go(tmp_path: Path) -> None:
    """The file stays, and locks nothing."""
    script = f"""
        import time
        from pathlib import Path
        from rollout_cli.dataset.files import FileStore
        from rollout_cli.dataset.lock import FolderLock

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


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the one before may remove the file: a lock on it would keep nobody out."""
    original = fcntl.flock
    removed: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(os.fstat(descriptor).st_ino)
            (tmp_path / LOCK_NAME).unlink()
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FolderLock(FileStore(), tmp_path)
    with pytest.raises(DatasetLockedError):
        FolderLock(FileStore(), tmp_path)
    lock.release()
    assert 1 == len(removed)


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting there is better than not collecting."""

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    FolderLock(FileStore(), tmp_path).release()


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """Of input and output."""
    with pytest.raises(StorageError, match="cannot create"):
        FolderLock(FileStore(), tmp_path / "missing")


def test_a_lock_left_behind_is_nothing_in_the_way(tmp_path: Path) -> None:
    """After a kill before the dataset began, the folder counts as empty."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK_NAME).touch()
    assert 1 == write_dataset(tmp_path / "out", [episode(0, 3)]).episodes


def wait_for(connection: Connection) -> None:
    connection.send("running")
    connection.recv()


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    """It outlives a killed run for a moment, and the run may be gone on with at once."""
    lock = FolderLock(FileStore(), tmp_path)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=wait_for, args=(there,))
    child.start()
    assert "running" == here.recv()
    with pytest.raises(DatasetLockedError):
        FolderLock(FileStore(), tmp_path)  # The parent has it still.
    descriptor = lock._descriptor
    assert descriptor is not None
    lock_module._held.remove(descriptor)
    os.close(descriptor)  # As a kill does, which leaves the file.
    assert (tmp_path / LOCK_NAME).exists()
    FolderLock(FileStore(), tmp_path).release()
    here.send("end")
    child.join(timeout=30)
    assert 0 == child.exitcode
