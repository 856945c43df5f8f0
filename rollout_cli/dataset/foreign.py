"""What in a folder is not a dataset's own: `--overwrite` must remove nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rollout_cli.dataset.lock import LOCK_NAME

REPLACED = ".replaced"
"""Where the files of a dataset that is being replaced wait until the new one has its info.json."""

REPAIRED = re.compile(r"\.repair-\d{8}T\d{6}Z")
"""Folders into which a repair moved what did not belong; they are left as they are."""

OURS = (".README.md.tmp", "README.md", "data", "meta")
"""What lies at the top of a dataset's folder. `meta` is the last to be moved or removed: it tells that this is ours."""

_SHARDS = r"chunk-\d+(?:/\.?file-\d+\.parquet(?:\.tmp)?)?"
_INSIDE = re.compile(
    rf"data/{_SHARDS}|meta/(?:\.?[a-z_]+\.json(?:\.tmp)?|episodes(?:/{_SHARDS})?)",
)


def foreign_entry(root: Path) -> str | None:
    """Return the path, below `root`, of something that no dataset of ours has; None where there is nothing such.

    A symbolic link is such a thing, wherever it lies and whatever it is called.

    Raises:
        OSError: If a folder cannot be read.
    """
    return next((path for path, is_link in _entries(root, "") if is_link or not _is_ours(path)), None)


def _is_ours(path: str) -> bool:
    inner = path.removeprefix(f"{REPLACED}/")
    return (
        path in (REPLACED, LOCK_NAME)
        or REPAIRED.fullmatch(path) is not None
        or inner in OURS
        or _INSIDE.fullmatch(inner) is not None
    )


def _entries(folder: Path, prefix: str) -> Iterator[tuple[str, bool]]:
    """Yield all paths below `folder`, by name, and whether each is a link; links are not followed."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        yield path, entry.is_symlink()
        # What is not ours is not looked into: it ends the search, and may be deeper than anything of ours.
        if entry.is_dir(follow_symlinks=False) and _is_ours(path) and not REPAIRED.fullmatch(path):
            yield from _entries(folder / entry.name, f"{path}/")
