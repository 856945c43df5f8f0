"""Rewriting: episodes of datasets become a new dataset, a row group at a time; the old datasets stay.

What is written is committed like a run. A dataset that is made of others names the runs of its episodes
(`sources`) and how it was made of them (`derived`).
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
"""Whole episodes, the partition they go to, and their sources, int64 (N,); None for the first source."""

Change = Callable[[Rows, Chunk], Chunk]
"""Returns other steps for whole episodes, which are given as rows of the old dataset, and as a chunk."""


def rewrite(
    chunks: Iterable[Rewritten],
    folder: OutputFolder,
    settings: DatasetSettings,
    *,
    n_steps: int,
    progress: Progress,
) -> DatasetSummary:
    """Write episodes, of `n_steps` in all, to a complete dataset, whose settings have `columns`.

    Raises:
        DatasetExistsError: If the folder holds something that may not be replaced.
        StorageError: If a disk fails, or a dataset that is read is damaged.
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
    """A dataset that is made of others, or would be, where it is not `written`."""

    path: Path
    operation: str
    episodes: int
    steps: int
    sources: int  # Runs that its episodes are of.
    written: bool = False


@dataclass(frozen=True, eq=False)
class Derivation:
    """A dataset that is to be made of others: everything is checked, and nothing is written.

    Attributes:
        result: What it will be.
        settings: Those of the new dataset.
        chunks: Its episodes, which are read as they are asked for, once.
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
    """Return how a dataset is made of others: their episodes after one another.

    Args:
        inputs: What is read. Datasets of one run share its record.
        output: The folder of the new dataset.
        operation: What is done, as info.json names it.
        options: How, as plain values.
        next_observation: Whether steps have the observation that followed; None: as in the inputs.
        limits: The limits of its segments; None: those of the first input.
        drop_info: Infos to leave out: dotted paths, or globs of them.
        change: What is done to the episodes on their way; None leaves them as they are.
        changed: Some of what that makes of them, which tells it from another change of the same name.

    Raises:
        UsageError: If there is no episode, one is given twice, the datasets have different spaces or limits,
            or one of them is in that folder.
    """
    inputs = [dataset for dataset in inputs if len(dataset)]
    if not inputs:
        raise UsageError(
            "there is no episode to write", code="no-episode", hint="choose some episodes, or another dataset"
        )
    first = inputs[0].info
    path = folder_of(output).resolve()
    _check_inputs(inputs, path)
    _refuse_repeated(inputs)
    sources: list[RunRecord] = []
    places = [_places_of(dataset, sources) for dataset in inputs]
    made = {
        "operation": operation,
        "options": dict(options),
        "inputs": [fingerprint_of(dataset.info) for dataset in inputs],
        "episodes": _hash_of(inputs, changed),
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
        derived=[*_steps_before(inputs), made],
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
    """Refuse datasets that do not fit together, or one that the output would lie in."""
    first = inputs[0]
    expected: Document = first.info
    for dataset in inputs:
        if dataset.path.resolve() in (path, *path.parents):
            raise UsageError(
                f"{dataset.path} is read itself",
                code="output-is-input",
                hint="write to a folder outside of it",
            )
        info: Document = dataset.info
        names = ("spaces", "max_episode_length", "next_observation")
        if differing := [name for name in names if info[name] != expected[name]]:
            raise UsageError(
                f"{dataset.path} and {first.path} do not fit together: {', '.join(differing)} differ",
                code="datasets-incompatible",
                hint="join datasets of one environment",
            )


def _hash_of(inputs: Sequence[Dataset], changed: bytes) -> str:
    """Return a hash of what is read, by which an open reader knows other episodes in the place of these."""
    read = blake2b(changed, digest_size=16)
    for dataset in inputs:
        for name in ("source", "episode_number", "length", "return"):
            read.update(dataset.rows.column(name).tobytes())
    return read.hexdigest()


def _steps_before(inputs: Sequence[Dataset]) -> list[Fields]:
    """Return how the inputs were made, without the hashes, each step once."""
    steps = [
        {name: value for name, value in step.items() if name != "episodes"}
        for dataset in inputs
        for step in dataset.info["derived"]
    ]
    return [step for at, step in enumerate(steps) if step not in steps[:at]]


def _places_of(dataset: Dataset, records: list[RunRecord]) -> Array:
    """Return the place of each of a dataset's sources among the `records`, which get those that they lack."""
    places = np.full(len(dataset.info["sources"]), -1)
    for at in np.unique(dataset.rows.column("source")).tolist():  # A selection may have none of some run.
        source = dataset.info["sources"][at]
        alike = (place for place, record in enumerate(records) if _is_shared(record, source))
        place = places[at] = next(alike, len(records))
        if place == len(records):
            records.append(source)
        records[place] = _one_record(records[place], source)
    return places


def _is_shared(first: RunRecord, other: RunRecord) -> bool:
    """Return whether the episodes of two records may have one: of one run, with its code, files and options.

    Its fingerprint does not tell: a change may not show in the first episode.
    """
    # Most are of different runs, which is seen at once: there may be thousands of them.
    if first["run"] != other["run"] or _made_by(first) != _made_by(other):
        return False
    files = [source.get("files", []) for source in (first, other)]
    changes = [*compare_files(*files), *compare_files(*reversed(files))]
    return not of_effect(changes, Effect.ACCEPTABLE)


def _made_by(source: RunRecord) -> list[Any]:
    """Return the options of a run but those in which its parts may differ, and the hashes of its code."""
    options = {**source.get("collector", {}), **dict.fromkeys(("episodes", "shard", "workers"))}
    parts: tuple[Document, ...] = (source.get("policy", {}), source.get("env", {}), source.get("worker", {}))
    return [options, *(part.get("sha256") for part in parts)]


def _one_record(first: RunRecord, other: RunRecord) -> RunRecord:
    """Return the record of a run of which two datasets have parts: the weaker verdict, what each lists."""
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
    """Refuse an episode that is given twice."""
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
    if len(np.unique(identities, axis=0)) < len(identities):
        raise UsageError(
            "an episode is given twice: two datasets have it",
            code="episode-repeated",
            hint="give each episode of a run once",
        )


def _joined_columns(inputs: Sequence[Dataset]) -> InfoColumns:
    """Return the info columns that hold the values of all; those without a common kind become JSON."""
    met: dict[str, tuple[InfoPath, dict[str, bool]]] = {}
    for dataset in inputs:
        for name, (path, kind) in dataset.rows.table.schema.infos.items():
            met.setdefault(name, (path, {}))[1][kind] = False
    chosen = ((name, path, choose_kind(kinds)) for name, (path, kinds) in sorted(met.items()))
    return {name: (path, kind) for name, path, kind in chosen if kind is not None}
