"""The folder of a dataset on disk: every change to it, its lock, and what may be replaced.

All changes go through one `FileStore`, so that a test can make each of them fail. A published file survives a crash of
the machine: its bytes are on disk before its name is, and its name before anything that refers to it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollout_cli.errors import DatasetExistsError, DatasetFormatError, DatasetLockedError, StorageError

FORMAT = "rollout"
FORMAT_VERSION = 2

LOCK_NAME = ".lock"
REPLACED = ".replaced"
"""Holds the dataset that `--overwrite` replaces, from just before the new one's first commit until just after it."""


DATASET_ENTRIES = ("meta", "data", "README.md")
"""The top of a dataset's folder, in the order in which they move to `REPLACED`: without `meta` nothing is committed."""

_PARQUET_FILES = r"chunk-\d+(?:/file-\d+\.parquet)?"
_OURS = re.compile(
    rf"README\.md|data(?:/{_PARQUET_FILES})?|meta(?:/(?:\.?[a-z_]+\.json(?:\.tmp)?|episodes(?:/{_PARQUET_FILES})?))?"
)


class FileStore:
    """The disk. Errors of the operating system become `StorageError` with the path and the reason."""

    def before(self, operation: str, path: Path) -> None:
        """Called before each operation; a test's subclass raises `OSError` here.

        Args:
            operation: `folder`, `open`, `write`, `fsync`, `rename` or `remove`.
            path: The file or folder that is about to change.
        """

    def make_folder(self, path: Path) -> None:
        """Create `path` and its missing parents; an existing folder stays as it is."""
        with self.operation("folder", path):
            if path.is_dir():
                return
        self.make_folder(path.parent)
        with self.operation("folder", path):
            path.mkdir(exist_ok=True)
        self.sync_folder(path.parent)

    def create(self, path: Path) -> NewFile:
        """Create, or empty, the file `path` for writing."""
        return NewFile(self, path)

    def replace(self, path: Path, content: bytes) -> None:
        """Replace the file `path`: a reader sees either all of the old content or all of the new."""
        with self.create(path.with_name(f".{path.name}.tmp")) as file:
            file.write(content)
            file.finish()
            self.move(file.path, path)

    def write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        """Replace the file `path` by `document` as JSON."""
        self.make_folder(path.parent)
        # Escapes keep the file ASCII: paths that are not UTF-8 come as lone surrogates, which no encoding takes.
        self.replace(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode("ascii"))

    def move(self, source: Path, target: Path) -> None:
        """Rename `source`; once this returns, the new name survives a crash."""
        with self.operation("rename", target):
            source.replace(target)
        self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder and everything in it."""
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
        """Run one operation; its errors leave as `StorageError`."""
        try:
            self.before(name, path)
            yield
        except OSError as error:
            raise StorageError(
                f"cannot {_VERBS[name]} {path}: {error.strerror or error}",
                hint="check the free space of the disk and the permissions of the output folder",
            ) from error


_VERBS = {
    "folder": "create the folder",
    "open": "create",
    "write": "write to",
    "fsync": "flush",
    "rename": "put in place",
    "remove": "remove",
}


class NewFile:
    """A file under a temporary name.

    It has the methods that pyarrow asks of a stream: `write`, `flush`, `tell`, `close` and `closed`. As a context
    manager it discards the file after an exception.
    """

    def __init__(self, store: FileStore, path: Path) -> None:
        self.path = path
        self._store = store
        self._size = 0
        self._discarded = False
        with store.operation("open", path):
            self._file = path.open("wb")

    @property
    def closed(self) -> bool:
        """Return whether the file takes no more bytes."""
        return self._file.closed and not self._discarded

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`; return its size in bytes."""
        size = memoryview(data).nbytes
        if not self._discarded:
            with self._store.operation("write", self.path):
                self._file.write(data)
        self._size += size
        return size

    def flush(self) -> None:
        """Do nothing: `finish` flushes."""

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def close(self) -> None:
        """Do nothing: only `finish` and `discard` close the file; pyarrow must not."""

    def finish(self) -> int:
        """Bring all bytes to the disk and close; return their number."""
        with self._store.operation("fsync", self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return self._size

    def discard(self) -> None:
        """Close and remove the file. Later writes are ignored: a Parquet writer writes its footer when it is closed."""
        if self._discarded:
            return
        self._discarded = True
        with suppress(OSError):  # Closing flushes, which may fail again; the bytes are unwanted.
            self._file.close()
        self._store.remove(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is not None:
            tidy_up(error, self.discard)


def tidy_up(error: BaseException, action: Callable[[], object]) -> None:
    """Run `action` after `error`; if `action` fails too, that becomes a note of `error`."""
    try:
        action()
    except StorageError as another:
        error.add_note(another.message)


_held: set[int] = set()


def _forget_in_child() -> None:
    """Close inherited locks: a forked worker that outlives a killed run must not keep its folder locked."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class FolderLock:
    """An exclusive lock on a dataset's folder; the system releases it when the process ends.

    Args:
        files: The disk.
        root: The folder, which exists.

    Attributes:
        warning: Set where the file system has no locks, so that a second writer would not be noticed.

    Raises:
        DatasetLockedError: If another writer has it, in this process or another one.
        StorageError: If the lock's file cannot be made.
    """

    def __init__(self, files: FileStore, root: Path) -> None:
        self.warning: str | None = None
        self._path = root / LOCK_NAME
        self._descriptor: int | None = None
        while self._descriptor is None:
            with files.operation("open", self._path):
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                self._lock(files, descriptor)
                # The previous holder may have removed the file after we opened it.
                if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                    self._descriptor = descriptor
                    _held.add(descriptor)
            except FileNotFoundError:
                continue
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def release(self) -> None:
        """Let others write; may be called again."""
        if self._descriptor not in _held:
            return  # Released before, or closed in a forked child.
        # The name goes before the lock; in the other order we could remove the file of the next holder.
        with suppress(OSError):
            self._path.unlink()
        _held.remove(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None

    def _lock(self, files: FileStore, descriptor: int) -> None:
        try:
            with files.operation("open", self._path):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, BlockingIOError):
                raise DatasetLockedError(
                    f"{self._path.parent} is being written by another run",
                    hint=f"wait until it has ended, or choose another --output; it holds a lock on {self._path}",
                ) from error
            if not isinstance(cause, OSError) or cause.errno not in _NO_LOCKS:
                raise
            self.warning = f"the file system of {self._path.parent} has no locks: let no second run write to it"


def info_path(root: Path) -> Path:
    """Return the path of info.json."""
    return root / "meta" / "info.json"


def stats_path(root: Path) -> Path:
    """Return the path of stats.json."""
    return root / "meta" / "stats.json"


def read_info(root: Path) -> dict[str, Any]:
    """Return the info.json of the dataset in `root`.

    Raises:
        DatasetFormatError: If there is no dataset of this format.
        StorageError: If it cannot be read.
    """
    path = info_path(root)
    try:
        if path.exists() and not path.is_file():
            raise DatasetFormatError(f"{path} is not a regular file")
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_dataset(root) from error
    except (ValueError, RecursionError) as error:
        raise DatasetFormatError(f"{path} is not valid JSON: {error}", hint=f"rollout repair {root}") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}", hint="check its permissions") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DatasetFormatError(f"{path} does not describe a dataset of the format {FORMAT!r}")
    _check_version(path, document.get("format_version"))
    return document


def _no_dataset(root: Path) -> DatasetFormatError:
    if (root / REPLACED).exists():
        return DatasetFormatError(
            f"{root} has no meta/info.json: a run with --overwrite was killed while it replaced the dataset",
            hint=f"run it again; or move the contents of {root / REPLACED} back to {root}",
        )
    return DatasetFormatError(f"{root} is not a dataset: it has no meta/info.json", hint="give a dataset's folder")


def _check_version(path: Path, version: Any) -> None:
    if not isinstance(version, int):
        raise DatasetFormatError(f"{path} has no format_version")
    if version > FORMAT_VERSION:
        raise DatasetFormatError(
            f"{path} has format version {version}, but this program reads versions up to {FORMAT_VERSION}",
            hint="install a newer rollout-cli",
        )


def is_unbegun(root: Path) -> bool:
    """Return whether `root` is empty, or a run was killed in it before it wrote info.json.

    Raises:
        DatasetExistsError: If it is a file.
        StorageError: If it cannot be read.
    """
    return all(name.endswith(".tmp") or name in DATASET_ENTRIES for name in _names(root)) and not any(
        path.is_file() and not path.name.endswith(".tmp") for path in _dataset_paths(root)
    )


def check_folder(root: Path, *, overwrite: bool) -> None:
    """Check that `root` may become the folder of a new dataset; nothing is changed.

    Raises:
        DatasetExistsError: If it holds something, and that is not a dataset to be replaced.
        StorageError: If the folder cannot be read.
    """
    if not _names(root):
        return
    if not overwrite:
        raise DatasetExistsError(
            f"{root} exists and is not empty", hint="choose another --output, or replace a dataset with --overwrite"
        )
    for path in _dataset_paths(root):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not _OURS.fullmatch(name):
            raise DatasetExistsError(
                f"{root} holds {name!r}, which is not part of a dataset, so it is not replaced",
                hint="move it away, or choose another --output",
            )
    cut_off = (root / REPLACED).exists() and not info_path(root).exists()
    try:
        read_info(root / REPLACED if cut_off else root)
    except DatasetFormatError as error:
        raise DatasetExistsError(
            f"{root} is not a dataset, so it is not replaced: {error.message}", hint="choose another --output"
        ) from error


def _dataset_paths(root: Path) -> list[Path]:
    """Return everything that removing the dataset would remove; other entries of the folder are never touched."""
    tops = [root / name for name in DATASET_ENTRIES]
    with _reading(root):
        return [path for top in tops if top.exists() for path in (top, *sorted(top.rglob("*")))]


def _names(root: Path) -> list[str]:
    try:
        with _reading(root):
            return [path.name for path in root.iterdir() if path.name != LOCK_NAME]
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        if isinstance(error.__cause__, NotADirectoryError):
            raise DatasetExistsError(f"{root} is a file", hint="choose another --output") from error
        raise


@contextmanager
def _reading(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot read {root}: {error.strerror or error}", hint="check its name and its permissions"
        ) from error


def has_commits(root: Path) -> bool:
    """Return whether any segment of the dataset in `root` is committed."""
    return any((root / "meta" / "episodes").glob("chunk-*/file-*.parquet"))


def move_to_replaced(files: FileStore, root: Path) -> None:
    """Move the dataset in `root` to `REPLACED`, to make room for a new one in the same folder."""
    files.make_folder(root / REPLACED)
    for name in DATASET_ENTRIES:
        if (root / name).exists():
            files.move(root / name, root / REPLACED / name)


def recover_replaced(files: FileStore, root: Path) -> None:
    """End a replacement that was cut off: the old dataset comes back, unless the new one has a commit."""
    replaced = root / REPLACED
    if not replaced.exists():
        return
    if not has_commits(root):
        # `meta` comes last, for its commits would end this.
        for name in reversed(DATASET_ENTRIES):
            if (replaced / name).exists():
                files.remove(root / name)
                files.move(replaced / name, root / name)
    files.remove(replaced)


def remove_dataset(files: FileStore, root: Path, *, with_folder: bool = False) -> None:
    """Remove a dataset and its unfinished files, nothing else; with `with_folder` its folder too, if it is empty."""
    for path in (*(root / name for name in DATASET_ENTRIES), *root.glob(".*.tmp")):
        files.remove(path)
    if with_folder:
        with suppress(OSError):
            root.rmdir()


LEAST_BYTES = 16 << 20
FEW_BYTES = 256 << 20


def check_free_space(root: Path) -> str | None:
    """Check that `root` can be written to, before workers start; return a warning where little space is free.

    Raises:
        StorageError: If it cannot be written to, or hardly any space is free.
    """
    with _reading(root):
        place = next((folder for folder in (root, *root.absolute().parents) if folder.exists()), Path("/"))
        free = shutil.disk_usage(place).free
    if not place.is_dir():
        raise StorageError(f"{place} is not a folder", hint="choose another --output")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"the folder {place} cannot be written to", hint="choose another --output")
    if free < LEAST_BYTES:
        raise StorageError(
            f"the disk of {place} is full: {free >> 20} MB are free", hint="free some space, or choose another --output"
        )
    return f"only {free >> 20} MB are free at {place}" if free < FEW_BYTES else None
