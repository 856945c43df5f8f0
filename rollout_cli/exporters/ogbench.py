"""OGBench's npz format: https://github.com/seohongpark/ogbench."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable

import numpy as np

from rollout_cli.exporters.format import Array, Export, Format
from rollout_cli.exporters.source import EpisodeLike, with_last


def write(export: Export) -> None:
    """Write one array a field, as OGBench's `load_dataset` reads them.

    An episode has one row more than steps: its last observation, which `terminals` marks, beside zeros for an
    action.
    """
    rows = int(export.lengths.sum()) + len(export.lengths)
    with zipfile.ZipFile(export.path, "w") as archive:
        for name, part in (("observations", _observations), ("actions", _actions), ("terminals", _terminals)):
            _put(archive, name, rows, map(part, export.source))
        if export.losses:
            _put(archive, "not_held", len(export.losses), [np.array(export.losses)])


def _put(archive: zipfile.ZipFile, name: str, rows: int, parts: Iterable[Array]) -> None:
    """Write an array of so many rows, one part of them after the other."""
    # A ZipInfo by itself has no time of day, which a name alone would have.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        for at, part in enumerate(parts):
            if at == 0:
                header = np.lib.format.header_data_from_array_1_0(part) | {"shape": (rows, *part.shape[1:])}
                np.lib.format.write_array_header_2_0(member, header)
            member.write(part.tobytes())


def _observations(episode: EpisodeLike) -> Array:
    return with_last(episode.observations, episode.last_observation)


def _actions(episode: EpisodeLike) -> Array:
    return with_last(episode.actions, np.zeros_like(episode.actions[0]))


def _terminals(episode: EpisodeLike) -> Array:
    return np.asarray(np.arange(len(episode) + 1) == len(episode))


FORMAT = Format(
    "ogbench",
    "OGBench",
    write,
    suffixes=(".npz",),
    ends_apart=False,
    float64=False,
    never=("rewards",),
)
