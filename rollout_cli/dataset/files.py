"""The folder of a dataset, on disk or by URI: every change to it, its lock, and what may be replaced.

All changes go through one `FileStore`, so that a test can make each of them fail. A published file survives a crash of
the machine: its bytes are on disk before its name is, and its name before anything that refers to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rollout_cli.errors import DatasetExistsError, DatasetFormatError, DatasetLockedError, StorageError
from rollout_cli.remote import RemotePath

FORMAT = "rollout"
FORMAT_VERSION = 3

LOCK_NAME = ".lock"
REPLACED = ".replaced"
"""Holds the dataset that another one replaces, while this takes its place."""

NEXT = ".next.tmp"
"""Holds a dataset that is to replace the one in the folder, until it has a commit, or all of that one's episodes."""

DATASET_ENTRIES = ("meta", "data", "README.md")
"""The top of a dataset's folder, in the order in which they move to `REPLACED`: without `meta` nothing is committed."""

FEW_BYTES = 256 << 20  # Free space below which a run warns.

_PARQUET_FILES = r"chunk-\d+(?:/file-\d+\.parquet)?"
_OURS = re.compile(
    rf"README\.md|data(?:/{_PARQUET_FILES})?|meta(?:/(?:\.?[a-z_]+\.json(?:\.tmp)?|episodes(?:/{_PARQUET_FILES})?))?"
)


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
            hint = "check the free space of the disk and the permissions of the output folder"
            raise StorageError(
                f"cannot write {path}: {error.strerror or error}",
                hint=path.hint if isinstance(path, RemotePath) else hint,
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
                temporary.write_bytes(content)
            self.sync(temporary)
            self.move(temporary, path)
        except BaseException as error:
            tidy_up(error, partial(self.remove, temporary))
            raise

    def write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        """Replace the file `path` by `document` as JSON."""
        # Escapes keep the file ASCII: paths that are not UTF-8 come as lone surrogates, which no encoding takes.
        self.replace(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode("ascii"))

    def move(self, source: Path, target: Path) -> None:
        """Rename `source`, into a new folder if need be; once this returns, the new name survives a crash."""
        self.make_folder(target.parent)
        with self.operation("rename", target):
            source.replace(target)
        self.sync(target.parent)

    def sync(self, path: Path) -> None:
        """Bring a file, or the names in a folder, to the disk."""
        with self.operation("fsync", path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder and everything in it."""
        with self.operation("remove", path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def output(self, path: Path) -> Iterator[Any]:
        """Give what a Parquet file is written to."""
        import pyarrow as pa  # noqa: PLC0415 - resuming looks at folders before it is needed

        # As bytes: pyarrow encodes a text as UTF-8, and a path may have no UTF-8.
        with pa.OSFile(os.fsencode(path), "wb") as sink:
            yield sink


class RemoteStore(FileStore):
    """A file system by URI, which has renames, and nothing to wait for when a file is closed."""

    def sync(self, path: Path) -> None:
        """Do nothing: a file that was closed has reached the server."""

    def remove(self, path: Path) -> None:
        assert isinstance(path, RemotePath)
        with self.operation("remove", path), suppress(FileNotFoundError):
            if path.is_dir():
                path.remove_tree()
            else:
                path.unlink(missing_ok=True)

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
    return (RemoteStore() if has_rename(root) else ObjectStore()) if isinstance(root, RemotePath) else FileStore()


def tidy_up(error: BaseException, action: Callable[[], object]) -> None:
    """Run `action` after `error`; if `action` fails too, that becomes a note of `error`."""
    try:
        action()
    except StorageError as another:
        if another is not error:
            error.add_note(another.message)


_held: set[int] = set()


def _forget_in_child() -> None:
    """Close inherited locks: a forked worker that outlives a killed run must not keep its folder locked."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)


class FolderLock:
    """An exclusive lock on the dataset's folder `root`, which exists; the system releases it when the process ends.

    `DatasetLockedError` says that another writer has it, in this process or another one; a `UserWarning`, that the file
    system has no locks. There is none behind a URI.
    """

    def __init__(self, files: FileStore, root: Path) -> None:
        self._path, self._descriptor = root / LOCK_NAME, -1
        if isinstance(root, RemotePath):
            return
        while True:
            with files.operation("open", self._path):
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            _held.add(self._descriptor)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._close()
                raise DatasetLockedError(
                    f"{root} is being written by another run",
                    hint=f"wait until it has ended, or choose another --output; it holds a lock on {self._path}",
                ) from error
            except OSError as error:
                text = f"{root} cannot be locked ({error.strerror}): let no second run write to it"
                warnings.warn(text, stacklevel=2)
            # The previous holder may have removed the file after we opened it.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                    return
            self._close()

    def release(self) -> None:
        """Let others write; may be called again."""
        if self._descriptor in _held:  # Else it was released before, or closed in a forked child.
            # The name goes before the lock; in the other order we could remove the file of the next holder.
            with suppress(OSError):
                self._path.unlink()
            self._close()

    def _close(self) -> None:
        _held.remove(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1


def info_path(root: Path) -> Path:
    """Return the path of info.json."""
    return root / "meta" / "info.json"


def stats_path(root: Path) -> Path:
    """Return the path of stats.json."""
    return root / "meta" / "stats.json"


# The other files do not have all that info.json records.
LOST_INFO = "restore meta/info.json from a copy, or collect the dataset again"


def read_info(root: Path) -> dict[str, Any]:
    """Return the info.json of the dataset in `root`; `DatasetFormatError` says that there is none of this format."""
    path, replaced = info_path(root), root / REPLACED
    try:
        with _reading(path, FileNotFoundError, NotADirectoryError):
            if path.exists() and not path.is_file():
                raise DatasetFormatError(f"{path} is not a regular file")
            document = json.loads(path.read_bytes())
    except OSError as error:
        if isinstance(root, RemotePath):
            root.check_server()
        message = "not a dataset: it has no meta/info.json"
        hint = f"give a dataset's folder; if it was one, {LOST_INFO}"
        if replaced.exists():
            message = "no dataset: a run was killed while it replaced the one that was here, or is just doing that"
            hint = f"if it was killed, run it again, with --resume or --overwrite: the dataset is in {replaced}"
        raise DatasetFormatError(f"{root} is {message}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise DatasetFormatError(f"{path} is not valid JSON: {error}", hint=LOST_INFO) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DatasetFormatError(f"{path} does not describe a dataset of the format {FORMAT!r}")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise DatasetFormatError(
            f"{path} has format version {version}, and this program has version {FORMAT_VERSION} alone",
            hint="a dataset needs the version of rollout-collect that made it",
        )
    return document


@contextmanager
def _reading(path: Path, *expected: type[OSError]) -> Iterator[None]:
    """Let errors of the operating system leave as `StorageError`, except those that are `expected`."""
    try:
        yield
    except expected:
        raise
    except OSError as error:
        hint = "check its name and its permissions"
        raise StorageError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error


def standing_root(root: Path) -> Path:
    """Return the folder that has the dataset of `root`: another one where a run was killed while it replaced that."""
    was_killed = (root / REPLACED).exists() and not info_path(root).exists()
    return root / REPLACED if was_killed else root


def is_unbegun(root: Path) -> bool:
    """Return whether `root` is empty, or a run was killed in it before it wrote info.json."""
    return all(name.endswith(".tmp") or name in DATASET_ENTRIES for name in _names(root)) and not any(
        path.is_file() and not path.name.endswith(".tmp") for path in _dataset_paths(root)
    )


def check_folder(root: Path, *, overwrite: bool) -> None:
    """Raise `DatasetExistsError` if `root` holds something, unless that is a dataset to be replaced."""
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
    if is_unbegun(root):
        return
    try:
        read_info(standing_root(root))
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
    """Return the names in a folder, except that of the lock; none for a missing folder."""
    try:
        with _reading(root, FileNotFoundError, NotADirectoryError):
            return [path.name for path in root.iterdir() if path.name != LOCK_NAME]
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise DatasetExistsError(f"{root} is a file", hint="choose another --output") from error


def publish(files: FileStore, root: Path) -> None:
    """Put the dataset in `NEXT` in the place of the one in `root`; `recover_replaced` ends this after a failure."""
    for name in DATASET_ENTRIES:
        # There is always a `meta`, unless somebody removed the folder.
        if name == "meta" or (root / name).exists():
            files.move(root / name, root / REPLACED / name)
    # `meta` comes last, with all commits at once: from then on the new dataset counts.
    for name in reversed(DATASET_ENTRIES):
        if (root / NEXT / name).exists():
            files.move(root / NEXT / name, root / name)
    files.remove(root / REPLACED)
    files.remove(root / NEXT)


def remove_objects(files: FileStore, root: Path) -> None:
    """Remove a dataset that has no renames, but for info.json and the card, which the new one's replace.

    Whenever that ends, the folder holds a dataset.
    """
    for path in (root / "meta" / "episodes", root / "data", stats_path(root)):
        files.remove(path)


def recover_replaced(files: FileStore, root: Path) -> None:
    """End a replacement that was cut off: the old dataset comes back, unless the new one has a commit."""
    replaced = root / REPLACED
    if not replaced.exists():
        return
    if not any((root / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        # `meta` comes last, for its commits would end this.
        for name in reversed(DATASET_ENTRIES):
            if (replaced / name).exists():
                files.remove(root / name)
                files.move(replaced / name, root / name)
    files.remove(replaced)


def remove_dataset(files: FileStore, root: Path) -> None:
    """Remove a dataset and its unfinished files, and nothing else in the folder."""
    for name in DATASET_ENTRIES:
        files.remove(root / name)
    remove_temporary(files, root)


def remove_temporary(files: FileStore, root: Path) -> None:
    """Remove what a run left unfinished."""
    # A remote folder lists files alone.
    for path in {*root.glob(".*.tmp"), *([root / NEXT] if has_rename(root) else [])}:
        files.remove(path)


def check_free_space(root: Path) -> str | None:
    """Check that `root` can be written to, before workers start; return a warning where little space is free."""
    if isinstance(root, RemotePath):
        root.check_server()
        return None
    with _reading(root):
        place = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
        free = shutil.disk_usage(place).free
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"{place} is not a folder that can be written to", hint="choose another --output")
    return f"only {free >> 20} MB are free at {place}" if free < FEW_BYTES else None
