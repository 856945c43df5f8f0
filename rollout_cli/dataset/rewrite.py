"""Rewriting: new datasets from the episodes of others, one row group at a time.

A new dataset is committed like a run. Its info.json has the runs of its episodes (`sources`) and the
operations that made it (`derived`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.folder import OutputFolder
from rollout_cli.dataset.inference import choose_kind
from rollout_cli.dataset.layout import AnyPath, fingerprint_of
from rollout_cli.dataset.metadata import DatasetSettings, DatasetSummary
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.record import RunRecord
from rollout_cli.dataset.rows import Rows
from rollout_cli.dataset.run_changes import Effect, compare_files, joined_files, of_effect
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episodes.chunk import Chunk, unmatched_patterns, without_infos
from rollout_cli.episodes.infos import InfoColumns, InfoPath
from rollout_cli.episodes.plain import Document, Fields
from rollout_cli.errors import UsageError
from rollout_cli.progress import Progress
from rollout_cli.sources.remote import folder_of

Rewritten = tuple[Chunk, int, Array | None]
"""Complete episodes, their partition, and their sources, int64 (N,); None for the first source."""

Change = Callable[[Rows, Chunk], Chunk]
"""Returns changed steps for complete episodes, which are passed as rows of the old dataset and as a chunk."""


def rewrite(
    chunks: Iterable[Rewritten],
    folder: OutputFolder,
    settings: DatasetSettings,
    *,
    n_steps: int,
    progress: Progress,
) -> DatasetSummary:
    """Write `n_steps` steps of episodes to a complete dataset, whose settings have `columns`.

    Raises:
        DatasetExistsError: If the content of the folder may not be replaced.
        StorageError: If a disk operation fails, or an input is damaged.
    """
    progress.start(label=str(folder.path), total_steps=n_steps, total_episodes=None)
    progress.begin()
    with DatasetWriter(folder, settings) as writer:
        for chunk, partition, sources in chunks:
            writer.write(chunk, partition=partition, sources=sources)
            progress.add(chunk)
        summary = writer.close(status="complete")
    progress.finish()
    return summary


@dataclass(frozen=True, slots=True)
class Edited:
    """A dataset made from others; with `written` False, the result of a dry run."""

    path: Path
    operation: str
    episodes: int
    steps: int
    sources: int  # The number of runs of its episodes.
    written: bool = False


@dataclass(frozen=True, eq=False)
class Derivation:
    """A planned dataset, to be made from others: all inputs are checked, and nothing is written.

    Attributes:
        result: The dataset that would be written.
        settings: The settings of the new dataset.
        chunks: Its episodes, read on iteration; a single pass.
    """

    result: Edited
    settings: DatasetSettings
    chunks: Iterator[Rewritten]


def derivation(
    inputs: Sequence[Dataset],
    output: AnyPath,
    *,
    operation: str,
    options: Document,
    next_observation: bool | None = None,
    limits: SizeLimits | None = None,
    drop_info: Sequence[str] = (),
    change: Change | None = None,
    changed: bytes = b"",
) -> Derivation:
    """Plan a dataset from the concatenated episodes of others.

    Args:
        inputs: The datasets to read. Datasets of one run share its record.
        output: The folder of the new dataset.
        operation: The name of the operation in info.json.
        options: The options of the operation, as plain values.
        next_observation: True to store next observations; None to keep the form of the inputs.
        limits: The limits of segments; None for those of the first input.
        drop_info: Infos to leave out: dotted paths, or glob patterns.
        change: A function applied to the episodes; None leaves them unchanged.
        changed: A sample of the output of `change`, to distinguish it from another function of that name.

    Raises:
        UsageError: If the inputs are empty, share an episode, have different spaces or limits, or contain the
            output folder.
    """
    paths = [str(dataset.path) for dataset in inputs]
    inputs = [dataset for dataset in inputs if len(dataset)]
    if not inputs:
        raise UsageError(
            f"expected at least one episode, found none in {', '.join(paths) or 'an empty list of inputs'}",
            code="no-episode",
            hint="select at least one episode, or another dataset",
        )
    first = inputs[0].info
    path = folder_of(output).resolve()
    _check_inputs(inputs, path)
    _refuse_repeated(inputs)
    sources: list[RunRecord] = []
    places = [_source_indices(dataset, sources) for dataset in inputs]
    operation_record = {
        "operation": operation,
        "options": dict(options),
        "inputs": [fingerprint_of(dataset.info) for dataset in inputs],
        "episodes": _content_hash(inputs, changed),
    }
    settings = DatasetSettings(
        inputs[0].env_spec,
        sources,
        first_numbers=[0],
        next_observation=first["next_observation"] if next_observation is None else next_observation,
        limits=limits or SizeLimits(**first["limits"]),
        columns={
            name: column
            for name, column in _joined_columns(inputs).items()
            if len(unmatched_patterns(drop_info, [name])) == len(drop_info)
        },
        derived=[*_earlier_operations(inputs), operation_record],
    )
    steps = sum(dataset.rows.n_steps for dataset in inputs)
    change = change or (lambda _, chunk: without_infos(chunk, drop_info))
    chunks = (
        (change(block, block.chunk()), 0, new_places[block.column("source")])
        for dataset, new_places in zip(inputs, places, strict=True)
        for block in dataset.rows.blocks()
    )
    return Derivation(Edited(path, operation, sum(map(len, inputs)), steps, len(sources)), settings, chunks)


def _check_inputs(inputs: Sequence[Dataset], path: Path) -> None:
    """Refuse incompatible datasets, and an output folder inside an input."""
    first = inputs[0]
    expected: Document = first.info
    for dataset in inputs:
        if dataset.path.resolve() in (path, *path.parents):
            raise UsageError(
                f"{dataset.path} is an input of this operation, so it cannot hold the output",
                code="output-is-input",
                hint="write to a folder outside the input",
            )
        info: Document = dataset.info
        names = ("spaces", "max_episode_length", "next_observation")
        if differing := [name for name in names if info[name] != expected[name]]:
            raise UsageError(
                f"{dataset.path} and {first.path} are not compatible: {', '.join(differing)} differ",
                code="datasets-incompatible",
                hint="merge datasets of the same environment",
            )


def _content_hash(inputs: Sequence[Dataset], changed: bytes) -> str:
    """Return a hash of the inputs, by which an open reader detects that other episodes replaced its own."""
    read = blake2b(changed, digest_size=16)
    for dataset in inputs:
        for name in ("source", "episode_number", "length", "return"):
            read.update(dataset.rows.column(name).tobytes())
    return read.hexdigest()


def _earlier_operations(inputs: Sequence[Dataset]) -> list[Fields]:
    """Return the operations that made the inputs, without their hashes and without repetitions."""
    operations = [
        {name: value for name, value in operation.items() if name != "episodes"}
        for dataset in inputs
        for operation in dataset.info["derived"]
    ]
    return [operation for at, operation in enumerate(operations) if operation not in operations[:at]]


def _source_indices(dataset: Dataset, records: list[RunRecord]) -> Array:
    """Return the index of each of a dataset's sources in `records`, to which missing sources are added."""
    places = np.full(len(dataset.info["sources"]), -1)
    for at in np.unique(dataset.rows.column("source")).tolist():  # A selection may have no episode of a run.
        source = dataset.info["sources"][at]
        alike = (place for place, record in enumerate(records) if _is_shared(record, source))
        place = places[at] = next(alike, len(records))
        if place == len(records):
            records.append(source)
        records[place] = _joined_record(records[place], source)
    return places


