"""Merging: the shards of one run, each a dataset, become the dataset of the whole run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli.config import CollectConfig
from rollout_cli.dataset.files import check_folder, read_info
from rollout_cli.errors import UsageError
from rollout_cli.run.progress import Progress
from rollout_cli.run.provenance import changed_sources, changed_versions, recorded_values

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary
    from rollout_cli.dataset.reader import Dataset
    from rollout_cli.dataset.writer import DatasetWriter

_OF_THE_FOLDER = ("output", "shard", "seed")
_RECORD = ("env", "env_source", "policy", "collector", "worker", "seeding", "versions", "git")
_MAY_DIFFER = {"workers", "sampler", "start_method", "ray_address", "cpus_per_worker", "gpus_per_worker", "flush_every"}
"""Options that one shard may have otherwise than another: they say where and how it ran. (`exact` divides workers.)"""


def merge(parts: Sequence[Path], output: Path, *, overwrite: bool, progress: Progress) -> DatasetSummary:
    """Write the dataset of the run whose shards are `parts`, in any order; its `data/` is as if one run had made it.

    Raises:
        UsageError: If a shard is missing, has not ended, or belongs to another run.
        DatasetFormatError: If a shard is damaged.
    """
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads pyarrow
    from rollout_cli.dataset.schema import info_columns_of  # noqa: PLC0415
    from rollout_cli.dataset.segments import SizeLimits  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    check_folder(output, overwrite=overwrite)
    if output.resolve() in [path.resolve() for path in parts]:
        raise UsageError(f"{output} is a shard itself", hint="merge into another folder")
    found = [(load(path), _config_of(path)) for path in parts]
    found.sort(key=lambda one: one[1].shard or (0, 0))
    config = _checked(found, progress)
    first = found[0][0].info
    per_worker = config.episodes_per_worker
    firsts = [worker * per_worker for worker in config.whole] if per_worker else [config.whole.start]
    record = {name: first[name] for name in _RECORD if name in first}
    record["collector"] = {**record["collector"], "shard": None}
    with DatasetWriter(
        output,
        env_spec=found[0][0].env_spec,
        root_seed=first["root_seed"],
        first_numbers=firsts,
        header={**record, "reproducible": _verdict([dataset.info for dataset, _ in found])},
        next_observation=config.next_observation,
        overwrite=overwrite,
        limits=SizeLimits(segment_bytes=config.segment_bytes),
        decided=(info_columns_of(first["features"]), first["run"]),
    ) as writer:
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


def _checked(found: Sequence[tuple[Dataset, CollectConfig]], progress: Progress) -> CollectConfig:
    """Return the configuration of the whole run; UsageError unless these are all of its shards."""
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
    for dataset, part in others:
        compared = vars(config).keys() - {*_OF_THE_FOLDER, *may_differ}
        differing = sorted(name for name in compared if getattr(config, name) != getattr(part, name))
        differing += changed_sources(one.info, dataset.info)
        differing += [name for name in ("root_seed", "spaces", "features") if one.info[name] != dataset.info[name]]
        if differing:
            message = f"{dataset.path} and {one.path} are shards of different runs: {', '.join(differing)} differ"
            raise UsageError(message, hint="collect it again as the others were")
        if one.info["run"] != dataset.info["run"]:
            message = f"{dataset.path} was collected with another policy or environment than {one.path}"
            if are_comparable(one.info, dataset.info):
                raise UsageError(f"{message}: their first episode differs", hint="collect it again as the others were")
            progress.warn(f"{message}, or is not reproducible: their first episode differs")
        if changed := changed_versions(one.info, dataset.info):
            progress.warn(f"{dataset.path} was collected with other versions than {one.path}: {'; '.join(changed)}")
    return replace(config, shard=None)


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


def _verdict(infos: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the weakest verdict of several: `no`, else `unknown`, else `yes`."""
    order = ("no", "unknown", "yes")
    return min((info["reproducible"] for info in infos), key=lambda one: order.index(one["status"]))
