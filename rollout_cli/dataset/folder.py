"""The output folder of a dataset: its lock, the rules for replacing a dataset, and the replacement.

Outputs that are not datasets are `staged`: they are complete or absent.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from rollout_cli.dataset.layout import (
    DATASET_ENTRIES,
    LOCK_NAME,
    NEXT,
    REPLACED,
    AnyPath,
    aside_path,
    episodes_folder,
    info_path,
    plot_path,
    read_info,
    stats_path,
)
from rollout_cli.dataset.store import FileStore, accessing, file_store, has_rename
from rollout_cli.errors import (
    DatasetExistsError,
    DatasetFormatError,
    DatasetLockedError,
    StorageError,
    UsageError,
)
from rollout_cli.sources.remote import RemotePath, folder_of

_fcntl: Any = None  # Windows does not have it.
with suppress(ImportError):
    _fcntl = import_module("fcntl")

FEW_BYTES = 256 << 20  # Free space below which a run warns.

_PARQUET_FILES = r"chunk-\d+(?:/file-\d+\.parquet)?"
_OURS = re.compile(
    r"README\.md"
    rf"|data(?:/{_PARQUET_FILES})?"
    rf"|meta(?:/(?:\.?[a-z_]+\.(?:json|png)(?:\.tmp)?|episodes(?:/{_PARQUET_FILES})?))?"
)

_held: set[int] = set()


def _close_in_child() -> None:
    """Close inherited locks: a forked worker that outlives a killed run must not keep the folder locked."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _lock(descriptor: int) -> None:
    """Lock an open file for this process alone.

    Raises:
        BlockingIOError: If another process has locked it.
        OSError: If it cannot be locked.
    """
    if _fcntl is not None:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    elif sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - only Windows has it

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, error.strerror) from error
    else:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


