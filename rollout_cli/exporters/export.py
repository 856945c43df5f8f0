"""Exporting: one call writes a dataset in the format of another tool, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_cli.dataset.staging import staged
from rollout_cli.errors import UsageError
from rollout_cli.exporters.flat import FlatSource
from rollout_cli.exporters.format import Export
from rollout_cli.exporters.registry import format_named
from rollout_cli.exporters.source import EpisodeSource


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What was written.

    Attributes:
        path: Where.
        format: In which format.
        episodes: How many episodes.
        steps: How many steps.
        losses: What the format does not hold of them, a sentence each.
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
        UsageError: If there is no episode, the format or an option is unknown, or a package is missing.
    """
    chosen, path = format_named(format), Path(path)
    if not len(dataset):
        raise UsageError("there is no episode to export", hint="choose some episodes, or another dataset")
    if unknown := options.keys() - chosen.options.keys():
        known = ", ".join(["flatten", *chosen.options])
        raise UsageError(f"{format} has no option {min(unknown)!r}", hint=f"its options are: {known}")
    if chosen.suffixes and path.suffix not in chosen.suffixes:
        raise UsageError(
            f"{format} is a file: {path} does not end in {' or '.join(chosen.suffixes)}",
            hint="name a file: {output=" + str(path.with_suffix(chosen.suffixes[0])) + "}",
        )
    source = FlatSource(dataset) if flatten else dataset
    chosen.check(source.env_spec)
    losses = tuple(chosen.losses(source))
    with staged(path) as place:
        job = Export(source, place, path, losses)
        chosen.write(job, **options)
    return ExportSummary(path, format, len(dataset), int(job.lengths.sum()), losses)
