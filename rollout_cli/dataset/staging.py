"""An output that is whole or absent: it is written beside its place, and a rename puts it there."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rollout_cli.dataset.store import FileStore
from rollout_cli.errors import DatasetExistsError, UsageError
from rollout_cli.remote import RemotePath


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Give a path to write to, a file or a folder; at the end it is synced and becomes `path`.

    What a killed process left of its own attempt is removed by the next one.

    Raises:
        DatasetExistsError: If `path` exists.
        StorageError: If a disk fails.
        UsageError: If `path` is a URI.
    """
    if isinstance(path, RemotePath):
        raise UsageError(f"{path} is no local path", hint="write to a local folder, and copy that")
    files = FileStore()
    with files.operation("write", path):
        if path.exists() or path.is_symlink():
            raise DatasetExistsError(f"{path} exists", hint="remove it, or choose another path")
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
        lock = _locked(folder)
        try:
            yield folder / path.name
            for written in (folder / path.name, *(folder / path.name).rglob("*")):
                files.sync(written)
            files.move(folder / path.name, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def _remove_abandoned(path: Path) -> None:
    """Remove the folders of attempts whose processes are gone: nobody holds their locks."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder and return its descriptor; None where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
