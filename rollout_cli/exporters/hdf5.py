"""What the HDF5 formats share: a file, and trees as groups."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollout_cli.episodes.spaces import Tree
from rollout_cli.errors import StorageError, UnsupportedSpaceError
from rollout_cli.exporters.format import Export
from rollout_cli.loading import needing


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
    if free < export.size:  # A full disk can end the process: HDF5 cannot close a file that it cannot write.
        raise StorageError(
            f"cannot write {export.target}: it needs {export.size:,} bytes, and its disk has {free:,} left",
            hint="free some space, or choose another disk",
        )
    try:
        with h5py.File(path, "w") as file:
            if export.losses:
                file.attrs["not_held"] = list(export.losses)
            yield file
    except RuntimeError as error:  # So h5py says that the disk is full when it closes a file.
        raise StorageError(
            f"cannot write {export.target}: {error}", hint="check the free space of the disk"
        ) from error


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
                hint="make the space a vector: {set=flatten=true}",
            )
        put_tree(below, key, child)
