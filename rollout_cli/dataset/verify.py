"""Verification: the files of a dataset are checked against each other, one segment at a time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.card import n_skipped, skipped_text
from rollout_cli.dataset.commits import SegmentRecord, Written, counted
from rollout_cli.dataset.convert import Array, decode
from rollout_cli.dataset.faults import VerifyReport
from rollout_cli.dataset.layout import (
    ASIDE,
    DATASET_ENTRIES,
    LOCK_NAME,
    TOTALS,
    AnyPath,
    Origin,
    SegmentId,
    check_origin,
    entries,
    file_origin,
    fingerprint_of,
    info_path,
    order_column,
    plot_path,
    read_info,
    segment_files,
    stats_path,
)
from rollout_cli.dataset.metadata import totals_of_segments
from rollout_cli.dataset.parquet import DAMAGED_HINT, check_table, open_parquet, reading
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.schema import EPISODE_FIELDS, DatasetSchema
from rollout_cli.dataset.stats import merge_stats, stats_document, table_stats
from rollout_cli.episodes.batch import at_ends, derive_step_types, following
from rollout_cli.episodes.chunk import episode_returns
from rollout_cli.episodes.plain import Document
from rollout_cli.episodes.spaces import Arrays
from rollout_cli.errors import DatasetFormatError
from rollout_cli.seeding.seeds import env_seeds
from rollout_cli.sources.remote import RemotePath, folder_of

_GIT_FILE = ".gitattributes"
"""A file that every repository of the Hugging Face Hub has."""

_Start = tuple[int | None, int | None]
"""The first id and number of a segment; None if unknown, after an unreadable file."""

Check = tuple[str, Array | bool]
"""A problem, with a mask of the affected episodes, bool (N,), or one bool for the complete file."""


def verify_dataset(
    path: AnyPath, *, quick: bool = False, read: Collection[Path] | None = None
) -> VerifyReport:
    """Check the metadata of a dataset against its files, with one segment in memory at a time.

    Args:
        path: The dataset's folder, a path or a URI.
        quick: True to read only info.json, the episodes files and the footers of data files.
        read: The data files whose steps are read; None for all.

    Returns:
        A report with `faults` and harmless `notes`; the dataset is valid if `faults` is empty.

    Raises:
        DatasetFormatError: If the folder is not a dataset of this format, or its info.json is damaged.
        StorageError: If the dataset cannot be read.

    Example:
        >>> rollout_cli.verify("data").faults
        []
    """
    root = folder_of(path)
    info = read_info(root)
    schema = DatasetSchema.from_info(info)
    data, episodes = (segment_files(root / name, info["partitions"]) for name in ("data", "meta/episodes"))
    report = VerifyReport(root, info, schema, quick, () if quick else read, data, episodes)
    for check in (_check_segments, _check_metadata, _check_names):
        check(report)
    if report.faults and read_info(root) != info:  # A run has changed the dataset in between.
        return verify_dataset(path, quick=quick, read=read)
    return report


def check_segment(root: Path, info: DatasetInfo, schema: DatasetSchema, written: Written) -> None:
    """Raise `DatasetFormatError` if a file of a segment contradicts its footer or the other file."""
    report = VerifyReport(root, info, schema, quick=False, read=None, data_files={}, episodes_files={})
    _check_segment(report, written.segment, (None, written.record.start))
    for fault in report.faults:
        raise DatasetFormatError(
            f"{root / fault.file} is damaged: {fault.problem}", code="dataset-damaged", hint=DAMAGED_HINT
        )


def _check_segments(report: VerifyReport) -> None:
    """Check each segment, and that the segments of each partition are contiguous."""
    firsts = report.info["first_numbers"]
    starts: dict[SegmentId, _Start] = {
        SegmentId(len(firsts), partition, 0): (0, first) for partition, first in enumerate(firsts)
    }
    for segment, path in report.episodes_files.items():
        before, after = (replace(segment, number=segment.number + step) for step in (-1, 1))
        if segment.number and before not in report.episodes_files:
            report.add(before.paths(report.path)[1], "it is missing, but later segments exist", before)
        if segment.partition >= len(firsts):
            report.add(path, f"its partition is not one of the dataset's {len(firsts)}", segment)
        starts[after] = _check_segment(report, segment, starts.get(segment, (None, None)))
    _check_identities(report)
    for segment, path in report.data_files.items():
        if segment not in report.episodes_files:
            report.notes.append(f"{report.name(path)} has no episodes file: its rows are not committed")


def _check_identities(report: VerifyReport) -> None:
    """Check that no episode is repeated; source and number identify an episode."""
    if not report.info["derived"]:
        return  # Numbers rise, which other checks confirm.
    every = np.concatenate([np.empty((0, 3), np.int64), *report.identities.values()])
    _, firsts = np.unique(every[:, 1:], axis=0, return_index=True)
    repeated = np.delete(every[:, 0], firsts)
    for segment, identities in report.identities.items():
        if len(ids := np.intersect1d(identities[:, 0], repeated)):
            problem = "it repeats the source and number of another episode of the dataset"
            report.add(report.episodes_files[segment], problem, segment, ids)


def _check_segment(report: VerifyReport, segment: SegmentId, start: _Start) -> _Start:
    """Check both files of a segment with this start; return the start of the next segment."""
    next_id, next_number = start
    data_path, path = segment.paths(report.path)
    metadata, table = _read(report, path, report.schema.episodes, segment)
    if table is None:
        return None, None
    facts = {field.name: decode(table[field.name]) for field in EPISODE_FIELDS}
    ids = facts["episode_id"]
    lengths = facts["length"]
    of_episodes = _episode_checks(report.info, segment, facts, next_id)
    of_steps = list[Check]()
    order = order_column(report.info)
    origin = file_origin(fingerprint_of(report.info), segment.partition, int(facts[order][0]))
    try:
        check_origin(path, metadata.metadata, origin)
        record = SegmentRecord.from_footer(metadata.metadata or {})
    except (ValueError, DatasetFormatError) as error:
        report.add(path, str(error).replace(f"{path} ", "it "), segment)
        return None, None
    of_episodes += _record_checks(record, counted(record.start, table, order), next_number)
    steps = _read_steps(report, data_path, segment, facts, origin) if lengths.min() > 0 else None
    if steps is not None:
        of_steps = list(_step_checks(report.schema, facts, steps, table))
        documents = (stats_document(stats, report.schema) for stats in (table_stats(steps), record.stats))
        of_episodes.append(
            ("the statistics in its footer differ from those of its steps", not _same_stats(*documents))
        )
    for file, checks in ((path, of_episodes), (data_path, of_steps)):
        for problem, wrong in checks:
            if np.any(wrong):
                report.add(file, problem, segment, ids[wrong] if np.ndim(wrong) else ())
    report.identities[segment] = np.column_stack([ids, facts["source"], facts["episode_number"]])
    sizes = [file.stat().st_size if file.exists() else 0 for file in (data_path, path)]
    report.segments.append(Written(segment, record, *sizes))
    return int(ids[-1]) + 1, record.stop


def _episode_checks(info: DatasetInfo, segment: SegmentId, facts: Arrays, next_id: int | None) -> list[Check]:
    """Return the checks of an episodes file alone."""
    ids = facts["episode_id"]
    numbers = facts["episode_number"]
    lengths = facts["length"]
    first = int(ids[0]) if next_id is None else next_id
    chunk, file = segment.file
    roots = np.array([-1 if (seed := source["root_seed"]) is None else seed for source in info["sources"]])
    sources = facts["source"]
    root_seeds = roots[np.clip(sources, 0, len(roots) - 1)]
    seeds = np.zeros_like(numbers)
    for root in set(root_seeds.tolist()) - {-1}:
        seeds[root_seeds == root] = env_seeds(root, numbers[root_seeds == root])
    falls = np.diff(numbers, prepend=numbers[0] - 1) <= 0
    return [
        (
            "its id is not the next id",
            ids != (first + np.arange(len(ids)) if segment.n_partitions == 1 else numbers),
        ),
        ("its number is not higher than the previous one", falls & (not info["derived"])),
        ("its length is not positive", lengths < 1),
        (
            "it names another data file",
            (facts["data_chunk_index"] != chunk) | (facts["data_file_index"] != file),
        ),
        (
            "data_row_index is not the row of its first step",
            facts["data_row_index"] != np.cumsum(lengths) - lengths,
        ),
        ("root_seed is not the root seed of its source", facts["root_seed"] != root_seeds),
        # An environment that resets itself is not seeded: -1. Other programs seed as they like.
        (
            "its seed does not belong to its number",
            (facts["seed"] != seeds) & (facts["seed"] != -1) & (root_seeds != -1),
        ),
        ("its source is not in the dataset's sources", (sources < 0) | (sources >= len(roots))),
        ("it neither terminated nor was truncated", ~(facts["terminated"] | facts["truncated"])),
    ]


def _record_checks(record: SegmentRecord, expected: Document, next_number: int | None) -> list[Check]:
    """Return the checks of a commit record against the `expected` fields, computed from its episodes."""
    start = record.start
    last = record.stop - 1
    others = {name for name, value in expected.items() if repr(getattr(record, name)) != repr(value)}
    starts = f"its footer starts with episode number {start}, expected {next_number}"
    covers = f"its kept and skipped episodes are not the numbers {start} to {last} of its footer"
    return [
        (starts, next_number not in (None, start)),
        (covers, not others.isdisjoint(("stop", "skipped"))),
        ("the totals in its footer differ from those of its episodes", bool(others - {"stop", "skipped"})),
    ]


def _read_steps(
    report: VerifyReport, path: Path, segment: SegmentId, facts: Arrays, origin: Origin
) -> pa.Table | None:
    """Return the committed rows of a data file; None if they are damaged, or not selected."""
    ids = facts["episode_id"]
    ends = np.cumsum(facts["length"])
    is_unread = report.read is not None and path not in report.read
    metadata, table = _read(report, path, report.schema.data, segment, origin, ids=ids, footer_only=is_unread)
    if table is None:
        return None
    rows = metadata.num_rows
    if rows < ends[-1]:
        report.add(
            path,
            f"it has {rows:,} rows, expected {ends[-1]:,} by its episodes file",
            segment,
            ids[ends > rows],
        )
    elif rows > ends[-1]:
        report.notes.append(f"{report.name(path)} has {rows - ends[-1]:,} rows that are not committed")
    return None if is_unread or rows < ends[-1] else table.slice(0, int(ends[-1]))


def _step_checks(
    schema: DatasetSchema, facts: Arrays, steps: pa.Table, episodes: pa.Table
) -> Iterator[Check]:
    """Yield the checks of the rows of a data file."""
    lengths = facts["length"]
    ends = np.cumsum(lengths)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    expected = {
        "episode_id": facts["episode_id"][owners],
        "step": np.arange(len(owners)) - (ends - lengths)[owners],
        "step_type": derive_step_types(lengths, facts["terminated"], facts["truncated"]),
        **{name: at_ends(lengths, facts[name]) for name in ("terminated", "truncated")},
    }
    for name, values in expected.items():
        wrong = decode(steps[name]) != values
        yield f"{name} does not match its episode", np.logical_or.reduceat(wrong, ends - lengths)
    spaces = schema.spaces
    columns = zip(spaces.observation, spaces.next_observation, spaces.last_observation, strict=False)
    for seen, stated, last in columns:
        followed = following(seen.decode(steps), last.decode(episodes), ends - 1)
        wrong = _differs(stated.decode(steps), followed)
        yield (
            "next_observation differs from the next row's observation",
            np.logical_or.reduceat(wrong, ends - lengths),
        )
    returns = episode_returns([decode(steps["reward"])], lengths)
    yield "its rewards do not sum to its return", _differs(returns, facts["return"])


def _differs(first: Array, second: Array) -> Array:
    """Return a mask of the rows that differ between two arrays (N, *shape), bit by bit, bool (N,)."""
    if first.dtype == object:
        pairs = zip(map(np.asarray, first), map(np.asarray, second), strict=True)
        return np.array([one.tobytes() != other.tobytes() for one, other in pairs], bool)
    left, right = (
        np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8) for values in (first, second)
    )
    return np.asarray((left != right).any(axis=1))


def _read(
    report: VerifyReport,
    path: Path,
    expected: pa.Schema,
    segment: SegmentId,
    origin: Origin | None = None,
    *,
    ids: Any = (),
    footer_only: bool = False,
) -> tuple[Any, pa.Table | None]:
    """Return the metadata and rows of a file; for a damaged file, add a fault and return None."""
    try:
        with open_parquet(path) as file:
            metadata = file.metadata
            schema = file.schema_arrow
            check_origin(path, metadata.metadata, origin or {})
            check_table(path, file, [*map(str, expected)])
            table = schema.empty_table() if footer_only else file.read()
            table.validate(full=True)
    except DatasetFormatError as error:
        report.add(path, f"it {error.message.removeprefix(f'{path} ')}", segment, ids)
        return None, None
    # Arrow also stores the footer's keys in its own schema; readers use either copy.
    copies = (metadata.metadata or {}, schema.metadata or {})
    for key, value in expected.metadata.items():
        if any(keys.get(key) != value for keys in copies):
            report.add(path, f"{key.decode()} in its footer differs from the dataset's", segment)
    if not footer_only and _has_other_extremes(metadata, decode(table["episode_id"])):
        report.add(path, "the min and max of episode_id in its footer differ from its rows", segment)
    return metadata, table


def _has_other_extremes(metadata: Any, ids: Array) -> bool:
    """Return True if wrong statistics would make a reader that selects by episode skip rows."""
    stop = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        held = ids[stop : stop + group.num_rows]
        stop = stop + group.num_rows
        stated = group.column(0).statistics
        if stated is not None and stated.has_min_max and (stated.min, stated.max) != (held.min(), held.max()):
            return True
    return False


def _check_metadata(report: VerifyReport) -> None:
    """Check info.json and stats.json, whose totals and statistics are written when the run ends."""
    info = info_path(report.path)
    stats = stats_path(report.path)
    if report.info["features"] != report.schema.describe():
        report.add(info, "its features do not match its spaces")
    if report.info["status"] == "collecting":
        return
    if skipped := skipped_text(n_skipped(report.info["sources"]), report.info["episodes"]):
        report.notes.append(f"{skipped} were skipped")
    totals: Document = totals_of_segments(report.segments)
    stated_totals: Document = report.info
    for name in TOTALS:
        stated = stated_totals[name]
        held = totals[name]
        if stated != held:
            report.add(info, f"it states {stated:,} {name}, but the files hold {held:,}")
    for name in ("anomalies", "dropped_infos"):
        if stated_totals[name] != totals[name]:
            report.add(info, f"its {name} differ from those of the files")
    with reading(stats):
        text = stats.read_bytes() if stats.is_file() else b""
    merged = merge_stats([written.record.stats for written in report.segments])
    if not _same_stats(stats_document(merged, report.schema), text):
        report.add(stats, "it is missing, or its statistics differ from those of the steps")


def _check_names(report: VerifyReport) -> None:
    """Note unknown files: those in the dataset's folders are `unexpected`, others belong to the user."""
    root = report.path
    ours = {
        *report.data_files.values(),
        *report.episodes_files.values(),
        *(path_in(root) for path_in in (info_path, stats_path, plot_path)),
    }
    for top in entries(root):
        if top.name in ("data", "meta") or (top.name.endswith(".tmp") and not top.is_symlink()):
            inside = top.rglob("*") if top.is_dir() else [top]
            with suppress(FileNotFoundError):  # A run has ended, and removed its unfinished files.
                report.unexpected += sorted(
                    {path for path in inside if isinstance(path, RemotePath) or not path.is_dir()} - ours
                )
        elif top.name not in (*DATASET_ENTRIES, LOCK_NAME, _GIT_FILE) and not top.name.startswith(ASIDE):
            report.notes.append(f"{top.name} does not belong to the dataset")
    report.notes += [f"{report.name(path)} does not belong to the dataset" for path in report.unexpected]
    if not (root / "README.md").is_file():
        report.notes.append("README.md, the dataset's card, is missing")


def _same_stats(expected: Document, stated: Any) -> bool:
    """Return True if statistics are equal up to rounding: another machine may add numbers in another order."""
    try:
        stated = json.loads(stated) if isinstance(stated, bytes) else stated
        for column, stats in expected.items():
            largest = np.nanmax(np.abs(np.array([stats["min"], stats["max"]], float)), initial=1.0)
            rounding = 1e-9 * largest
            with np.errstate(over="ignore"):
                has_sums = np.isfinite(largest * largest * np.max(stats["count"]))
            tolerances = {"count": 0.0, "min": 0.0, "max": 0.0}
            if has_sums:  # Otherwise mean and deviation are infinite or nan, which depends on the order.
                tolerances |= {"mean": rounding, "std": rounding}
            for name, tolerance in tolerances.items():
                ours, theirs = (np.asarray(fields[name], float) for fields in (stats, stated[column]))
                if ours.shape != theirs.shape or not np.allclose(
                    ours, theirs, rtol=0, atol=tolerance, equal_nan=True
                ):
                    return False
        return bool(stated.keys() == expected.keys())
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return False
