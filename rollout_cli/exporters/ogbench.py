"""OGBench's npz format: https://github.com/seohongpark/ogbench."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable

import numpy as np

from rollout_cli.exporters.format import Array, Export, Format
from rollout_cli.exporters.source import EpisodeSource, with_last


def write(export: Export) -> None:
    """Write one array per field, for OGBench's `load_dataset`.

    An episode has one more row than steps. That row has the last observation and an action of zeros, and
    `terminals` marks it.
    """
    rows = export.n_steps + len(export.lengths)
    with zipfile.ZipFile(export.path, "w") as archive:
        for name, parts in _columns(export.source).items():
            _put(archive, name, rows, parts)
        if export.losses:
            _put(archive, "not_held", len(export.losses), [np.array(export.losses)])


def _put(archive: zipfile.ZipFile, name: str, n_rows: int, parts: Iterable[Array]) -> None:
    """Write an array of `n_rows` rows, part by part."""
    # A bare ZipInfo has a constant time, but a file name would get the current time.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        for index, part in enumerate(parts):
            if index == 0:
                header = np.lib.format.header_data_from_array_1_0(part)
                header["shape"] = (n_rows, *part.shape[1:])
                np.lib.format.write_array_header_2_0(member, header)
            member.write(part.tobytes())


def _columns(source: EpisodeSource) -> dict[str, Iterable[Array]]:
    """Return the arrays by name, as generators; each one iterates over all episodes."""
    return {
        "observations": (with_last(episode.observations, episode.last_observation) for episode in source),
        "actions": (with_last(episode.actions, np.zeros_like(episode.actions[0])) for episode in source),
        "terminals": (np.arange(len(episode) + 1) == len(episode) for episode in source),
    }


FORMAT = Format(
    "ogbench",
    "OGBench",
    write,
    suffixes=(".npz",),
    ends_apart=False,
    float64=False,
    never=("rewards",),
)
