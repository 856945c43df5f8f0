"""What the HDF5 formats share: a file, and trees as groups."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any

from rollout_cli.episodes.spaces import Tree
from rollout_cli.errors import StorageError, UnsupportedSpaceError
from rollout_cli.exporters.format import Export
from rollout_cli.loading import needing


class _Disk(FileIO):
    """A file whose errors are kept, and no longer raised once it `is_closing`.

    HDF5 ends the process where it cannot write what it closes; of datasets it loses the error, too.
    """

    failure: OSError | None = None
    is_closing = False

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        try:
            while rest:  # A disk that has little room takes a part.
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = self.failure or error
            if not self.is_closing:
                raise
        return len(data)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block; the main thread alone is interrupted."""
    late = []
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda number, _: late.append(number)) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
        for number in late[:1]:
            signal.raise_signal(number)


@contextmanager
def hdf5_file(export: Export, name: str = "") -> Iterator[Any]:
    """Give a new HDF5 file to write, the export itself or a file in its folder.

    Its attribute `not_held` says what the format does not hold. Equal episodes become equal bytes.

    Raises:
        StorageError: If the disk fails.
        UsageError: If h5py is not installed.
    """
    with needing("h5py"):
        import h5py  # noqa: PLC0415 - an optional package
    path = export.path / name if name else export.path
    free = shutil.disk_usage(path.parent).free
    if free < export.size:  # Rather than after an hour.
        raise StorageError(
            f"cannot write {export.target}: it needs {export.size:,} bytes, and its disk has {free:,} left",
            code="disk-full",
            hint="free some space, or choose another disk",
        )
    with _Disk(path, "w+") as disk:
        try:
            file = h5py.File(disk, "w")
            try:
                if export.losses:
                    file.attrs["not_held"] = list(export.losses)
                yield file
            finally:
                disk.is_closing = True
                with _interrupted_later():  # Of an interrupted write h5py raises an AttributeError.
                    file.close()
        except Exception as error:
            if disk.failure is None and not isinstance(error, RuntimeError):
                raise
            raise disk.failure or OSError(str(error)) from error
        if disk.failure is not None:
            raise disk.failure


def put_tree(group: Any, name: str, tree: Tree) -> None:
    """Write a tree of arrays: a group for a dict or a tuple, whose members are `_index_0` and so on.

    Raises:
        UnsupportedSpaceError: If a key cannot name a member of a group.
    """
    if not isinstance(tree, dict | tuple):
        group[name] = tree.tolist() if tree.dtype == object else tree  # h5py stores lists of texts as UTF-8.
        return
    below = group.create_group(name)
    items = (
        tree.items() if isinstance(tree, dict) else ((f"_index_{at}", each) for at, each in enumerate(tree))
    )
    for key, child in items:
        if not isinstance(key, str) or not key.strip(".") or "/" in key or "\0" in key:
            raise UnsupportedSpaceError(
                f"the key {key!r} of a Dict space cannot be a name in an HDF5 file",
                code="format-key",
                hint="make the space a vector: {set=flatten=true}",
            )
        put_tree(below, key, child)
