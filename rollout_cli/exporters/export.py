"""Exporting: one call writes a dataset in the format of another tool, whole or not at all."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

import numpy as np

from rollout_cli.dataset.folder import staged
from rollout_cli.dataset.reader import Dataset, require_valid
from rollout_cli.episodes.plain import Document
from rollout_cli.errors import UsageError
from rollout_cli.exporters import (
    columns,
    d3rlpy,
    hf,
    imitation,
    lerobot,
    minari,
    ogbench,
    rllib,
    robomimic,
    torchrl,
    zarr,
)
from rollout_cli.exporters.format import Export, Format
from rollout_cli.exporters.source import EpisodeSource, FlatSource
from rollout_cli.sources.loading import first_line
from rollout_cli.sources.remote import folder_of

ENTRY_POINTS = "rollout.exporters"
"""The group of entry points by which another package adds a `Format`, under its name."""

FORMATS: dict[str, Format] = {
    exporter.name: exporter
    for exporter in (
        d3rlpy.FORMAT,
        columns.D4RL,
        hf.FORMAT,
        imitation.FORMAT,
        lerobot.FORMAT,
        minari.FORMAT,
        ogbench.FORMAT,
        rllib.FORMAT,
        robomimic.FORMAT,
        columns.TIANSHOU,
        torchrl.FORMAT,
        zarr.FORMAT,
    )
}
"""Our own formats."""


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What was written.

    Attributes:
        path: Where.
        format: In which format.
        episodes: How many episodes.
        steps: How many steps.
        losses: What the format does not hold of them, a few words each.
    """

    path: Path
    format: str
    episodes: int
    steps: int
    losses: tuple[str, ...]


@np.errstate(all="ignore")  # Losses say what becomes of large rewards.
def export(
    dataset: EpisodeSource,
    format: str,  # noqa: A002 - the word of the command line
    path: Path | str,
    *,
    flatten: bool = False,
    verify: bool = True,
    **options: Any,
) -> ExportSummary:
    """Write the episodes of a dataset, or of a selection, in the format of another tool.

    Args:
        dataset: The episodes; it is only read.
        format: The name of the format.
        path: The file or folder to write; it must not exist.
        flatten: Whether Dict and Tuple spaces become vectors, as `gymnasium.spaces.flatten` makes them.
        verify: Whether to check the files of a dataset's episodes first, as `rollout verify` does.
        **options: Options of the format.

    Raises:
        DatasetExistsError: If `path` exists.
        DatasetLockedError: If another process writes it.
        StorageError: If a disk fails, or the dataset is damaged.
        UnsupportedSpaceError: If the format does not hold the spaces.
        UsageError: If there is no episode, the format or an option is unknown, a package is missing, or a
            value has no flat form.
    """
    chosen = _format_named(format)
    path = folder_of(path)
    _check_options(chosen, {"flatten": flatten, **options})
    if not len(dataset):
        raise UsageError(
            "there is no episode to export",
            code="no-episode",
            hint="choose some episodes, or another dataset",
        )
    if chosen.suffixes and path.suffix not in chosen.suffixes:
        raise UsageError(
            f"{format} is a file: {path} does not end in {' or '.join(chosen.suffixes)}",
            code="output-suffix",
            hint=f"name it so: {{output={json.dumps(str(path) + chosen.suffixes[0])}}}",
        )
    if isinstance(dataset, Dataset):
        if dataset.path.resolve() in path.resolve().parents:
            raise UsageError(
                f"{dataset.path} is read itself",
                code="output-is-input",
                hint="write to a folder outside of it",
            )
        if verify:
            require_valid(dataset)
    source = FlatSource(dataset) if flatten else dataset
    chosen.check(source.env_spec)
    losses = tuple(chosen.losses(source))
    with staged(path) as place:
        job = Export(source, place, path, losses)
        chosen.write(job, **options)
    return ExportSummary(path, format, len(dataset), job.n_steps, losses)


def _format_named(name: str) -> Format:
    """Return a format.

    Raises:
        UsageError: If there is none of this name, or the package that adds it does not work.
    """
    if name in FORMATS:
        return FORMATS[name]
    added = entry_points(group=ENTRY_POINTS)
    if name not in added.names:
        names = sorted({*FORMATS, *added.names})
        hint = f"the formats are {', '.join(names)}"
        for close in difflib.get_close_matches(name, names, n=1):
            hint += f"; did you mean {close}?"
        raise UsageError(f"there is no format {name!r}", code="format-unknown", hint=hint)
    try:
        added_format = added[name].load()
    except Exception as error:
        raise UsageError(
            f"the format {name} cannot be loaded from {added[name].value}: {first_line(error)}",
            code="format-plugin",
            hint="mend or remove the package that adds it",
        ) from error
    if not isinstance(added_format, Format):
        raise UsageError(
            f"{added[name].value} is a {type(added_format).__name__}, and no format for {name!r}",
            code="format-plugin",
        )
    return added_format


def _check_options(chosen: Format, options: Document) -> None:
    """Raise UsageError for an option that the format has not, or a value of another type."""
    types = {"flatten": bool, **chosen.options}
    for name, value in options.items():
        if name not in types:
            raise UsageError(
                f"{chosen.name} has no option {name!r}",
                code="format-option",
                hint=f"its options are: {', '.join(types)}",
            )
        kinds = get_args(types[name]) or (types[name],)
        if type(value) not in kinds and not (type(value) is int and float in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(
                f"{chosen.name} takes {expected} for {name}, and not {value!r} ({type(value).__name__})",
                code="format-option",
                hint="values are TOML literals: true, 30, 0.5, or '\"3\"' for a text of digits",
            )
