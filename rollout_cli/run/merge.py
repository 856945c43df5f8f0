"""Merging: the shards of one run, each a dataset, become the dataset of the whole run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli import pins
from rollout_cli.config import CollectConfig
from rollout_cli.dataset.folder import OutputFolder, check_folder
from rollout_cli.dataset.layout import read_info
from rollout_cli.errors import UsageError
from rollout_cli.run.progress import Progress
from rollout_cli.run.provenance import changed_sources, changed_versions, recorded_values
from rollout_cli.run.reproduce import Verdict, verdict_of_changes

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary
    from rollout_cli.dataset.reader import Dataset
    from rollout_cli.dataset.writer import DatasetWriter

_OF_THE_FOLDER = ("output", "shard", "seed")
_RECORD = ("env", "env_source", "policy", "collector", "worker", "seeding", "versions", "git")
_MAY_DIFFER = {"workers", "sampler", "start_method", "ray_address", "cpus_per_worker", "gpus_per_worker", "flush_every"}
_MAY_DIFFER |= {"pin", "accept_changes"}
"""Options that one shard may have otherwise than another: they say where and how it ran. (`exact` divides workers.)"""


def merge(
    parts: Sequence[Path], output: Path, *, overwrite: bool, progress: Progress, accept_changes: bool = False
) -> DatasetSummary:
    """Write the dataset of the run whose shards are `parts`, in any order; its `data/` is as if one run had made it.

    With `accept_changes` the policy or environment of one may be others than those of the first; that is recorded.

    Raises:
        UsageError: If a shard is missing, has not ended, or belongs to another run.
        DatasetFormatError: If a shard is damaged.
    """
    from rollout_cli.dataset.metadata import DatasetSettings  # noqa: PLC0415 - it loads pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415
    from rollout_cli.dataset.schema import info_columns_of  # noqa: PLC0415
    from rollout_cli.dataset.segments import SizeLimits  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    check_folder(output, overwrite=overwrite)
    if output.resolve() in [path.resolve() for path in parts]:
        raise UsageError(f"{output} is a shard itself", hint="merge into another folder")
    found = [(load(path), _config_of(path)) for path in parts]
    found.sort(key=lambda one: one[1].shard or (0, 0))
    config, changes = _checked(found, progress, accept_changes=accept_changes)
    first, infos = found[0][0].info, [dataset.info for dataset, _ in found]
    per_worker = config.episodes_per_worker
    firsts = [worker * per_worker for worker in config.whole] if per_worker else [config.whole.start]
    record = {name: first[name] for name in _RECORD if name in first}
    record["collector"] = {**record["collector"], "shard": None}
    record |= {"files": reduce(pins.joined, [info["files"] for info in infos]), "changes": changes}
    record["reproducible"] = _verdict(infos, verdict_of_changes(changes))
    settings = DatasetSettings(
        found[0][0].env_spec,
        first["root_seed"],
        firsts,
        next_observation=config.next_observation,
        limits=SizeLimits(segment_bytes=config.segment_bytes),
        header=record,
        decided=(info_columns_of(first["features"]), first["run"]),
    )
    with DatasetWriter(OutputFolder(output, overwrite=overwrite), settings) as writer:
        n_steps = sum(dataset.info["steps"] for dataset, _ in found)
        progress.start(label=str(output), total_steps=n_steps, total_episodes=None)
        progress.begin()
        for dataset, _ in found:
            _copy(dataset, writer, per_worker, progress)
        progress.finish()
        skipped = [dataset.info["skipped"] for dataset, _ in found if "skipped" in dataset.info]
        episodes = [episode for part in skipped for episode in part["episodes"]]
        facts = {"skipped": {**skipped[0], "count": len(episodes), "episodes": episodes}} if skipped else {}
        return writer.close(status="complete", **facts)


def _config_of(path: Path) -> CollectConfig:
    info = read_info(path)
    values = recorded_values(info)
    config = CollectConfig(**values, output=path)
    if config.shard is None:
        raise UsageError(f"{path} is no shard of a run", hint="collect its parts with --shard i/n")
    if info["status"] != "complete":
        message = f"{path}, shard {config.shard}, is not complete: its status is {info['status']!r}"
        hint = f"finish it: rollout {config.command} --resume --output {shlex.quote(str(path))}"
        raise UsageError(message, hint=hint)
    return config


def _checked(
    found: Sequence[tuple[Dataset, CollectConfig]], progress: Progress, *, accept_changes: bool
) -> tuple[CollectConfig, list[Mapping[str, Any]]]:
    """Return the configuration of the whole run and the accepted changes; UsageError unless it has all its shards."""
    (one, config), *others = found
    assert config.shard is not None
    here, count = [part.shard.number for _, part in found if part.shard], config.shard.parts
    if others_divided := [pair for pair in others if pair[1].shard and pair[1].shard.parts != count]:
        dataset, part = others_divided[0]
        raise UsageError(
            f"{one.path} is shard {config.shard}, and {dataset.path} is shard {part.shard} of another division",
            hint="give the shards i/n of one n",
        )
    missing = sorted(set(range(1, count + 1)) - set(here))
    if missing or len(here) != count:
        what = f"shard {missing[0]}/{count} is missing" if missing else "a shard is given twice"
        raise UsageError(what, hint="give each shard of the run once")
    may_differ = _MAY_DIFFER - ({"workers"} if config.command == "exact" else set())
    changes: list[Mapping[str, Any]] = []
    for dataset, part in others:
        compared = vars(config).keys() - {*_OF_THE_FOLDER, *may_differ, *_in_files(one.info, dataset.info)}
        differing = sorted(name for name in compared if getattr(config, name) != getattr(part, name))
        differing += [name for name in ("root_seed", "spaces", "features") if one.info[name] != dataset.info[name]]
        if differing:
            message = f"{dataset.path} and {one.path} are shards of different runs: {', '.join(differing)} differ"
            raise UsageError(message, hint="collect it again as the others were")
        changed = _changed(one, dataset, progress)
        if changed and not accept_changes:
            raise UsageError(
                f"{dataset.path} has another policy or environment than {one.path}: {'; '.join(changed)}",
                hint="collect it again as the others were; --accept-changes merges both",
            )
        before = {"files": one.info["files"], "versions": one.info["versions"]}
        entry = {"what": f"files changed: {'; '.join(changed)}", "from_numbers": dataset.info["first_numbers"]}
        changes += [*dataset.info["changes"], *([{**entry, "before": before}] if changed else [])]
    return replace(config, shard=None), [*one.info["changes"], *changes]


def _in_files(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the options whose SPECs name files, which may lie in another folder: their contents are compared."""
    sources = {"policy": "policy", "env": "env_source"}
    return {name for name, origin in sources.items() if one[origin]["path"] and other[origin]["path"]}


