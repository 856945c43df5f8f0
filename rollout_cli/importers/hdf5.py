"""Reading HDF5 files of others: a missing member is a clear error, and no link leads out of the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.errors import DatasetFormatError
from rollout_cli.sources.loading import needing

SUFFIXES = (".hdf5", ".h5")


@contextmanager
def hdf5_file(path: Path) -> Iterator[Any]:
    """Yield an HDF5 file, open for reading; raise UsageError if h5py is not installed."""
    with needing("h5py"):
        import h5py  # noqa: PLC0415 - an optional package
    with h5py.File(path, "r") as file:
        yield file


def has_members(path: Path, *names: str) -> bool:
    """Return True if h5py is installed and a path is an HDF5 file with these members."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        import h5py  # noqa: PLC0415 - an optional package

        with h5py.File(path, "r") as file:
            return all(name in file for name in names)
    except (ImportError, OSError, RuntimeError):
        return False


def member(group: Any, name: str) -> Any:
    """Return a member of a group.

    Raises:
        DatasetFormatError: If it is missing, or a link to another place.
    """
    import h5py  # noqa: PLC0415 - an optional package, which has opened the group

    for depth in range(1, name.count("/") + 2):
        part = "/".join(name.split("/")[:depth])
        link = group.get(part, getlink=True) if part in group else None
        if not isinstance(link, h5py.HardLink):
            found = "is missing" if link is None else f"is a {type(link).__name__}"
            raise DatasetFormatError(
                f"{group.name.rstrip('/')}/{part} of {group.file.filename} {found}, expected data",
                code="import-damaged",
            )
    values = group[name]
    # Raw data may be in any file of this machine, as those of a link.
    if getattr(values, "external", None) or getattr(values, "is_virtual", False):
        raise DatasetFormatError(
            f"{values.name} of {group.file.filename} has its data in another file, expected them in this one",
            code="import-damaged",
        )
    return values


def array_of(group: Any, name: str) -> Any:
    """Return a member as an array; strings as an object array of `str`."""
    values = member(group, name)
    if not hasattr(values, "dtype"):
        raise DatasetFormatError(
            f"{values.name} of {group.file.filename} is a group, expected an array", code="import-damaged"
        )
    if values.dtype.kind == "O":
        return np.array(values.asstr()[()], object)
    return values[()]


def tree_of(group: Any, name: str) -> Any:
    """Return a member as a tree: groups as dicts, groups of `_index_0`, … as tuples, the rest as arrays."""
    values = member(group, name)
    if hasattr(values, "dtype"):
        return array_of(group, name)
    names = list(values)
    if names and all(each.startswith("_index_") for each in names):
        return tuple(tree_of(values, f"_index_{place}") for place in range(len(names)))
    return {each: tree_of(values, each) for each in names}