def _is_shared(first: RunRecord, other: RunRecord) -> bool:
    """Return True if two records may share an episode: they have the same run, code, files and options.

    The fingerprint is not enough: a change may not affect the first episode.
    """
    # A cheap test first: most of possibly thousands of records have different runs.
    if first["run"] != other["run"] or _shared_options(first) != _shared_options(other):
        return False
    files = [source.get("files", []) for source in (first, other)]
    changes = [*compare_files(*files), *compare_files(*reversed(files))]
    return not of_effect(changes, Effect.ACCEPTABLE)


def _shared_options(source: RunRecord) -> list[Any]:
    """Return the options that parts of one run must share, and the hashes of its code."""
    options = {**source.get("collector", {}), **dict.fromkeys(("episodes", "shard", "workers"))}
    parts: tuple[Document, ...] = (source.get("policy", {}), source.get("env", {}), source.get("worker", {}))
    return [options, *(part.get("sha256") for part in parts)]


def _joined_record(first: RunRecord, other: RunRecord) -> RunRecord:
    """Return the joint record of two parts of a run: the weaker verdict, and the union of their lists."""
    joined = first.copy()
    if files := joined_files(first.get("files", []), other.get("files", [])):
        joined["files"] = files
    if changes := [*first.get("changes", []), *other.get("changes", [])]:
        joined["changes"] = [change for at, change in enumerate(changes) if change not in changes[:at]]
    ranks = {"no": 0, "unknown": 1, "yes": 2}
    verdicts = [source["reproducible"] for source in (first, other) if "reproducible" in source]
    if verdicts:
        joined["reproducible"] = min(verdicts, key=lambda verdict: ranks.get(verdict["status"], 1))
    if skips := [source["skipped"] for source in (first, other) if "skipped" in source]:
        by_number = {episode["episode_number"]: episode for skip in skips for episode in skip["episodes"]}
        joined["skipped"] = {**skips[0], "count": len(by_number), "episodes": list(by_number.values())}
    return joined


def _refuse_repeated(inputs: Sequence[Dataset]) -> None:
    """Refuse inputs that share an episode."""
    runs = dict[str | None, int]()
    places = [
        np.array([runs.setdefault(source["run"], len(runs)) for source in dataset.info["sources"]])
        for dataset in inputs
    ]
    identities = np.concatenate(
        [
            np.column_stack([place[dataset.rows.column("source")], dataset.rows.column("episode_number")])
            for dataset, place in zip(inputs, places, strict=True)
        ]
    )
    _, first_places, counts = np.unique(identities, axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        place = int(first_places[counts > 1].min())
        number = int(identities[place][1])
        found = np.flatnonzero((identities == identities[place]).all(axis=1))
        ends = np.cumsum([len(dataset) for dataset in inputs])
        paths = [str(inputs[int(at)].path) for at in np.searchsorted(ends, found, side="right")]
        raise UsageError(
            f"{paths[0]} and {paths[1]} both contain episode {number} of the same run",
            code="episode-repeated",
            hint="pass each episode of a run once",
        )


def _joined_columns(inputs: Sequence[Dataset]) -> InfoColumns:
    """Return the info columns for the values of all inputs; infos without a common kind become JSON."""
    met: dict[str, tuple[InfoPath, dict[str, bool]]] = {}
    for dataset in inputs:
        for name, (path, kind) in dataset.rows.table.schema.infos.items():
            met.setdefault(name, (path, {}))[1][kind] = False
    chosen = ((name, path, choose_kind(kinds)) for name, (path, kinds) in sorted(met.items()))
    return {name: (path, kind) for name, path, kind in chosen if kind is not None}
