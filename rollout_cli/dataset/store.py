"""The store of a dataset's folder, a disk or a server: every change to the folder is one of its operations.

All changes go through one `FileStore`, so that a test can make each of them fail. A published file survives a
crash of the machine: its bytes are on disk before its name is, and its name before anything that refers to
it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rollout_cli.episodes.plain import Document, plain_json
from rollout_cli.errors import StorageError
from rollout_cli.sources.remote import RemotePath


class FileStore:
    """The disk. All changes of datasets go through it, so that a test can let each of them fail."""

    def before(self, operation: str, path: Path) -> None:
        """Do nothing; a test raises `OSError` here, before a folder, open, write, fsync, rename or remove."""

    @contextmanager
    def operation(self, name: str, path: Path) -> Iterator[None]:
        """Run one operation; its errors leave as `StorageError`."""
        try:
            self.before(name, path)
            yield
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror or error}",
                code="write-failed",
                hint=path.hint
                if isinstance(path, RemotePath)
                else "check the free space of the disk and the permissions of the output folder",
            ) from error

    def make_folder(self, path: Path) -> None:
        """Create `path` and its missing parents; an existing folder stays as it is."""
        with self.operation("folder", path):
            if path.is_dir():
                return
        self.make_folder(path.parent)
        with self.operation("folder", path):
            path.mkdir(exist_ok=True)
        self.sync(path.parent)

    def replace(self, path: Path, content: bytes) -> None:
        """Replace the file `path`: a reader sees either all of the old content or all of the new."""
        self.make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with self.operation("write", temporary):
                self.create(temporary)
                temporary.write_bytes(content)
            self.sync(temporary)
            self.move(temporary, path)
        except BaseException as error:
            tidy_up(error, partial(self.remove, temporary))
            raise

    def write_json(self, path: Path, document: Document) -> None:
        """Replace the file `path` by `document` as JSON."""
        # Escapes keep the file ASCII: paths that are not UTF-8 come as lone surrogates, which no encoding
        # takes.
        self.replace(path, (json.dumps(plain_json(document), indent=2) + "\n").encode("ascii"))

    def create(self, path: Path) -> None:
        """Create an empty file in place of one of that name, which in a stranger's dataset may be a link."""
        path.unlink(missing_ok=True)
        path.touch(exist_ok=False)  # It follows no link.

    def move(self, source: Path, target: Path) -> None:
        """Rename `source`, into a new folder if need be; once this returns, the new name survives a crash."""
        self.rename(source, target)
        self.sync(target.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`, into a new folder if need be; the new name may not survive a crash."""
        self.make_folder(target.parent)
        with self.operation("rename", target):
            source.replace(target)

    def sync(self, path: Path) -> None:
        """Bring a file, or the names in a folder, to the disk."""
        is_windows = sys.platform == "win32"
        if is_windows and path.is_dir():
            return  # Windows opens no folder; it writes names to its journal.
        with self.operation("fsync", path):
            # Windows syncs only what is open for writing.
            descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder and everything in it."""
        with self.operation("remove", path):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            elif isinstance(path, RemotePath):
                path.remove_tree()
            else:
                shutil.rmtree(path)

    def output(self, path: Path) -> Any:
        """Return what a Parquet file is written to; as a context manager it is closed at the end."""
        import pyarrow as pa  # noqa: PLC0415 - resuming looks at folders before it is needed

        self.create(path)
        # As bytes: pyarrow encodes a text as UTF-8, and a path may have no UTF-8.
        return pa.OSFile(os.fsencode(path), "wb")


class RemoteStore(FileStore):
    """A file system by URI, which has renames and no links, and nothing to wait for when a file is closed."""

    def create(self, path: Path) -> None:
        """Do nothing: to write a file creates it."""

    def sync(self, path: Path) -> None:
        """Do nothing: a file that was closed has reached the server."""

    @contextmanager
    def output(self, path: Path) -> Iterator[Any]:
        """Give a place in memory; the file is written whole when the block ends without an error."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        sink = pa.BufferOutputStream()
        yield sink
        path.write_bytes(sink.getvalue())


class ObjectStore(RemoteStore):
    """An object store: objects are put whole under their names, and need no folder."""

    def make_folder(self, path: Path) -> None:
        """Do nothing."""

    def replace(self, path: Path, content: bytes) -> None:
        with self.operation("write", path):
            path.write_bytes(content)


def has_rename(root: Path) -> bool:
    """Return whether files get their names by a rename, so that one that was not committed is never seen."""
    return not (isinstance(root, RemotePath) and root.is_object)


def file_store(root: Path) -> FileStore:
    """Return the store of the folder `root`."""
    return (
        (RemoteStore() if has_rename(root) else ObjectStore())
        if isinstance(root, RemotePath)
        else FileStore()
    )


def tidy_up(error: BaseException, action: Callable[[], object]) -> None:
    """Run `action` after `error`; if `action` fails too, that becomes a note of `error`."""
    try:
        action()
    except StorageError as another:
        if another is not error:
            error.add_note(another.message)


@contextmanager
def accessing(path: Path, *expected: type[OSError]) -> Iterator[None]:
    """Let errors of looking at `path` leave as `StorageError`, except those that are `expected`."""
    try:
        yield
    except expected:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}",
            code="read-failed",
            hint="check its name and its permissions",
        ) from error
