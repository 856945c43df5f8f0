"""HDF5 files, and trees as groups in them, for all formats of this kind."""

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
from rollout_cli.sources.loading import needing


class _Disk(FileIO):
    """A file that records its first error, and raises no errors once it `is_closing`.

    HDF5 aborts the process if it cannot write while it closes, and drops errors of datasets.
    """

    failure: OSError | None = None
    is_closing = False

    def write(self, data: Any) -> int:
        remaining = memoryview(data)
        try:
            while remaining:  # A nearly full disk writes less than requested.
                remaining = remaining[super().write(remaining) :]
        except OSError as error:
            self.failure = self.failure or error
            if not self.is_closing:
                raise
        return len(data)


@contextmanager
def _delayed_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; only the main thread receives interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for number in interrupts[:1]:
            signal.raise_signal(number)


@contextmanager
def hdf5_file(export: Export, name: str = "") -> Iterator[Any]:
    """Yield a new HDF5 file to write: the export itself, or a file in its folder.

    Its attribute `not_held` lists the losses of the format. Equal episodes become equal bytes.

    Raises:
        StorageError: If a disk operation fails.
        UsageError: If h5py is not installed.
    """
    with needing("h5py"):
        import h5py  # noqa: PLC0415 - an optional package
    path = export.path / name if name else export.path
    free = shutil.disk_usage(path.parent).free
    if free < export.size:  # Fail now rather than after an hour.
        raise StorageError(
            f"cannot write {export.target}: it needs {export.size:,} bytes, but its disk has {free:,} free",
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
                with _delayed_interrupt():  # An interrupted write makes h5py raise an AttributeError.
                    file.close()
        except Exception as error:
            if disk.failure is None and not isinstance(error, RuntimeError):
                raise
            raise disk.failure or OSError(str(error)) from error
        if disk.failure is not None:
            raise disk.failure


def put_tree(group: Any, name: str, tree: Tree) -> None:
    """Write a tree of arrays; a dict or a tuple becomes a group, with members `_index_0`, … for a tuple.

    Raises:
        UnsupportedSpaceError: If a key is not a valid name of a member.
    """
    if isinstance(tree, tuple):
        tree = {f"_index_{index}": child for index, child in enumerate(tree)}
    if not isinstance(tree, dict):
        # h5py stores lists of strings as UTF-8.
        group[name] = tree.tolist() if tree.dtype == object else tree
        return
    subgroup = group.create_group(name)
    for key, child in tree.items():
        if not isinstance(key, str) or not key.strip(".") or "/" in key or "\0" in key:
            raise UnsupportedSpaceError(
                f"the key {key!r} of a Dict space is not a valid name in an HDF5 file",
                code="format-key",
                hint="flatten the space to a vector: {set=flatten=true}",
            )
        put_tree(subgroup, key, child)
