"""What lies in a dataset's folder: its data and episodes files by place, and everything that does not belong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollout_cli.dataset.foreign import OURS, REPAIRED, REPLACED
from rollout_cli.dataset.layout import info_path
from rollout_cli.dataset.lock import LOCK_NAME
from rollout_cli.dataset.shard import Place, data_path, episodes_path

_PLACE = re.compile(r"chunk-(\d{5,})/file-(\d{5,})\.parquet")


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a dataset's folder.

    Attributes:
        data: Places that have a data file, ascending.
        episodes: Places that have an episodes file, ascending.
        strays: Files within the dataset's own folders that are none of its own, and unfinished ones; what was moved
            aside by a repair is not among them.
        foreign: Names in the folder itself that are none of a dataset's.
    """

    data: tuple[Place, ...]
    episodes: tuple[Place, ...]
    strays: tuple[Path, ...]
    foreign: tuple[str, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """Return all places, ascending."""
        return tuple(sorted({*self.data, *self.episodes}))


def survey(root: Path) -> Folder:
    """Look at every file below `root`; links to folders are not followed.

    Raises:
        OSError: If a folder cannot be read.
    """
    data: list[Place] = []
    episodes: list[Place] = []
    known = {info_path(root), root / "meta" / "stats.json"}
    strays = []
    for path in sorted(path for name in ("data", "meta") for path in _files(root / name)):
        place = _place(path)
        if place is not None and path == data_path(root, place):
            data.append(place)
        elif place is not None and path == episodes_path(root, place):
            episodes.append(place)
        elif path not in known:
            strays.append(path)
    names = sorted(entry.name for entry in root.iterdir())
    known_names = {*OURS, REPLACED, LOCK_NAME}
    unfinished = [root / name for name in names if name in known_names - {LOCK_NAME} and name.startswith(".")]
    foreign = [name for name in names if name not in known_names and not REPAIRED.fullmatch(name)]
    return Folder(tuple(sorted(data)), tuple(sorted(episodes)), (*strays, *unfinished), tuple(foreign))


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_symlink():
        yield folder
        return
    for parent, folders, names in os.walk(folder, onerror=_raise):
        yield from (Path(parent) / name for name in names)
        yield from (Path(parent) / name for name in folders if (Path(parent) / name).is_symlink())


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _place(path: Path) -> Place | None:
    found = _PLACE.fullmatch("/".join(path.parts[-2:]))
    return (int(found[1]), int(found[2])) if found else None
