"""Merging: combine the shards of one run into its complete dataset, or join datasets of different runs.

Shards are parts that `--shard` made, or runs of one seed over consecutive ranges of episodes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from rollout_cli.dataset.layout import collected_source
from rollout_cli.dataset.metadata import DatasetSettings
from rollout_cli.dataset.operations import Writing, join_datasets, write_derivations
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.dataset.record import RunFacts, RunRecord
from rollout_cli.dataset.rewrite import Derivation, Edited, Rewritten
from rollout_cli.dataset.run_changes import (
    Change,
    ChangeKind,
    Effect,
    compare_runs,
    compare_spaces,
    joined_files,
    joined_messages,
    of_effect,
)
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.errors import DatasetFormatError, UsageError
from rollout_cli.keywords import Record
from rollout_cli.options.config import DECISIVE, CollectConfig, plain_value
from rollout_cli.options.types import EpisodeRange
from rollout_cli.progress import Progress
from rollout_cli.run.provenance import recorded_values
from rollout_cli.run.reproduce import Verdict, verdict_of_changes
from rollout_cli.sources.pins import FileRecord
from rollout_cli.sources.remote import folder_of

_SHARED_OPTIONS = {*DECISIVE} - {"shard"}
"""Options that are the same in all shards of a run."""


class _Shard(NamedTuple):
    """A shard's dataset, its configuration and its record."""

    dataset: Dataset
    config: CollectConfig
    source: RunRecord

    @property
    def path(self) -> Path:
        return self.dataset.path

    @property
    def place(self) -> tuple[int, int]:
        """The shard's number and the number of shards; for a range, its first episode number and 0."""
        shard = self.config.shard
        return (self.config.run_numbers.start, 0) if shard is None else (shard.number, shard.parts)

    @property
    def changes(self) -> list[Record]:
        """The shard's accepted changes, with the partitions of the complete run."""
        return [
            {**change, "from_numbers": self.in_whole(change["from_numbers"])}
            for change in self.source["changes"]
        ]

    def in_whole(self, from_numbers: Sequence[int | None]) -> list[int | None]:
        """Return the first changed number in each partition of the complete run.

        Partitions of other shards have one past the last number of the run.
        """
        if (per_worker := self.config.episodes_per_worker) is None:
            return list(from_numbers)
        of_shard = dict(zip(self.config.shard_numbers, from_numbers, strict=True))
        workers = self.config.run_numbers
        return [of_shard.get(worker, workers.stop * per_worker) for worker in workers]


def merge(
    parts: Sequence[Path | str],
    output: Path | str,
    *,
    accept_changes: bool = False,
    verify: bool = True,
    **writing: Unpack[Writing],
) -> Edited:
    """Merge the shards of a run, given in any order, so that `data/` is the same as that of a single run.

    Datasets of different runs are joined to one dataset, in which each episode keeps its source.

    Args:
        parts: Folders of the datasets, paths or URIs.
        output: Folder of the new dataset.
        accept_changes: Whether the policy or environment may differ between shards; changes are recorded.
        verify: Whether each part is verified first, as by `rollout verify`.
        writing: As for `filter_dataset`.

    Raises:
        UsageError: If a shard is missing, incomplete or of another run, if an episode is present twice, or if
            spaces differ.
        DatasetFormatError: If a dataset is damaged.

    Example:
        >>> parts = rollout_cli.split_dataset(rollout_cli.load("data"), "parts", {"a": 0.5, "b": 0.5})
        >>> rollout_cli.merge(["parts/a", "parts/b"], "whole").steps
        67
    """
    output = folder_of(output)
    if output.resolve() in [folder_of(path).resolve() for path in parts]:
        raise UsageError(
            f"{output} is also an input", code="output-is-input", hint="merge into another folder"
        )
    datasets = [load(path, verify=verify) for path in parts]
    if not (_are_shards(datasets) or _are_ranges(datasets)):
        return join_datasets(datasets, output, verify=False, **writing)
    shards = sorted(map(_shard, datasets), key=lambda shard: shard.place)
    changes, files = _changes(shards, writing.get("progress") or Progress(), accept_changes=accept_changes)
    first = shards[0]
    config = replace(shards[0].config, shard=None)
    if config.episodes is not None:
        stop = shards[-1].config.run_numbers.stop
        config = replace(config, episodes=EpisodeRange(config.run_numbers.start, stop))
    per_worker = config.episodes_per_worker
    settings = DatasetSettings(
        first.dataset.env_spec,
        [_joined_source(shards, changes, config) | {"files": files}],
        [worker * per_worker for worker in config.run_numbers] if per_worker else [config.run_numbers.start],
        next_observation=config.next_observation,
        limits=SizeLimits(segment_bytes=config.segment_bytes),
        columns=first.dataset.rows.table.schema.infos,
        info_columns=first.dataset.info["info_columns"],
    )
    steps = sum(shard.dataset.info["steps"] for shard in shards)
    result = Edited(output, "merge", sum(map(len, datasets)), steps, sources=1)
    chunks = _chunks([shard.dataset for shard in shards], per_worker)
    return write_derivations([Derivation(result, settings, chunks)], **writing)[0]


