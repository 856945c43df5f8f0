"""Export: one call writes a complete dataset, or nothing, in the format of another tool."""

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
"""The group of entry points with which another package adds a `Format` under a name."""

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
"""The built-in formats."""


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """The result of an export.

    Attributes:
        path: The written file or folder.
        format: The name of the format.
        episodes: The number of episodes.
        steps: The number of steps.
        losses: The data that the format cannot store, a few words each.
    """

    path: Path
    format: str
    episodes: int
    steps: int
    losses: tuple[str, ...]


@np.errstate(all="ignore")  # Losses report the rounding of large rewards.
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
        dataset: The episodes, which are only read.
        format: The name of the format.
        path: The file or folder to write; it must not exist.
        flatten: True to flatten Dict, Tuple and Text spaces to vectors, as `gymnasium.spaces.flatten` does.
        verify: True to check the files of the dataset's episodes first, as `rollout verify` does.
        **options: Options of the format.

    Raises:
        DatasetExistsError: If `path` exists.
        DatasetLockedError: If another process is writing `path`.
        StorageError: If a disk operation fails, or the dataset is damaged.
        UnsupportedSpaceError: If the format cannot store the spaces.
        UsageError: If the dataset is empty, the format or an option is unknown, a package is missing, or a
            value cannot be flattened.

    Example:
        >>> rollout_cli.export(rollout_cli.load("data"), "hf", "exported").steps
        67
    """
    chosen = _format_named(format)
    path = folder_of(path)
    _check_options(chosen, {"flatten": flatten, **options})
    if not len(dataset):
        raise UsageError(
            "the dataset to export has no episodes",
            code="no-episode",
            hint="select at least one episode, or another dataset",
        )
    if chosen.suffixes and path.suffix not in chosen.suffixes:
        raise UsageError(
            f"{path} does not end in {' or '.join(chosen.suffixes)}, as a {format} file must",
            code="output-suffix",
            hint=f"rename the output: {{output={json.dumps(str(path) + chosen.suffixes[0])}}}",
        )
    if isinstance(dataset, Dataset):
        if dataset.path.resolve() in path.resolve().parents:
            raise UsageError(
                f"{dataset.path} is the input of this export, so it cannot hold the output",
                code="output-is-input",
                hint="write to a folder outside the dataset",
            )
        if verify:
            require_valid(dataset)
    source = FlatSource(dataset) if flatten else dataset
    chosen.check(source.env_spec)
    optional = [loss for name, loss in chosen.option_losses if options.get(name)]
    losses = (*chosen.losses(source), *optional)
    with staged(path) as place:
        job = Export(source, place, path, losses)
        chosen.write(job, **options)
    return ExportSummary(path, format, len(dataset), job.n_steps, losses)


def _format_named(name: str) -> Format:
    """Return the format with this name.

    Raises:
        UsageError: If the name is unknown, or loading the package that adds the format fails.
    """
    if name in FORMATS:
        return FORMATS[name]
    added = entry_points(group=ENTRY_POINTS)
    if name not in added.names:
        names = sorted({*FORMATS, *added.names})
        hint = f"choose from {', '.join(names)}"
        for close in difflib.get_close_matches(name, names, n=1):
            hint += f"; did you mean {close}?"
        raise UsageError(f"unknown format {name!r}", code="format-unknown", hint=hint)
    try:
        added_format = added[name].load()
    except Exception as error:
        raise UsageError(
            f"cannot load the format {name} from {added[name].value}: {first_line(error)}",
            code="format-plugin",
            hint="fix or remove the package that adds the format",
        ) from error
    if not isinstance(added_format, Format):
        raise UsageError(
            f"{added[name].value} is a {type(added_format).__name__}, expected a Format for {name!r}",
            code="format-plugin",
        )
    return added_format


def _check_options(chosen: Format, options: Document) -> None:
    """Raise UsageError for an unknown option of the format, or a value of the wrong type."""
    types = {"flatten": bool, **chosen.options}
    for name, value in options.items():
        if name not in types:
            raise UsageError(
                f"unknown option {name!r} of the format {chosen.name}",
                code="format-option",
                hint=f"choose from: {', '.join(types)}",
            )
        kinds = get_args(types[name]) or (types[name],)
        if type(value) not in kinds and not (type(value) is int and float in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(
                f"{name} of the format {chosen.name} is {value!r} ({type(value).__name__}), expected {expected}",
                code="format-option",
                hint="write a TOML literal: true, 30, 0.5, or '\"3\"' for a string of digits",
            )
