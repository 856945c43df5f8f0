"""The store of a dataset's folder, on disk or on a server; it makes every change to the folder.

A test can make each operation of a `FileStore` fail. A published file survives a crash of the machine: its
bytes are on disk before its name is, and its name is before anything that refers to it.
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
    """The local disk; every change to a dataset is one of its operations, which tests can make fail."""

    def before(self, operation: str, path: Path) -> None:
        """Do nothing; tests raise `OSError` here, before a folder, open, write, fsync, rename or remove."""

    @contextmanager
    def operation(self, name: str, path: Path) -> Iterator[None]:
        """Run one operation; an `OSError` becomes a `StorageError`."""
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
        """Create `path` and its missing parents; an existing folder is unchanged."""
        with self.operation("folder", path):
            if path.is_dir():
                return
        self.make_folder(path.parent)
        with self.operation("folder", path):
            path.mkdir(exist_ok=True)
        self.sync(path.parent)

    def replace(self, path: Path, content: bytes) -> None:
        """Replace the file `path` atomically: a reader sees either the old content or the new."""
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
        # Escapes keep the file ASCII: paths that are not UTF-8 contain lone surrogates, which cannot be
        # encoded.
        self.replace(path, (json.dumps(plain_json(document), indent=2) + "\n").encode("ascii"))

    def create(self, path: Path) -> None:
        """Create an empty file and remove an existing one, which may be a link in an untrusted dataset."""
        path.unlink(missing_ok=True)
        path.touch(exist_ok=False)  # Does not follow a link.

    def move(self, source: Path, target: Path) -> None:
        """Rename `source`, into a new folder if necessary; on return, the new name survives a crash."""
        self.rename(source, target)
        self.sync(target.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`, into a new folder if necessary; the new name may not survive a crash."""
        self.make_folder(target.parent)
        with self.operation("rename", target):
            source.replace(target)

    def sync(self, path: Path) -> None:
        """Sync a file, or the names in a folder, to the disk."""
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
        """Remove a file, or a folder with its content."""
        with self.operation("remove", path):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            elif isinstance(path, RemotePath):
                path.remove_tree()
            else:
                shutil.rmtree(path)

    def output(self, path: Path) -> Any:
        """Return the sink of a Parquet file, a context manager that closes it."""
        import pyarrow as pa  # noqa: PLC0415 - resuming reads folders before it needs pyarrow

        self.create(path)
        # As bytes: pyarrow encodes a `str` as UTF-8, but a path may not be valid UTF-8.
        return pa.OSFile(os.fsencode(path), "wb")


class RemoteStore(FileStore):
    """A file system by URI, with renames but without links; closing a file makes it durable."""

    def create(self, path: Path) -> None:
        """Do nothing: writing a file creates it."""

    def sync(self, path: Path) -> None:
        """Do nothing: a closed file has reached the server."""

    @contextmanager
    def output(self, path: Path) -> Iterator[Any]:
        """Yield a buffer in memory; the file is written at once when the block ends without an error."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        sink = pa.BufferOutputStream()
        yield sink
        path.write_bytes(sink.getvalue())


class ObjectStore(RemoteStore):
    """An object store: an object is written at once under its final name, and needs no folder."""

    def make_folder(self, path: Path) -> None:
        """Do nothing."""

    def replace(self, path: Path, content: bytes) -> None:
        with self.operation("write", path):
            path.write_bytes(content)


def has_rename(root: Path) -> bool:
    """Return True if files get their names by a rename, which hides uncommitted files from readers."""
    return not (isinstance(root, RemotePath) and root.is_object)


def file_store(root: Path) -> FileStore:
    """Return the store of the folder `root`; raise `UsageError` for a dataset of the Hub, which is only read."""
    if not isinstance(root, RemotePath):
        return FileStore()
    root.check_writable()
    return RemoteStore() if has_rename(root) else ObjectStore()


def tidy_up(error: BaseException, action: Callable[[], object]) -> None:
    """Run `action` after `error`; an error of `action` becomes a note of `error`."""
    try:
        action()
    except StorageError as another:
        if another is not error:
            error.add_note(another.message)


@contextmanager
def accessing(path: Path, *expected: type[OSError]) -> Iterator[None]:
    """Turn an `OSError` of reading `path` into a `StorageError`, except the `expected` ones."""
    try:
        yield
    except expected:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}",
            code="read-failed",
            hint="check the name and the permissions",
        ) from error