def _are_shards(datasets: Sequence[Dataset]) -> bool:
    """Return whether every dataset records that it is a shard of a run."""
    return all(
        not dataset.info["derived"] and dataset.info["sources"][0].get("collector", {}).get("shard")
        for dataset in datasets
    )


def _are_ranges(datasets: Sequence[Dataset]) -> bool:
    """Return whether the datasets are complete runs of one seed over consecutive ranges of episodes.

    Their columns must be decided and equal, as in one run over all the episodes, and no option but
    `--episodes` may have ended a run.
    """
    ranges = list[tuple[int, int]]()
    first = datasets[0].info
    for info in (dataset.info for dataset in datasets):
        source = info["sources"][0]
        options = source.get("collector", {})
        is_whole = not info["derived"] and (info["info_columns"], info["status"]) == ("decided", "complete")
        is_whole &= options.get("timesteps") is None and source.get("stopped_by", "episodes") == "episodes"
        if not is_whole or not options.get("episodes"):
            return False
        is_same = (source["run"], info["features"]) == (first["sources"][0]["run"], first["features"])
        if not is_same or _are_of_other_runs(first["sources"][0], source):
            return False
        start, _, stop = str(options["episodes"]).rpartition(":")
        ranges.append((int(start or 0), int(stop)))
    return len(ranges) > 1 and all(left[1] == right[0] for left, right in pairwise(sorted(ranges)))


def _are_of_other_runs(first: RunFacts, other: RunFacts) -> bool:
    return bool(of_effect(compare_runs(first, other, _SHARED_OPTIONS), Effect.REFUSED))


def _shard(dataset: Dataset) -> _Shard:
    path = dataset.path
    source = collected_source(dataset.info)
    config = CollectConfig(**recorded_values(source), output=path)
    resume = f"`rollout {config.command}` with {{resume=True}} {{output={json.dumps(str(path))}}}"
    if (status := dataset.info["status"]) != "complete":
        raise UsageError(
            f"{path}, shard {config.shard}, has the status {status!r}, expected 'complete'",
            code="shard-incomplete",
            hint=f"finish it: {resume}",
        )
    if len(dataset) != (stated := dataset.info["episodes"]):
        raise DatasetFormatError(
            f"{path} has {len(dataset):,} episodes, expected the number in info.json, {stated:,}",
            code="episode-count",
            hint=f"copy it again, or collect the rest: {resume}",
        )
    return _Shard(dataset, config, source)


def _joined_source(
    shards: Sequence[_Shard], changes: Sequence[Record], config: CollectConfig
) -> dict[str, Any]:
    """Return the record of the complete run."""
    first = shards[0].source
    sources = [shard.source for shard in shards]
    whole = {"shard": None} | ({"episodes": plain_value(config.episodes)} if config.episodes else {})
    joined = {**first, "collector": {**first["collector"], **whole}, "changes": changes}
    # As in a resumed run, the record has the hashes after all changes.
    joined |= {name: sources[-1][name] for name in ("policy", "env", "env_source", "worker")}
    joined["reproducible"] = _verdict(sources, verdict_of_changes(changes))
    if skipped := [source["skipped"] for source in sources if "skipped" in source]:
        episodes = [episode for part in skipped for episode in part["episodes"]]
        joined["skipped"] = {**skipped[0], "count": len(episodes), "episodes": episodes}
    return joined