def _changed(one: Dataset, other: Dataset, progress: Progress) -> list[str]:
    """Return in words what shows that two shards were collected with different code or weights; warn of the rest."""
    changed, notices = pins.changes(one.info["files"], other.info["files"])
    changed += changed_sources(one.info, other.info)
    for notice in notices:
        progress.notice(f"{other.path}: {notice}")
    if one.info["run"] != other.info["run"] and not changed:
        if are_comparable(one.info, other.info):
            return ["their first episode differs"]
        message = f"the first episodes of {one.path} and {other.path} differ"
        progress.warn(f"{message}: they were collected with different code or weights, or are not reproducible")
    if versions := changed_versions(one.info, other.info):
        progress.warn(f"{other.path} was collected with other versions than {one.path}: {'; '.join(versions)}")
    return changed


def are_comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether shards with these info.json's must have the same first episode, being parts of one run.

    Not where a run is known or suspected to differ from itself, nor where machines or packages may round otherwise.
    """
    verdicts = {info["reproducible"]["status"] for info in (one, other)}
    return bool(verdicts == {"yes"} and one["versions"] == other["versions"])


def _copy(dataset: Dataset, writer: DatasetWriter, per_worker: int | None, progress: Progress) -> None:
    """Write a shard's episodes behind those of the ones before it."""
    for chunk in dataset.chunks():  # Each is of one file, and so of one partition.
        if per_worker:
            worker = int(chunk.numbers[0]) // per_worker
            workers = np.full(chunk.n_episodes, worker, np.int32)
            writer.write(replace(chunk, workers=workers), partition=worker)
        else:
            writer.write(chunk)
        progress.update(episodes=chunk.n_episodes, steps=chunk.n_steps, return_sum=chunk.return_sum)


def _verdict(infos: Sequence[Mapping[str, Any]], known: Verdict | None) -> Mapping[str, Any]:
    """Return the weakest verdict of several, `no`, else `unknown`, else `yes`, unless one is known of the whole."""
    if known is not None:
        return asdict(known)
    order = ("no", "unknown", "yes")
    return min((info["reproducible"] for info in infos), key=lambda one: order.index(one["status"]))
