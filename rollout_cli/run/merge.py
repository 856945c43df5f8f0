"""Merging: the parts of one run, each a dataset, become the dataset of the whole run; others are joined.

Parts are the shards of a run, or runs of one seed over ranges of episodes that follow one another.
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
    Effect,
    Rule,
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

_OF_ALL = {*DECISIVE} - {"shard"}
"""Options that the parts of a run share."""


class _Shard(NamedTuple):
    """A part of a run, the configuration that made it, and its record."""

    dataset: Dataset
    config: CollectConfig
    source: RunRecord

    @property
    def path(self) -> Path:
        return self.dataset.path

    @property
    def place(self) -> tuple[int, int]:
        """Its number, and into how many parts the run was divided; of a range its first number, and 0."""
        shard = self.config.shard
        return (self.config.run_numbers.start, 0) if shard is None else (shard.number, shard.parts)

    @property
    def changes(self) -> list[Record]:
        """Its accepted changes, as the record of the whole run has them."""
        return [
            {**change, "from_numbers": self.in_whole(change["from_numbers"])}
            for change in self.source["changes"]
        ]

    def in_whole(self, from_numbers: Sequence[int | None]) -> list[int | None]:
        """Return where a change begins in each partition of the whole run; in those of others, at its end."""
        if (per_worker := self.config.episodes_per_worker) is None:
            return list(from_numbers)
        of_shard = dict(zip(self.config.shard_numbers, from_numbers, strict=True))
        workers = self.config.run_numbers
        return [of_shard.get(worker, workers.stop * per_worker) for worker in workers]


def merge(
    parts: Sequence[Path],
    output: Path,
    *,
    accept_changes: bool = False,
    verify: bool = True,
    **writing: Unpack[Writing],
) -> Edited:
    """Write the dataset of the run whose parts these are, in any order; `data/` is as one run makes it.

    Datasets of different runs become one that has all their episodes, each with its source. With
    `accept_changes` the policy or environment of one part may be others than those of the first; that is
    recorded. With `verify` each part is checked first, as `rollout verify` does.

    Raises:
        UsageError: If a shard is missing, has not ended, or belongs to another run, if an episode is there
            twice, or if spaces differ.
        DatasetFormatError: If a dataset is damaged.
    """
    if output.resolve() in [path.resolve() for path in parts]:
        raise UsageError(f"{output} is read itself", code="output-is-input", hint="merge into another folder")
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
    """Return whether all record that they are shards of a run."""
    return all(
        not dataset.info["derived"] and dataset.info["sources"][0].get("collector", {}).get("shard")
        for dataset in datasets
    )


def _are_ranges(datasets: Sequence[Dataset]) -> bool:
    """Return whether these are whole runs of one seed over ranges of episodes that follow one another.

    Their columns must be decided, and the same: then they are those of a run over all of the episodes. No
    other option may have ended one.
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
    return bool(of_effect(compare_runs(first, other, _OF_ALL), Effect.REFUSED))


def _shard(dataset: Dataset) -> _Shard:
    path = dataset.path
    source = collected_source(dataset.info)
    config = CollectConfig(**recorded_values(source), output=path)
    resume = f"`rollout {config.command}` with {{resume=True}} {{output={json.dumps(str(path))}}}"
    if dataset.info["status"] != "complete":
        raise UsageError(
            f"{path}, shard {config.shard}, is not complete: its status is {dataset.info['status']!r}",
            code="shard-incomplete",
            hint=f"finish it: {resume}",
        )
    if len(dataset) != (stated := dataset.info["episodes"]):
        raise DatasetFormatError(
            f"{path} has {len(dataset):,} episodes, but its info.json states {stated:,}",
            code="episode-count",
            hint=f"copy it again, or collect the rest: {resume}",
        )
    return _Shard(dataset, config, source)


def _joined_source(
    shards: Sequence[_Shard], changes: Sequence[Record], config: CollectConfig
) -> dict[str, Any]:
    """Return the record of the whole run."""
    first = shards[0].source
    sources = [shard.source for shard in shards]
    whole = {"shard": None} | ({"episodes": plain_value(config.episodes)} if config.episodes else {})
    joined = {**first, "collector": {**first["collector"], **whole}, "changes": changes}
    # As in a run that was resumed, the hashes, and whose they are, are those after all changes.
    joined |= {name: sources[-1][name] for name in ("policy", "env", "env_source", "worker")}
    joined["reproducible"] = _verdict(sources, verdict_of_changes(changes))
    if skipped := [source["skipped"] for source in sources if "skipped" in source]:
        episodes = [episode for part in skipped for episode in part["episodes"]]
        joined["skipped"] = {**skipped[0], "count": len(episodes), "episodes": episodes}
    return joined