def _changes(
    shards: Sequence[_Shard], progress: Progress, *, accept_changes: bool
) -> tuple[list[Record], Sequence[FileRecord]]:
    """Return the accepted changes and the files of the complete run.

    Raises:
        UsageError: If a shard is missing, given twice or of another run, or changes are not accepted.
    """
    first, *others = shards
    for shard in others:
        if shard.place[1] != first.place[1]:
            raise UsageError(
                f"{shard.path} is shard {shard.config.shard}, "
                f"expected as many shards as {first.path}, which is shard {first.config.shard}",
                code="shards-of-other-division",
                hint="merge shards i/n with the same n",
            )
    present = [shard.place[0] for shard in shards]
    count = first.place[1]
    missing = sorted(set(range(1, count + 1)) - set(present))
    if count and (missing or len(present) != count):
        repeated = max(present, key=present.count)
        what = (
            f"{missing[0]}/{count} is missing" if missing else f"{repeated}/{count} was passed more than once"
        )
        raise UsageError(
            f"shard {what}: the run has {count} shards, got {len(present)}",
            code="shard-missing",
            hint="pass each shard of the run once",
        )
    options = {*_SHARED_OPTIONS, "episodes"} if count else _SHARED_OPTIONS
    changes = first.changes
    before = first
    for shard in others:
        _refuse_other_runs(first, shard, options)
        changed = _changed(before, shard, progress)
        if changed and not accept_changes:
            raise UsageError(
                f"{shard.path} has another policy or environment than {first.path}: {joined_messages(changed)}",
                code="shards-of-other-files",
                hint="collect it again with the same policy and environment, or pass {accept_changes=True}",
            )
        changes += shard.changes
        if changed:
            changes.append(
                {
                    "what": f"files changed: {joined_messages(changed)}",
                    "from_numbers": shard.in_whole(shard.dataset.info["first_numbers"]),
                    "before": {name: before.source[name] for name in ("files", "versions")},
                }
            )
        # A later shard may read more files than the first, and may use the files from before a change again.
        files = joined_files(before.source["files"], shard.source["files"], changed)
        before = before._replace(source={**(shard if changed else before).source, "files": files})
    return changes, before.source["files"]


def _refuse_other_runs(first: _Shard, shard: _Shard, options: Collection[str]) -> None:
    """Raise `UsageError` if two shards cannot be of one run."""
    found = [
        *of_effect(compare_runs(first.source, shard.source, options), Effect.REFUSED),
        *compare_spaces(first.dataset.info, shard.dataset.info),
    ]
    if found:
        names = ", ".join(sorted(change.name for change in found))
        raise UsageError(
            f"{shard.path} and {first.path} are shards of different runs: {names} differ",
            code="shards-of-other-runs",
            hint="collect it again with the options of the other shards",
        )


def _changed(first: _Shard, other: _Shard, progress: Progress) -> list[Change]:
    """Return the changes of code or weights between two shards; warn about other changes."""
    found = compare_runs(first.source, other.source, ())
    changed = of_effect(found, Effect.ACCEPTABLE)
    versions = of_effect(found, Effect.WARNING)
    for notice in of_effect(found, Effect.NOTICE):
        progress.notice(f"{other.path}: {notice}")
    if first.source["run"] != other.source["run"] and not changed:
        # A run that is not reproducible proves no change; other machines and packages may round differently.
        verdicts = {shard.source["reproducible"]["status"] for shard in (first, other)}
        if verdicts == {"yes"} and first.source["versions"] == other.source["versions"]:
            return [Change(ChangeKind.EPISODE, "their first episode differs")]
        progress.warn(
            f"the first episodes of {first.path} and {other.path} differ: "
            "they were collected with different code or weights, or are not reproducible"
        )
    if versions:
        progress.warn(
            f"{other.path} and {first.path} were collected with different versions: {joined_messages(versions)}"
        )
    return changed


def _chunks(datasets: Sequence[Dataset], per_worker: int | None) -> Iterator[Rewritten]:
    """Yield the episodes of all shards, with their partitions."""
    for dataset in datasets:
        for block in dataset.rows.blocks():  # A block belongs to one file, and a file to one partition.
            chunk = block.chunk()
            worker = 0
            if per_worker:
                worker = int(chunk.numbers[0]) // per_worker
                chunk = replace(chunk, workers=np.full(chunk.n_episodes, worker, np.int32))
            yield chunk, worker, None


def _verdict(sources: Sequence[RunRecord], whole: Verdict | None) -> Record:
    """Return the verdict on the complete run if it is known, else the weakest of the shards' verdicts."""
    if whole is not None:
        return asdict(whole)
    order = ("no", "unknown", "yes")
    return min(
        (source["reproducible"] for source in sources), key=lambda verdict: order.index(verdict["status"])
    )
