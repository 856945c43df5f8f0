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
from rollout_cli.errors import DatasetFormatError, UsageError
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
        DatasetFormatError: If a shard is damaged, or holds infos whose sizes cannot be known from it.
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
    for dataset, _ in found:
        _check_sizes(dataset)
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
        columns=info_columns_of(first["features"]),
    ) as writer:
        n_steps = sum(dataset.info["steps"] for dataset, _ in found)
        progress.start(label=str(output), total_steps=n_steps, total_episodes=None)
        progress.begin()
        for dataset, _ in found:
            _copy(dataset, writer, per_worker, progress)
        progress.finish()
        skipped = [one for dataset, _ in found for one in dataset.info.get("skipped", {}).get("episodes", [])]
        facts: dict[str, Any] = {}
        if skipped:
            note = next(dataset.info["skipped"]["note"] for dataset, _ in found if "skipped" in dataset.info)
            facts["skipped"] = {"count": len(skipped), "note": note, "episodes": skipped}
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
    missing = sorted(set(range(1, count + 1)) - set(here))
    if missing or len(here) != count:
        what = f"shard {missing[0]}/{count} is missing" if missing else "a shard is given twice"
        raise UsageError(what, hint="give each shard of the run once")
    may_differ = _MAY_DIFFER - ({"workers"} if config.command == "exact" else set())
    for dataset, part in others:
        names = [name for name in vars(config) if name not in (*_OF_THE_FOLDER, *may_differ)]
        differing = [name for name in names if getattr(config, name) != getattr(part, name)]
        differing += changed_sources(one.info, dataset.info)
        differing += [name for name in ("root_seed", "spaces", "features") if one.info[name] != dataset.info[name]]
        if differing:
            message = f"{dataset.path} and {one.path} are shards of different runs: {', '.join(differing)} differ"
            raise UsageError(message, hint="collect it again as the others were")
        if changed := changed_versions(one.info, dataset.info):
            progress.warn(f"{dataset.path} was collected with other versions than {one.path}: {'; '.join(changed)}")
    return replace(config, shard=None)


def _check_sizes(dataset: Dataset) -> None:
    """Raise DatasetFormatError unless the sizes by which segments were cut follow from what is stored.

    They do not where values fitted no column, and went to the JSON remainder as other values than they were.
    """
    from rollout_cli.dataset.commits import read_committed  # noqa: PLC0415 - as above
    from rollout_cli.dataset.schema import DatasetSchema  # noqa: PLC0415

    committed, schema = read_committed(dataset.path, dataset.info), DatasetSchema.from_info(dataset.info)
    size = committed.steps * schema.step_bytes + committed.episodes * schema.episode_bytes
    size += sum(int(chunk.variable_bytes.sum()) for chunk in dataset.chunks())
    if size != sum(one.record.nominal for one in committed.segments):
        raise DatasetFormatError(
            f"{dataset.path} has infos with values of several types under one key, whose sizes are not kept exactly",
            hint="leave them out with --drop-info, or collect in one run",
        )


def _copy(dataset: Dataset, writer: DatasetWriter, per_worker: int | None, progress: Progress) -> None:
    """Write a shard's episodes behind those of the ones before it."""
    for chunk in dataset.chunks():
        if per_worker:
            workers = chunk.numbers // per_worker
            for worker in np.unique(workers).tolist():
                start, stop = np.searchsorted(workers, [worker, worker + 1]).tolist()
                own = chunk.episodes(start, stop)
                writer.write(replace(own, workers=np.full(own.n_episodes, worker, np.int32)), partition=worker)
        else:
            writer.write(chunk)
        progress.update(episodes=chunk.n_episodes, steps=chunk.n_steps, return_sum=chunk.return_sum)


def _verdict(infos: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the weakest verdict of several: `no`, else `unknown`, else `yes`."""
    order = ("no", "unknown", "yes")
    return min((info["reproducible"] for info in infos), key=lambda one: order.index(one["status"]))