def _changes(
    shards: Sequence[_Shard], progress: Progress, *, accept_changes: bool
) -> tuple[list[Record], Sequence[FileRecord]]:
    """Return the accepted changes and the files; `UsageError` unless these are all the shards of one run."""
    first, *others = shards
    for shard in others:
        if shard.place[1] != first.place[1]:
            raise UsageError(
                f"{first.path} is shard {first.config.shard}, "
                f"and {shard.path} is shard {shard.config.shard} of another division",
                code="shards-of-other-division",
                hint="give the shards i/n of one n",
            )
    present = [shard.place[0] for shard in shards]
    count = first.place[1]
    missing = sorted(set(range(1, count + 1)) - set(present))
    if count and (missing or len(present) != count):
        what = f"shard {missing[0]}/{count} is missing" if missing else "a shard is given twice"
        raise UsageError(what, code="shard-missing", hint="give each shard of the run once")
    options = {*_OF_ALL, "episodes"} if count else _OF_ALL
    changes = first.changes
    before = first
    for shard in others:
        _refuse_other_runs(first, shard, options)
        changed = _changed(before, shard, progress)
        if changed and not accept_changes:
            raise UsageError(
                f"{shard.path} has another policy or environment than {first.path}: {joined_messages(changed)}",
                code="shards-of-other-files",
                hint="collect it again as the others were; {accept_changes=True} merges both",
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
        # What an episode reads, the first shard may not have read; after a change, the next one may go back.
        files = joined_files(before.source["files"], shard.source["files"], changed)
        before = before._replace(source={**(shard if changed else before).source, "files": files})
    return changes, before.source["files"]


def _refuse_other_runs(first: _Shard, shard: _Shard, options: Collection[str]) -> None:
    """Refuse shards that one run cannot have made."""
    found = [
        *of_effect(compare_runs(first.source, shard.source, options), Effect.REFUSED),
        *compare_spaces(first.dataset.info, shard.dataset.info),
    ]
    if found:
        names = ", ".join(sorted(change.name for change in found))
        raise UsageError(
            f"{shard.path} and {first.path} are shards of different runs: {names} differ",
            code="shards-of-other-runs",
            hint="collect it again as the others were",
        )


def _changed(first: _Shard, other: _Shard, progress: Progress) -> list[Change]:
    """Return the changes of code or weights between two shards; warn of the others."""
    found = compare_runs(first.source, other.source, ())
    changed = of_effect(found, Effect.ACCEPTABLE)
    versions = of_effect(found, Effect.WARNING)
    for notice in of_effect(found, Effect.NOTICE):
        progress.notice(f"{other.path}: {notice}")
    if first.source["run"] != other.source["run"] and not changed:
        # Runs that are known or suspected to differ from themselves say nothing, nor do other machines or
        # packages, which may round otherwise.
        verdicts = {shard.source["reproducible"]["status"] for shard in (first, other)}
        if verdicts == {"yes"} and first.source["versions"] == other.source["versions"]:
            return [Change(Rule.EPISODE, "their first episode differs")]
        progress.warn(
            f"the first episodes of {first.path} and {other.path} differ: "
            "they were collected with different code or weights, or are not reproducible"
        )
    if versions:
        progress.warn(
            f"{other.path} was collected with other versions than {first.path}: {joined_messages(versions)}"
        )
    return changed


def _chunks(datasets: Sequence[Dataset], per_worker: int | None) -> Iterator[Rewritten]:
    """Yield the episodes of all shards."""
    for dataset in datasets:
        for block in dataset.rows.blocks():  # Each is of one file, and so of one partition.
            chunk = block.chunk()
            worker = 0
            if per_worker:
                worker = int(chunk.numbers[0]) // per_worker
                chunk = replace(chunk, workers=np.full(chunk.n_episodes, worker, np.int32))
            yield chunk, worker, None


def _verdict(sources: Sequence[RunRecord], whole: Verdict | None) -> Record:
    """Return the weakest verdict, `no`, else `unknown`, else `yes`, unless there is one on the whole."""
    if whole is not None:
        return asdict(whole)
    order = ("no", "unknown", "yes")
    return min(
        (source["reproducible"] for source in sources), key=lambda verdict: order.index(verdict["status"])
    )
