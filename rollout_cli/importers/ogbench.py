"""OGBench's npz format: https://github.com/seohongpark/ogbench."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import ENDS, REWARDS, SEEDS, Foreign, Format
from rollout_cli.recording.arrays import EpisodeArrays

_REQUIRED = ("observations", "actions", "terminals")
_INFOS = ("qpos", "qvel", "button_states")
"""The state of the simulator, which some datasets have too."""


class _Column:
    """An array (N, *shape) of an npz file, read in order: only an array in Fortran order must fit in memory."""

    def __init__(self, path: Path, name: str, stream: IO[bytes]) -> None:
        self._stream = stream
        version = npy.read_magic(self._stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, is_fortran, self._dtype = header(self._stream)
        if not self.shape or self._dtype.hasobject:
            raise DatasetFormatError(
                f"{name} of {path} is a scalar or has objects, expected rows of numbers",
                code="import-damaged",
            )
        self._whole: Array | None = None
        if is_fortran:
            self._whole = np.frombuffer(self._stream.read(), self._dtype).reshape(self.shape[::-1]).T

    def read(self, n_rows: int) -> Array:
        """Return the next rows."""
        if self._whole is not None:
            rows, self._whole = np.split(self._whole, [n_rows])
            return rows
        data = self._stream.read(n_rows * math.prod(self.shape[1:]) * self._dtype.itemsize)
        return np.frombuffer(data, self._dtype).reshape(n_rows, *self.shape[1:])


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a file for OGBench's `load_dataset`.

    The last row of an episode, which `terminals` marks, has its last observation, and an action that is not
    used.
    """
    # An open array keeps the file open.
    with zipfile.ZipFile(path) as archive, ExitStack() as opened:
        stored = {*archive.namelist()}
        for name in _REQUIRED:
            if f"{name}.npy" not in stored:
                raise DatasetFormatError(f"{path} has no array {name}", code="import-damaged")
        columns = {
            name: _Column(path, name, opened.enter_context(archive.open(f"{name}.npy")))
            for name in (*_REQUIRED, *_INFOS)
            if f"{name}.npy" in stored
        }
        terminals = columns.pop("terminals")
        n_rows = {name: column.shape[0] for name, column in columns.items()}
        ends = terminals.read(terminals.shape[0])
        if {*n_rows.values()} != {len(ends)} or ends.ndim != 1 or not ends[-1:].all():
            raise DatasetFormatError(
                f"{path} has the rows {n_rows} and terminals of shape {ends.shape}, expected equal numbers, "
                "and a terminal in the last row",
                code="import-damaged",
            )
        yield Foreign(episodes=_episodes(columns, np.flatnonzero(ends)), unknown=(SEEDS, REWARDS, ENDS))


def _episodes(columns: Mapping[str, _Column], ends: Array) -> Iterator[EpisodeArrays]:
    for n_rows in np.diff(ends, prepend=-1).tolist():
        rows = {name: column.read(n_rows) for name, column in columns.items()}
        if n_rows > 1:
            yield EpisodeArrays(
                observations=rows["observations"],
                actions=rows["actions"][:-1],
                rewards=None,
                terminated=False,
                truncated=True,
                env_infos={name: rows[name][:-1] for name in _INFOS if name in rows},
            )


def _recognises(path: Path) -> bool:
    if path.suffix != ".npz":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {f"{name}.npy" for name in _REQUIRED} <= {*archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return False


FORMAT = Format("ogbench", "OGBench", _recognises, read)