class FolderLock(AbstractContextManager["FolderLock"]):
    """An exclusive lock on the existing folder `root` of a dataset, released when the process ends.

    URIs have no lock. Warns with a `UserWarning` if the file system does not support locks.

    Raises:
        DatasetLockedError: If another writer, in this process or another one, holds the lock.
    """

    def __init__(self, files: FileStore, root: Path) -> None:
        self._path = root / LOCK_NAME
        self._descriptor = -1
        if isinstance(root, RemotePath):
            return
        for path in (root / "meta", root / "data", root / REPLACED):
            if path.is_symlink():  # It may point to another dataset.
                raise StorageError(
                    f"{path} is a link, expected a folder",
                    code="folder-is-a-link",
                    hint="copy the dataset with its links resolved: cp -rL",
                )
        while True:
            with files.operation("open", self._path):
                flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
                self._descriptor = os.open(self._path, flags, 0o644)
            _held.add(self._descriptor)
            try:
                _lock(self._descriptor)
            except BlockingIOError as error:
                self._close()
                raise DatasetLockedError(
                    f"{root} is being written by another run",
                    hint="wait until that run has ended, or choose another {output}; "
                    f"the run holds a lock on {self._path}",
                ) from error
            except OSError as error:
                warnings.warn(
                    f"cannot lock {root} ({error.strerror}): do not start a second run that writes to it",
                    stacklevel=2,
                )
            # The previous holder may have removed the file after we opened it.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                    return
            self._close()

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock; repeatable."""
        if self._descriptor in _held:  # Else it was released before, or closed in a forked child.
            # Remove the file before releasing the lock, or we might remove the file of the next holder.
            with suppress(OSError):
                self._path.unlink()
            self._close()

    def _close(self) -> None:
        _held.remove(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1


class OutputFolder:
    """The folder of a dataset with a single writer; unchanged until it is opened.

    An existing dataset stays in place while the new one grows next to it, and is then replaced.

    Args:
        overwrite: True to replace a dataset in the folder.
        replace_from: The episode number that the new dataset must reach in each partition before it replaces
            the old one, unless the new one is complete; ignored by object stores.
        lock: The lock on the folder, if the caller holds it; released with the folder.

    Attributes:
        has_old: True if the folder holds a dataset that the new one is to replace.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        overwrite: bool = False,
        replace_from: Sequence[int] = (),
        lock: FolderLock | None = None,
    ) -> None:
        self.path = folder_of(path).resolve()
        self.files = file_store(self.path)
        self.replace_from = replace_from
        self.has_old = False
        # Held while one dataset replaces another, by the thread that commits; callers may wait for it.
        self.replacing = threading.Lock()
        self._overwrite = overwrite
        self._lock = lock
        self._is_new = False

    def open(self, *, resume: bool) -> None:
        """Lock the folder, and clean up after a killed run.

        Raises:
            DatasetExistsError: If the folder's content may not be replaced.
            DatasetLockedError: If another writer holds the lock.
            StorageError: If the folder cannot be created or changed.
        """
        if not resume:
            check_folder(self.path, overwrite=self._overwrite)
        self._is_new = not self.path.exists()
        self.files.make_folder(self.path)
        self._lock = self._lock or FolderLock(self.files, self.path)
        try:
            recover_replaced(self.files, self.path)
            remove_temporary(self.files, self.path)
            if not resume:
                # Check again: a run may have ended just before the lock was taken.
                check_folder(self.path, overwrite=self._overwrite)
                self.has_old = info_path(self.path).exists()
        except BaseException:
            self.close()
            raise

    @property
    def new_root(self) -> Path:
        """The folder in which a new dataset grows."""
        return self.path / NEXT if self.has_old and has_rename(self.path) else self.path

    def is_replaced_by(self, next_numbers: Sequence[int], *, is_complete: bool = False) -> bool:
        """Return True if a new dataset with this progress is to replace the old one."""
        return self.has_old and (is_complete or all(map(int.__ge__, next_numbers, self.replace_from)))

    def replace_old(self) -> None:
        """Replace the old dataset with the new one; `recover_replaced` finishes this after a failure.

        Object stores cannot rename: there the old data is removed first, and the new info.json and card
        overwrite the old ones. The folder holds a valid dataset whenever a failure interrupts this.
        """
        files = self.files
        root = self.path
        if not has_rename(root):
            for path in (episodes_folder(root), root / "data", stats_path(root), plot_path(root)):
                files.remove(path)
        else:
            for name in DATASET_ENTRIES:
                # `meta` always exists, unless the user removed the folder.
                if name == "meta" or (root / name).exists():
                    files.move(root / name, root / REPLACED / name)
            # `meta` comes last, with all commits at once: it makes the new dataset the valid one.
            for name in reversed(DATASET_ENTRIES):
                if (root / NEXT / name).exists():
                    files.move(root / NEXT / name, root / name)
            for name in (REPLACED, NEXT):
                files.remove(root / name)
        self.has_old = False

    def move_aside(self, paths: Sequence[Path]) -> None:
        """Move damaged files, relative to the folder, out of the dataset into a repair folder."""
        aside = aside_path(self.path)
        for path in paths:
            self.files.move(self.path / path, aside / path)

    def close(self) -> None:
        """Release the lock; repeatable."""
        if self._lock is not None:
            self._lock.release()

    def remove_if_empty(self) -> None:
        """Remove the folder if it was created for this dataset and has no episodes."""
        if self._is_new:
            with suppress(OSError):  # It has episodes, or another run has started in it.
                self.path.rmdir()


def current_root(root: Path) -> Path:
    """Return the folder of `root`'s dataset: `REPLACED` if a run was killed while it replaced the dataset."""
    was_killed = (root / REPLACED).exists() and not info_path(root).exists()
    return root / REPLACED if was_killed else root


def has_no_dataset(root: Path) -> bool:
    """Return True if `root` is empty, or a run in it was killed before it wrote info.json."""
    return all(name.endswith(".tmp") or name in DATASET_ENTRIES for name in _names(root)) and not any(
        path.is_file() and not path.name.endswith(".tmp") for path in _dataset_paths(root)
    )


