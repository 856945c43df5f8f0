"""Exporting: one call writes a dataset in the format of another tool, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rollout_cli.dataset.store import staged
from rollout_cli.errors import UsageError
from rollout_cli.exporters.format import Export, Format
from rollout_cli.exporters.registry import format_named
from rollout_cli.exporters.source import EpisodeSource, FlatSource
from rollout_cli.remote import folder_of


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


def export(
    dataset: EpisodeSource,
    format: str,  # noqa: A002 - the word of the command line
    path: Path | str,
    *,
    flatten: bool = False,
    **options: Any,
) -> ExportSummary:
    """Write the episodes of a dataset, or of a selection, in the format of another tool.

    Args:
        dataset: The episodes; it is only read.
        format: The name of the format.
        path: The file or folder to write; it must not exist.
        flatten: Whether Dict and Tuple spaces become vectors, as `gymnasium.spaces.flatten` makes them.
        **options: Options of the format.

    Raises:
        DatasetExistsError: If `path` exists.
        StorageError: If a disk fails, or the dataset is damaged.
        UnsupportedSpaceError: If the format does not hold the spaces.
        UsageError: If there is no episode, the format or an option is unknown, a package is missing, or a
            value has no flat form.
    """
    chosen, path = format_named(format), folder_of(path)
    _check_options(chosen, {"flatten": flatten, **options})
    if not len(dataset):
        raise UsageError("there is no episode to export", hint="choose some episodes, or another dataset")
    if chosen.suffixes and path.suffix not in chosen.suffixes:
        raise UsageError(
            f"{format} is a file: {path} does not end in {' or '.join(chosen.suffixes)}",
            hint=f"name it so: {{output={json.dumps(str(path) + chosen.suffixes[0])}}}",
        )
    source = FlatSource(dataset) if flatten else dataset
    chosen.check(source.env_spec)
    losses = tuple(chosen.losses(source))
    with staged(path) as place:
        job = Export(source, place, path, losses)
        chosen.write(job, **options)
    return ExportSummary(path, format, len(dataset), int(job.lengths.sum()), losses)


def _check_options(chosen: Format, options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that the format has not, or a value of another type."""
    types = {"flatten": bool, **chosen.options}
    for name, value in options.items():
        if name not in types:
            raise UsageError(
                f"{chosen.name} has no option {name!r}", hint=f"its options are: {', '.join(types)}"
            )
        kinds = get_args(types[name]) or (types[name],)
        if type(value) not in kinds and not (type(value) is int and float in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(
                f"{chosen.name} takes {expected} for {name}, and not {value!r} ({type(value).__name__})",
                hint="values are TOML literals: true, 30, 0.5, or '\"3\"' for a text of digits",
            )
