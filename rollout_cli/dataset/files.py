"""Every change that a dataset makes on disk: folders, writes, fsync, renames and removals.

All of them go through one `FileStore`, so that a test can make each one fail. What was published survives a crash of
the machine: a file's bytes are on disk before its name is, and the name before anything that speaks of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rollout_cli.errors import StorageError


class FileStore:
    """The disk. Errors of the operating system become `StorageError` with the path and the reason."""

    def before(self, operation: str, path: Path) -> None:
        """Called before each operation; a twin in a test raises `OSError` here.

        Args:
            operation: `folder`, `open`, `write`, `fsync`, `rename` or `remove`.
            path: What it is about to change.
        """

    def make_folder(self, path: Path) -> None:
        """Create `path` and what is missing above it; an existing folder is left as it is."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        with self.operation("folder", path):
            path.mkdir(exist_ok=True)
        self.sync_folder(path.parent)

    def create(self, path: Path) -> NewFile:
        """Create, or empty, the file `path` for writing."""
        return NewFile(self, path)

    def publish(self, file: NewFile, path: Path) -> int:
        """Give a finished file its final name, which replaces what had it; return its size in bytes."""
        size = file.finish()
        self.move(file.path, path)
        return size

    def replace(self, path: Path, content: bytes) -> None:
        """Put `content` in place of the file `path`: a reader sees all of the old or all of the new."""
        with self.create(path.with_name(f".{path.name}.tmp")) as file:
            file.write(content)
            self.publish(file, path)

    def move(self, source: Path, target: Path) -> None:
        """Rename `source`; once this returns, the new name survives a crash."""
        with self.operation("rename", target):
            source.replace(target)
        self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it."""
        with self.operation("remove", path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder survive a crash."""
        with self.operation("fsync", path):
            folder = os.open(path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def operation(self, name: str, path: Path) -> Iterator[None]:
        """Run one operation; its errors come out as `StorageError`."""
        try:
            self.before(name, path)
            yield
        except OSError as error:
            raise StorageError(
                f"cannot {_VERBS[name]} {path}: {error.strerror or error}",
                hint="check that the disk has room and that the output folder may be written to",
            ) from error


_VERBS = {
    "folder": "create the folder",
    "open": "create",
    "write": "write to",
    "fsync": "flush",
    "rename": "put in place",
    "remove": "remove",
}


_WINDOW = 8 << 20
"""So many bytes are handed to the disk at once. What is smaller stays in memory, for who reads it next."""


class NewFile:
    """A file that is being written and has no final name yet.

    It has what pyarrow asks of a stream: `write`, `flush`, `tell`, `close` and `closed`. Leaving it as a context
    manager with an exception discards it.
    """

    def __init__(self, store: FileStore, path: Path) -> None:
        self.path = path
        self._store = store
        self._size = 0
        self._handed_on = self._dropped = 0
        self._kept = True
        with store.operation("open", path):
            self._file = path.open("wb")

    @property
    def closed(self) -> bool:
        """Return whether nothing can be written any more."""
        return self._kept and self._file.closed

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`; return its size in bytes."""
        size = memoryview(data).nbytes
        if self._kept:
            with self._store.operation("write", self.path):
                self._file.write(data)
            if self._size + size - self._handed_on >= _WINDOW:
                self._hand_on(self._size + size)
        self._size += size
        return size

    def _hand_on(self, size: int) -> None:
        """Let the system write what came, and forget of the file what it wrote since the last time.

        Left alone, it keeps all of it in memory that other programs could use, for each page of which fresh memory is
        needed, and writes most of it in the end, while `finish` waits.
        """
        if hasattr(os, "posix_fadvise"):
            # Pages that are not on the disk yet are not dropped, but begun to be written. Where a file system does not
            # take the advice nothing is lost; an error of the disk is told by `fsync`.
            with suppress(OSError):
                advised = size - self._dropped
                os.posix_fadvise(self._file.fileno(), self._dropped, advised, os.POSIX_FADV_DONTNEED)
        self._dropped, self._handed_on = self._handed_on, size

    def flush(self) -> None:
        """Do nothing: `finish` flushes."""

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._size

    def close(self) -> None:
        """Do nothing: `finish` and `discard` close, and pyarrow must not."""

    def finish(self) -> int:
        """Bring all bytes to the disk and close; return their number."""
        with self._store.operation("fsync", self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return self._size

    def discard(self) -> None:
        """Close and remove the file. Later writes go nowhere: a Parquet writer writes its footer when it is closed."""
        if not self._kept:
            return
        self._kept = False
        with suppress(OSError):  # What could not be written is not wanted; the file is closed all the same.
            self._file.close()
        with self._store.operation("remove", self.path):
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is not None:
            tidy_up(error, self.discard)


def tidy_up(error: BaseException, action: Callable[[], object]) -> None:
    """Run `action` after `error`, which stays the one to tell: that tidying up failed too becomes a note below it."""
    try:
        action()
    except StorageError as another:
        error.add_note(another.message)
