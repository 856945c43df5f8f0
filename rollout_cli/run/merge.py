"""Merging: the shards of one run, each a dataset, become the dataset of the whole run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollout_cli import pins
from rollout_cli.config import CollectConfig
from rollout_cli.dataset.folder import OutputFolder, check_folder
from rollout_cli.dataset.layout import collected_source
from rollout_cli.errors import UsageError
from rollout_cli.progress import Progress
from rollout_cli.run.provenance import changed_sources, changed_versions, recorded_values
from rollout_cli.run.reproduce import Verdict, verdict_of_changes

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary
    from rollout_cli.dataset.reader import Dataset
    from rollout_cli.dataset.rewrite import Rewritten

_OF_THE_FOLDER = ("output", "shard", "seed")
_MAY_DIFFER = {
    "workers",
    "sampler",
    "start_method",
    "ray_address",
    "cpus_per_worker",
    "gpus_per_worker",
    "flush_every",
}
_MAY_DIFFER |= {"pin", "accept_changes"}
"""Options in which shards may differ: they say where and how it ran (`exact` divides workers)."""


class _Shard(NamedTuple):
    """A shard, the configuration that made it, and the record of its run."""

    dataset: Dataset
    config: CollectConfig
    source: Mapping[str, Any]

    @property
    def path(self) -> Path:
        return self.dataset.path

    @property
    def place(self) -> tuple[int, int]:
        """Its number, and into how many parts the run was divided."""
        assert self.config.shard is not None
        return self.config.shard.number, self.config.shard.parts


def merge(
    parts: Sequence[Path], output: Path, *, overwrite: bool, progress: Progress, accept_changes: bool = False
) -> DatasetSummary:
    """Write the dataset of the run whose shards are `parts`, in any order; `data/` is as one run makes it.

    With `accept_changes` the policy or environment of one may be others than those of the first; that is
    recorded.

    Raises:
        UsageError: If a shard is missing, has not ended, or belongs to another run.
        DatasetFormatError: If a shard is damaged.
    """
    from rollout_cli.dataset.metadata import DatasetSettings  # noqa: PLC0415 - it loads pyarrow
    from rollout_cli.dataset.rewrite import rewrite  # noqa: PLC0415
    from rollout_cli.dataset.schema import info_columns_of  # noqa: PLC0415
    from rollout_cli.dataset.segments import SizeLimits  # noqa: PLC0415

    check_folder(output, overwrite=overwrite)
    if output.resolve() in [path.resolve() for path in parts]:
        raise UsageError(f"{output} is a shard itself", hint="merge into another folder")
    shards = sorted(map(_shard, parts), key=lambda shard: shard.place)
    changes = _changes(shards, progress, accept_changes=accept_changes)
    first, config = shards[0], replace(shards[0].config, shard=None)
    per_worker = config.episodes_per_worker
    settings = DatasetSettings(
        first.dataset.env_spec,
        [_joined_source(shards, changes)],
        [worker * per_worker for worker in config.run_numbers] if per_worker else [config.run_numbers.start],
        next_observation=config.next_observation,
        limits=SizeLimits(segment_bytes=config.segment_bytes),
        columns=info_columns_of(first.dataset.info["features"]),
    )
    n_steps = sum(shard.dataset.info["steps"] for shard in shards)
    progress.start(label=str(output), total_steps=n_steps, total_episodes=None)
    progress.begin()
    chunks = _chunks([shard.dataset for shard in shards], per_worker, progress)
    summary = rewrite(chunks, OutputFolder(output, overwrite=overwrite), settings)
    progress.finish()
    return summary


def _shard(path: Path) -> _Shard:
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads pyarrow

    dataset = load(path)
    source = collected_source(dataset.info)
    config = CollectConfig(**recorded_values(source), output=path)
    if config.shard is None:
        raise UsageError(f"{path} is no shard of a run", hint='collect its parts with {shard="i/n"}')
    if dataset.info["status"] != "complete":
        message = f"{path}, shard {config.shard}, is not complete: its status is {dataset.info['status']!r}"
        hint = (
            f"finish it: `rollout {config.command}` with {{resume=True}} {{output={json.dumps(str(path))}}}"
        )
        raise UsageError(message, hint=hint)
    return _Shard(dataset, config, source)


def _joined_source(shards: Sequence[_Shard], changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of the whole run."""
    first, sources = shards[0].source, [shard.source for shard in shards]
    joined = {**first, "collector": {**first["collector"], "shard": None}, "changes": changes}
    joined["files"] = reduce(pins.joined, [source["files"] for source in sources])
    joined["reproducible"] = _verdict(sources, verdict_of_changes(changes))
    if skipped := [source["skipped"] for source in sources if "skipped" in source]:
        episodes = [episode for part in skipped for episode in part["episodes"]]
        joined["skipped"] = {**skipped[0], "count": len(episodes), "episodes": episodes}
    return joined


