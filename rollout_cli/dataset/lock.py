"""FolderLock: one writer a dataset folder."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from rollout_cli.dataset.files import FileStore
from rollout_cli.errors import DatasetLockedError

LOCK_NAME = ".lock"

_held: set[int] = set()


def _forget_in_child() -> None:
    """Close what a forked child has inherited: a worker that outlives a killed run must not keep its lock."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class FolderLock:
    """A lock on a folder, which the system releases when the process ends, however it ends.

    The lock's file stands beside `data` and `meta`, so that it stays where it is while a dataset is replaced. Left
    behind after a kill it locks nothing. On a file system without locks, nobody is kept out.

    Args:
        files: The disk.
        root: The folder, which exists.

    Raises:
        DatasetLockedError: If another writer has it, in this process or another one.
        StorageError: If the lock's file cannot be made.
    """

    def __init__(self, files: FileStore, root: Path) -> None:
        self._path = root / LOCK_NAME
        self._descriptor: int | None = None
        while self._descriptor is None:
            with files.operation("open", self._path):
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                self._take(descriptor, root)
            except BaseException:
                os.close(descriptor)
                raise
            # Whoever had it before may have removed the file after we opened it.
            if self._is_at_its_place(descriptor):
                self._descriptor = descriptor
                _held.add(descriptor)
            else:
                os.close(descriptor)

    def release(self) -> None:
        """Let others write; may be called again."""
        if self._descriptor not in _held:
            return  # Released before, or closed in a forked child.
        # First the name, then the lock: the other way round, the file of the next one could be removed. Where it cannot
        # be removed it stays, and locks nothing. The folder itself may be gone.
        with suppress(OSError):
            self._path.unlink()
        _held.remove(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None

    def _take(self, descriptor: int, root: Path) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DatasetLockedError(
                f"{root} is being written by another run",
                hint=f"wait until it has ended, or choose another --output; {self._path} is locked as long as it runs",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    def _is_at_its_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False
