"""OGBench's npz format: https://github.com/seohongpark/ogbench."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import ENDS, REWARDS, SEEDS, Foreign, Format
from rollout_cli.recording.arrays import EpisodeArrays

_REQUIRED = ("observations", "actions", "terminals")
_INFOS = ("qpos", "qvel", "button_states")
"""The state of the simulator, which some datasets have too."""


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a file for OGBench's `load_dataset`.

    The last row of an episode, which `terminals` marks, has its last observation, and an action that is not
    used.
    """
    # numpy does not close a damaged file that it has opened by its name.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        columns = {name: archive[name] for name in (*_REQUIRED, *_INFOS) if name in archive}
    for name in _REQUIRED:
        if name not in columns:
            raise DatasetFormatError(f"{path} has no array {name}", code="import-damaged")
    n_rows = {name: len(column) for name, column in columns.items()}
    if len({*n_rows.values()}) != 1 or columns["terminals"].ndim != 1 or not columns["terminals"][-1:].all():
        raise DatasetFormatError(
            f"{path} has the rows {n_rows}, expected equal numbers, and a terminal in the last row",
            code="import-damaged",
        )
    yield Foreign(episodes=_episodes(columns), unknown=(SEEDS, REWARDS, ENDS))


def _episodes(columns: Mapping[str, Array]) -> Iterator[EpisodeArrays]:
    start = 0
    for last in np.flatnonzero(columns["terminals"]).tolist():
        if last > start:
            yield EpisodeArrays(
                observations=columns["observations"][start : last + 1],
                actions=columns["actions"][start:last],
                rewards=None,
                terminated=False,
                truncated=True,
                env_infos={name: columns[name][start:last] for name in _INFOS if name in columns},
            )
        start = last + 1


def _recognises(path: Path) -> bool:
    if path.suffix != ".npz":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {f"{name}.npy" for name in _REQUIRED} <= {*archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return False


FORMAT = Format("ogbench", "OGBench", _recognises, read)
