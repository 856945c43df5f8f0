"""Rewriting: episodes of datasets become a new dataset, a row group at a time; the old datasets stay.

What is written is committed like a run. A dataset that is made of others names the runs of its episodes
(`sources`) and how it was made of them (`derived`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.fingerprint import fingerprint_of
from rollout_cli.dataset.folder import OutputFolder
from rollout_cli.dataset.inference import choose_kind
from rollout_cli.dataset.metadata import DatasetSettings, DatasetSummary
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.schema import InfoColumns, info_columns_of
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import UsageError

_SAME = ("spaces", "max_episode_length", "next_observation")

Rewritten = tuple[Chunk, int, Array | None]
"""Whole episodes, the partition they go to, and their sources, int64 (N,); None for the first source."""


def rewrite(
    chunks: Iterable[Rewritten], folder: OutputFolder, settings: DatasetSettings, **facts: Any
) -> DatasetSummary:
    """Write episodes, whose sources have `columns`, to a complete dataset.

    Its info.json records the `facts` of the first source.

    Raises:
        DatasetExistsError: If the folder holds something that may not be replaced.
        StorageError: If a disk fails, or a dataset that is read is damaged.
    """
    with DatasetWriter(folder, settings) as writer:
        for chunk, partition, sources in chunks:
            writer.write(chunk, partition=partition, sources=sources)
        return writer.close(status="complete", **facts)


def derive(
    inputs: Sequence[Dataset], folder: OutputFolder, *, operation: str, options: Mapping[str, Any]
) -> DatasetSummary:
    """Write the episodes of datasets, or of selections of them, after one another; the rest is `rewrite`'s.

    Args:
        inputs: What is read. Datasets of one run share its record.
        folder: Where the new dataset goes.
        operation: What is done, as info.json names it.
        options: How, as plain values.

    Raises:
        UsageError: If there is no episode, one is given twice, or the datasets have different spaces or
            limits.
    """
    inputs = [dataset for dataset in inputs if len(dataset)]
    if not inputs:
        raise UsageError("there is no episode to write", hint="choose some episodes, or another dataset")
    first = inputs[0].info
    for dataset in inputs:
        if dataset.path.resolve() == folder.path:
            raise UsageError(f"{dataset.path} is read itself", hint="write to another folder")
        if differing := [name for name in _SAME if dataset.info[name] != first[name]]:
            raise UsageError(
                f"{dataset.path} and {inputs[0].path} do not fit together: {', '.join(differing)} differ",
                hint="join datasets of one environment",
            )
    sources = {source["run"]: source for dataset in inputs for source in dataset.info["sources"]}
    fingerprints = [fingerprint_of(dataset.info) for dataset in inputs]
    made = {"operation": operation, "options": dict(options), "inputs": fingerprints}
    before = [step for dataset in inputs for step in dataset.info["derived"]]
    settings = DatasetSettings(
        inputs[0].env_spec,
        list(sources.values()),
        first_numbers=[0],
        next_observation=first["next_observation"],
        limits=SizeLimits(**first["limits"]),
        columns=_joined_columns(inputs),
        derived=[*(step for at, step in enumerate(before) if step not in before[:at]), made],
    )
    return rewrite(_chunks(inputs, list(sources)), folder, settings)


def _chunks(inputs: Sequence[Dataset], runs: Sequence[str]) -> Iterator[Rewritten]:
    """Yield all episodes with their places among the `runs`."""
    places = [
        np.array([runs.index(source["run"]) for source in dataset.info["sources"]]) for dataset in inputs
    ]
    pairs = [(dataset.rows, place) for dataset, place in zip(inputs, places, strict=True)]
    columns = [(place[rows.column("source")], rows.column("episode_number")) for rows, place in pairs]
    identities = np.concatenate([np.column_stack(pair) for pair in columns])
    if len(np.unique(identities, axis=0)) < len(identities):
        raise UsageError(
            "an episode is given twice: two datasets have it", hint="give each episode of a run once"
        )
    for rows, place in pairs:
        for block in rows.blocks():
            yield block.chunk(), 0, place[block.column("source")]


def _joined_columns(inputs: Sequence[Dataset]) -> InfoColumns:
    """Return the info columns that hold the values of all; those without a common kind become JSON."""
    met: dict[str, tuple[tuple[str, ...], dict[str, bool]]] = {}
    for dataset in inputs:
        for name, (path, kind) in info_columns_of(dataset.info["features"]).items():
            met.setdefault(name, (path, {}))[1][kind] = False
    chosen = ((name, path, choose_kind(kinds)) for name, (path, kinds) in sorted(met.items()))
    return {name: (path, kind) for name, path, kind in chosen if kind is not None}
