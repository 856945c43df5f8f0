"""Whether a dataset can be written at a place: asked before workers start, or it would be found out only afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rollout_cli.errors import StorageError

LEAST_BYTES = 16 << 20
FEW_BYTES = 256 << 20


def check_room(root: Path) -> str | None:
    """Check that `root` can be written to; return a warning where little room is left.

    Raises:
        StorageError: If it cannot be written to, or there is next to no room.
    """
    place = next((folder for folder in (root, *root.absolute().parents) if folder.exists()), Path("/"))
    if not place.is_dir():
        raise StorageError(f"{place} is no folder", hint="choose another --output")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"the folder {place} cannot be written to", hint="choose another --output")
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise StorageError(f"cannot tell how much room there is at {place}: {error.strerror or error}") from error
    if free < LEAST_BYTES:
        raise StorageError(
            f"the disk of {place} is full: {free >> 20} MB are free", hint="make room, or choose another --output"
        )
    return f"only {free >> 20} MB are free at {place}" if free < FEW_BYTES else None
