"""info.json, written with the card: the record of how a dataset was made, and of its contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rollout_cli.dataset.card import render_card
from rollout_cli.dataset.commits import Written, totals_of
from rollout_cli.dataset.layout import FORMAT, FORMAT_VERSION, info_path, stats_path
from rollout_cli.dataset.schema import DatasetSchema, InfoColumns, SpaceSchema
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.stats import Anomaly, Place, anomalies, merge_stats, stats_document
from rollout_cli.dataset.store import FileStore
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.plain import plain_json

Status = Literal["complete", "interrupted"]


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """The contents of a closed dataset, as info.json has them; `segments` counts data files."""

    path: Path
    status: Status
    episodes: int
    steps: int
    bytes: int
    segments: int
    info_columns: str
    dropped_infos: Mapping[str, int]
    anomalies: tuple[Anomaly, ...]


@dataclass(frozen=True, slots=True)
class DatasetSettings:
    """Everything about a new dataset that is known before its first episode.

    Attributes:
        first_numbers: The first episode number of each partition; each of several has a chunk folder of its
            own. None stands for the first number that comes, and then gaps before it are not recorded as
            skipped.
        next_observation: Whether each step has the observation that followed it, in columns of their own.
        sources: Of each run that episodes come from its `root_seed`, and what else info.json records of it;
            its `env` goes into every file's footer too.
        columns: The info columns, where they are known beforehand; then each source has the fingerprint of
            its `run`.
        derived: How the dataset is made of others, an operation each; empty for one that is collected. The
            numbers of its episodes may have any order then, and its segments are counted by their ids.
    """

    env_spec: EnvSpec
    sources: Sequence[Mapping[str, Any]]
    first_numbers: Sequence[int | None] = (None,)
    next_observation: bool = False
    limits: SizeLimits = field(default_factory=SizeLimits)
    columns: InfoColumns | None = None
    derived: Sequence[Mapping[str, Any]] = ()


def new_info(
    spaces: SpaceSchema, settings: DatasetSettings, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the info.json of a dataset that begins, or is resumed if there is an info.json from `before`."""
    now = utc_now()
    ours: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "status": "collecting",
        **dict.fromkeys(("episodes", "steps", "bytes", "segments"), 0),
        "partitions": len(settings.first_numbers),
        "first_numbers": list(settings.first_numbers),
        "next_observation": settings.next_observation,
        "limits": asdict(settings.limits),
        "max_episode_length": spaces.env_spec.max_episode_length,
        "spaces": spaces.describe(),
        "features": DatasetSchema.of(spaces, {}, {}).describe(),  # Without a column of an info so far.
        "info_columns": "inferring",
        "sources": [{"run": None, **plain_json(source)} for source in settings.sources],
        "derived": plain_json(settings.derived),
        "dropped_infos": {},
        "anomalies": [],
        "times": {"started": now, "updated": now, "ended": None},
    }
    if before is not None:
        times = before.get("times") or {}
        ours["times"] |= {"started": times.get("started", now), "resumed": [*times.get("resumed", []), now]}
        if license_id := (before.get("card") or {}).get("license"):
            ours["card"] = {"license": license_id}  # A picture would not have the new episodes.
    return ours


def count_segments(info: dict[str, Any], written: Sequence[Written]) -> None:
    """Record the totals of the segments, and their anomalies."""
    places: dict[str, Place] = {}
    dropped: Counter[str] = Counter()
    for segment in written:
        places = {**segment.record.anomalies, **places}
        dropped.update(segment.record.dropped_infos)
    info |= {
        **totals_of(written, "episodes", "steps"),
        "dropped_infos": dict(dropped),
        "bytes": sum(segment.bytes for segment in written),
        "segments": len(written),
        "anomalies": [anomaly._asdict() for anomaly in anomalies(places)],
    }


def end_info(
    info: dict[str, Any], status: Status, facts: Mapping[str, Any], written: Sequence[Written]
) -> None:
    """Record how the dataset ended, what its segments hold, and more facts of the run that it is of."""
    count_segments(info, written)
    info["sources"][0] |= facts
    info["status"] = status
    info["times"]["ended"] = utc_now()


def write_contents(
    files: FileStore, root: Path, info: dict[str, Any], written: Sequence[Written], schema: DatasetSchema
) -> None:
    """Write stats.json, then info.json and the card, of a dataset that has ended with these segments."""
    stats = merge_stats([segment.record.stats for segment in written])
    files.write_json(stats_path(root), stats_document(stats, schema))
    write_info(files, root, info)


def write_info(files: FileStore, root: Path, info: dict[str, Any]) -> None:
    """Write info.json and the card."""
    info["times"]["updated"] = utc_now()
    files.write_json(info_path(root), info)
    files.replace(root / "README.md", render_card(info).encode(errors="backslashreplace"))


def summary_of(root: Path, info: Mapping[str, Any]) -> DatasetSummary:
    """Return the contents of the dataset that `info` describes."""
    names = ("status", "episodes", "steps", "bytes", "segments", "info_columns", "dropped_infos")
    odd = tuple(Anomaly(**place) for place in info["anomalies"])
    return DatasetSummary(root, anomalies=odd, **{name: info[name] for name in names})


def utc_now() -> str:
    """Return the time as info.json has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