def check_folder(root: Path, *, overwrite: bool) -> None:
    """Raise `DatasetExistsError` if `root` is not empty, unless it holds a dataset that may be replaced."""
    file_store(root)  # Refuses a URI that is only read.
    if not _names(root):
        return
    if not overwrite:
        raise DatasetExistsError(
            f"{root} exists and is not empty",
            code="folder-not-empty",
            hint="choose another {output}, or replace a dataset with {overwrite=True}",
        )
    for path in _dataset_paths(root):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not _OURS.fullmatch(name):
            raise DatasetExistsError(
                f"{root} holds {name!r}, which is not part of a dataset, so the folder is not replaced",
                code="folder-has-other-files",
                hint="move the file away, or choose another {output}",
            )
    if has_no_dataset(root):
        return
    try:
        read_info(current_root(root))
    except DatasetFormatError as error:
        raise DatasetExistsError(
            f"{root} is not a dataset, so it is not replaced: {error.message}",
            code="folder-not-a-dataset",
            hint="choose another {output}",
        ) from error


def _dataset_paths(root: Path) -> list[Path]:
    """Return every path that removing the dataset would remove; other entries are never touched."""
    tops = [root / name for name in DATASET_ENTRIES]
    with accessing(root):
        return [path for top in tops if top.exists() for path in (top, *sorted(top.rglob("*")))]


def _names(root: Path) -> list[str]:
    """Return the names in a folder without the lock file; none for a missing folder."""
    try:
        with accessing(root, FileNotFoundError, NotADirectoryError):
            return [path.name for path in root.iterdir() if path.name != LOCK_NAME]
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise DatasetExistsError(
            f"{root} is a file, or is inside one", code="folder-is-a-file", hint="choose another {output}"
        ) from error


def recover_replaced(files: FileStore, root: Path) -> None:
    """Finish an interrupted replacement: restore the old dataset, unless the new one has a commit."""
    replaced = root / REPLACED
    if not replaced.exists():
        return
    if not any(episodes_folder(root).glob("chunk-*/file-*.parquet")):
        # `meta` comes last: its commits mark this recovery as done.
        for name in reversed(DATASET_ENTRIES):
            if (replaced / name).exists():
                files.remove(root / name)
                files.move(replaced / name, root / name)
    files.remove(replaced)


def remove_dataset(files: FileStore, root: Path) -> None:
    """Remove a dataset and its unfinished files; keep all other entries of the folder."""
    for name in DATASET_ENTRIES:
        files.remove(root / name)
    remove_temporary(files, root)


def remove_temporary(files: FileStore, root: Path) -> None:
    """Remove unfinished files of a run."""
    # Listing a remote folder returns only files.
    for path in {*root.glob(".*.tmp"), *([root / NEXT] if has_rename(root) else [])}:
        files.remove(path)


def check_free_space(root: Path) -> str | None:
    """Check that `root` is writable, before workers start; return a warning if little space is free."""
    if isinstance(root, RemotePath):
        file_store(root)  # As above.
        root.check_server()
        return None
    with accessing(root):
        place = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
        free = shutil.disk_usage(place).free
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(
            f"{place} is not a writable folder",
            code="folder-not-writable",
            hint="choose another {output}",
        )
    return f"only {free >> 20} MB are free at {place}" if free < FEW_BYTES else None


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or folder; on exit it is synced and renamed to `path`.

    The next attempt removes what a killed process left behind.

    Raises:
        DatasetExistsError: If `path` exists.
        DatasetLockedError: If another process is writing it.
        StorageError: If a disk operation fails.
        UsageError: If `path` is a URI.
    """
    if isinstance(path, RemotePath):
        raise UsageError(
            f"{path} is not a local path",
            code="output-not-local",
            hint="write to a local folder, and copy it",
        )
    files = FileStore()
    with files.operation("write", path):
        if path.exists() or path.is_symlink():
            raise DatasetExistsError(
                f"{path} already exists", code="output-exists", hint="remove it, or choose another path"
            )
        folder = path.with_name(f".{path.name}.part")
        if folder.is_symlink():
            folder.unlink()
        new_parents = [parent for parent in path.parents if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / path.name
        with FolderLock(files, folder):
            try:
                files.remove(place)
                yield place
                for written in (place, *place.rglob("*")):
                    files.sync(written)
                files.move(place, path)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # They are not empty if the output was written.
                    for parent in new_parents:
                        parent.rmdir()