def _changes(
    shards: Sequence[_Shard], progress: Progress, *, accept_changes: bool
) -> list[Mapping[str, Any]]:
    """Return the accepted changes; `UsageError` unless these are all the shards of one run."""
    first, *others = shards
    for shard in others:
        if shard.place[1] != first.place[1]:
            raise UsageError(
                f"{first.path} is shard {first.config.shard}, "
                f"and {shard.path} is shard {shard.config.shard} of another division",
                hint="give the shards i/n of one n",
            )
    present, count = [shard.place[0] for shard in shards], first.place[1]
    missing = sorted(set(range(1, count + 1)) - set(present))
    if missing or len(present) != count:
        what = f"shard {missing[0]}/{count} is missing" if missing else "a shard is given twice"
        raise UsageError(what, hint="give each shard of the run once")
    may_differ = _MAY_DIFFER - ({"workers"} if first.config.command == "exact" else set())
    changes: list[Mapping[str, Any]] = [*first.source["changes"]]
    for shard in others:
        compared = vars(first.config).keys() - {
            *_OF_THE_FOLDER,
            *may_differ,
            *_in_files(first.source, shard.source),
        }
        differing = sorted(
            name for name in compared if getattr(first.config, name) != getattr(shard.config, name)
        )
        differing += ["root_seed"] if first.source["root_seed"] != shard.source["root_seed"] else []
        differing += [
            name for name in ("spaces", "features") if first.dataset.info[name] != shard.dataset.info[name]
        ]
        if differing:
            message = (
                f"{shard.path} and {first.path} are shards of different runs: {', '.join(differing)} differ"
            )
            raise UsageError(message, hint="collect it again as the others were")
        changed = _changed(first, shard, progress)
        if changed and not accept_changes:
            raise UsageError(
                f"{shard.path} has another policy or environment than {first.path}: {'; '.join(changed)}",
                hint="collect it again as the others were; {accept_changes=True} merges both",
            )
        changes += shard.source["changes"]
        if changed:
            before = {name: first.source[name] for name in ("files", "versions")}
            numbers = shard.dataset.info["first_numbers"]
            changes.append(
                {"what": f"files changed: {'; '.join(changed)}", "from_numbers": numbers, "before": before}
            )
    return changes


def _in_files(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """Return the options whose SPECs name files, which may lie elsewhere: their contents are compared."""
    sources = {"policy": "policy", "env": "env_source"}
    pairs = {name: (first[origin], second[origin]) for name, origin in sources.items()}
    return {
        name
        for name, (left, right) in pairs.items()
        if left["path"] and right["path"] and left.get("scheme") == right.get("scheme")
    }


def _changed(first: _Shard, other: _Shard, progress: Progress) -> list[str]:
    """Return in words what shows that the code or weights of two shards differ; warn of the rest."""
    changed, notices = pins.changes(first.source["files"], other.source["files"])
    changed += changed_sources(first.source, other.source)
    for notice in notices:
        progress.notice(f"{other.path}: {notice}")
    if first.source["run"] != other.source["run"] and not changed:
        if are_comparable(first.source, other.source):
            return ["their first episode differs"]
        message = f"the first episodes of {first.path} and {other.path} differ"
        progress.warn(
            f"{message}: they were collected with different code or weights, or are not reproducible"
        )
    if versions := changed_versions(first.source, other.source):
        progress.warn(
            f"{other.path} was collected with other versions than {first.path}: {'; '.join(versions)}"
        )
    return changed


def are_comparable(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two parts of one run, of which these are the records, must have the same first episode.

    Not where a run is known or suspected to differ from itself, nor where machines or packages may round
    otherwise.
    """
    verdicts = {source["reproducible"]["status"] for source in (first, second)}
    return bool(verdicts == {"yes"} and first["versions"] == second["versions"])


def _chunks(datasets: Sequence[Dataset], per_worker: int | None, progress: Progress) -> Iterator[Rewritten]:
    """Yield the episodes of all shards."""
    for dataset in datasets:
        for block in dataset.rows.blocks():  # Each is of one file, and so of one partition.
            chunk, worker = block.chunk(), 0
            if per_worker:
                worker = int(chunk.numbers[0]) // per_worker
                chunk = replace(chunk, workers=np.full(chunk.n_episodes, worker, np.int32))
            yield chunk, worker, None
            progress.add(chunk)


def _verdict(sources: Sequence[Mapping[str, Any]], known: Verdict | None) -> Mapping[str, Any]:
    """Return the weakest verdict, `no`, else `unknown`, else `yes`, unless one is known of the whole."""
    if known is not None:
        return asdict(known)
    order = ("no", "unknown", "yes")
    return min(
        (source["reproducible"] for source in sources), key=lambda verdict: order.index(verdict["status"])
    )
