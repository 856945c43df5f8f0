"""Whether a dataset holds what it states: its files are checked against each other, one segment at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import SegmentId, SegmentRecord, segment_files
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.files import DATASET_ENTRIES, LOCK_NAME, info_path, stats_path
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.reader import current_info, entries
from rollout_cli.dataset.schema import EPISODE_FIELDS, DatasetSchema
from rollout_cli.dataset.stats import TableStats, merge_stats, stats_document, table_stats
from rollout_cli.dataset.tables import episode_returns
from rollout_cli.episodes.batch import derive_step_types
from rollout_cli.errors import DatasetFormatError

SHOWN = 20
"""So many faults, notes, and episodes of one fault are named; of the others, their number."""

TOTALS = ("episodes", "steps", "bytes", "segments")


@dataclass(frozen=True, slots=True)
class Fault:
    """One contradiction.

    Attributes:
        file: The file, relative to the dataset's folder.
        problem: What is wrong, in words.
        episodes: The ids of the first episodes that it concerns; none where it is the file as a whole.
        n_episodes: How many episodes it concerns.
        segment: The segment that has the file; None for a file of the whole dataset.
    """

    file: str
    problem: str
    episodes: tuple[int, ...] = ()
    n_episodes: int = 0
    segment: SegmentId | None = None

    def document(self) -> dict[str, Any]:
        """Return the fault as JSON."""
        episodes = {"episodes": list(self.episodes), "n_episodes": self.n_episodes}
        return {"file": self.file, "problem": self.problem, **episodes}

    def __str__(self) -> str:
        if not self.n_episodes:
            return f"{self.file}: {self.problem}"
        more = f" and {self.n_episodes - len(self.episodes):,} more" if self.n_episodes > len(self.episodes) else ""
        noun = "episodes" if self.n_episodes > 1 else "episode"
        return f"{self.file}: {self.problem} ({noun} {', '.join(map(str, self.episodes))}{more})"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a verification.

    Attributes:
        path: The dataset's folder.
        status: The status that info.json states.
        episodes: Episodes in its episodes files.
        steps: Their steps.
        files: How many data and episodes files there are.
        quick: Whether steps were left out.
        faults: All contradictions.
        notes: Harmless observations, such as unfinished files of a run that was killed.
    """

    path: Path
    status: str
    episodes: int
    steps: int
    files: int
    quick: bool
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        names = ("status", "episodes", "steps", "files", "quick")
        return {
            "path": str(self.path),
            "ok": not self.faults,
            **{name: getattr(self, name) for name in names},
            "notes": list(self.notes[:SHOWN]),
            "n_notes": len(self.notes),
            "faults": [fault.document() for fault in self.faults[:SHOWN]],
            "n_faults": len(self.faults),
        }


def verify_dataset(path: Path | str, *, quick: bool = False) -> VerifyReport:
    """Check everything that the dataset in the folder `path` states; one segment at a time is in memory.

    Format 1 had other commit records, and statistics of other rows: these are not checked.

    Args:
        path: The dataset's folder.
        quick: Read info.json, the episodes files and the footers of data files, but no step.

    Raises:
        DatasetFormatError: If there is no dataset of this format.
        StorageError: If it cannot be read.
    """
    root = Path(path)
    info = current_info(root)
    try:
        found = check_dataset(root, info, quick=quick)
    except DatasetFormatError as error:
        return VerifyReport(root, "unknown", 0, 0, 0, quick, (Fault("meta/info.json", error.message),), ())
    totals, files = totals_of(found.segments), len(found.data) + len(found.episodes)
    counts = (totals["episodes"], totals["steps"], files)
    return VerifyReport(root, info["status"], *counts, quick, tuple(found.faults), tuple(found.notes))


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment whose episodes file could be read; its record is None in format 1, and where it is damaged."""

    id: SegmentId
    episodes: int
    steps: int
    bytes: int
    record: SegmentRecord | None


def totals_of(segments: Sequence[Segment]) -> dict[str, int]:
    """Return the totals of some segments, as info.json has them."""
    return {name: sum(getattr(one, name) for one in segments) for name in TOTALS[:3]} | {"segments": len(segments)}


@dataclass(slots=True)
class Findings:
    """What a verification finds.

    Attributes:
        root: The dataset's folder.
        info: Its info.json.
        schema: Its columns.
        data: Its data files.
        episodes: Its episodes files.
        segments: The segments whose episodes files could be read.
        faults: All contradictions.
        notes: Harmless observations.
        unexpected: Files in its folders that do not belong there.
        is_behind: Whether info.json, stats.json or the card lacks something that the files hold.
    """

    root: Path
    info: Mapping[str, Any]
    schema: DatasetSchema
    data: dict[SegmentId, Path]
    episodes: dict[SegmentId, Path]
    segments: list[Segment] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unexpected: list[Path] = field(default_factory=list)
    is_behind: bool = False

    def name(self, path: Path) -> str:
        """Return a file's name within the dataset."""
        return path.relative_to(self.root).as_posix()

    def add(self, path: Path, problem: str, segment: SegmentId | None = None, ids: Sequence[int] | Array = ()) -> None:
        """Add a fault of a file, and of the episodes `ids` in it."""
        text = " ".join(problem.replace(f"{self.root}/", "").split())[:500]
        self.faults.append(Fault(self.name(path), text, tuple(int(one) for one in ids[:SHOWN]), len(ids), segment))

    def add_where(self, path: Path, segment: SegmentId, ids: Array, checks: Iterable[Check]) -> None:
        """Add each problem whose condition is true: for the file as a whole, or for some of the episodes `ids`."""
        for problem, wrong in checks:
            if np.any(wrong):
                self.add(path, problem, segment, ids[wrong] if np.ndim(wrong) else ())

    def add_or_note(self, path: Path, problem: str, *, is_fault: bool) -> None:
        """Add a fault of a file of the whole dataset, or note that it is behind the segments."""
        if is_fault:
            self.add(path, problem)
        else:
            self.notes.append(f"{self.name(path)}: {problem}")
            self.is_behind = True


Check = tuple[str, Array | bool]
"""A problem, and its condition: one for a file as a whole, or one for each of its episodes, bool (N,)."""

Facts = Mapping[str, Array]
"""The columns `EPISODE_FIELDS` of one episodes file, each (N,)."""


def check_dataset(root: Path, info: Mapping[str, Any], *, quick: bool = False) -> Findings:
    """Check the files of a dataset against each other and against `info`, its info.json.

    Raises:
        DatasetFormatError: If `info` does not describe a dataset.
        StorageError: If a file or folder cannot be read.
    """
    for name in (*TOTALS, "root_seed", "partitions"):
        if type(info.get(name)) is not int or info[name] < (name == "partitions"):
            raise DatasetFormatError(f"its {name} is {info.get(name)!r}, expected a whole number")
    if info.get("status") not in ("collecting", "complete", "interrupted"):
        raise DatasetFormatError(f"its status is {info.get('status')!r}")
    n_partitions = info["partitions"]
    data, episodes = (segment_files(root / name, n_partitions) for name in ("data", "meta/episodes"))
    found = Findings(root, info, DatasetSchema.from_info(info), data, episodes)
    if info["features"] != found.schema.describe():
        found.add(info_path(root), "its features are not those of its spaces")
    for partition in range(n_partitions):
        _check_partition(found, partition, quick=quick)
    for segment, path in (*episodes.items(), *data.items()):
        if segment.partition >= n_partitions:
            found.add(path, f"it is of another partition than the dataset's {n_partitions}", segment)
    _check_totals(found)
    _check_stats(found)
    _check_names(found)
    return found


def _check_partition(found: Findings, partition: int, *, quick: bool) -> None:
    """Check that segments follow one another, and each by itself."""
    # What the next segment begins with; None behind a file that could not be read.
    next_id: int | None = 0
    next_number: int | None = (found.info.get("first_numbers") or {partition: None})[partition]
    previous = -1
    for segment in [one for one in found.episodes if one.partition == partition]:
        if segment.number != previous + 1:
            missing = SegmentId(segment.n_partitions, partition, previous + 1)
            found.add(missing.episodes_path(found.root), "it is missing, and there are later ones", missing)
            next_id = next_number = None
        previous = segment.number
        next_id, next_number = _check_segment(found, segment, next_id, next_number, quick=quick)
    for segment, path in found.data.items():
        if segment.partition == partition and segment.number > previous:
            found.notes.append(f"{found.name(path)} has no episodes file, so none of its rows is committed")


def _check_segment(
    found: Findings, segment: SegmentId, next_id: int | None, next_number: int | None, *, quick: bool
) -> tuple[int | None, int | None]:
    """Check both files of a segment; return the id and the number that the next one begins with, None if unknown."""
    path, data_path = found.episodes[segment], segment.data_path(found.root)
    metadata, table = _read(found, path, found.schema.episodes, segment)
    if table is None or not table.num_rows:
        found.add_where(path, segment, np.empty(0), [("it has no episode", table is not None)])
        return None, None
    facts = {one.name: table[one.name].to_numpy() for one in EPISODE_FIELDS}
    ids, lengths = facts["episode_id"], facts["length"]
    found.add_where(path, segment, ids, _episode_checks(found.info, segment, facts, next_id))
    record = None
    if found.info["format_version"] > 1:
        try:
            record = SegmentRecord.from_footer(metadata.metadata or {})
            found.add_where(path, segment, ids, _record_checks(record, facts, next_number))
        except ValueError as error:
            found.add(path, str(error), segment)
    steps = int(lengths.sum()) if lengths.min() > 0 else 0
    stats = _check_data(found, segment, facts, table, quick=quick) if steps else None
    if record is not None and stats is not None and not _same_stats(_documents(record.stats), _documents(stats)):
        found.add(path, "the statistics in its footer are not those of its steps", segment)
    size = sum(one.stat().st_size for one in (path, data_path) if one.exists())
    found.segments.append(Segment(segment, len(ids), steps, size, record))
    return int(ids[-1]) + 1, None if record is None else record.stop


def _episode_checks(info: Mapping[str, Any], segment: SegmentId, facts: Facts, next_id: int | None) -> list[Check]:
    """Return the checks of an episodes file by itself."""
    ids, numbers, lengths = facts["episode_id"], facts["episode_number"], facts["length"]
    first = int(ids[0]) if next_id is None else next_id
    chunk, file = segment.file
    return [
        ("its id is not the next one", ids != (first + np.arange(len(ids)) if segment.n_partitions == 1 else numbers)),
        ("its number is not above the one before", np.diff(numbers, prepend=numbers[0] - 1) <= 0),
        ("its length is not positive", lengths < 1),
        ("it names another data file", (facts["data_chunk_index"] != chunk) | (facts["data_file_index"] != file)),
        ("data_row_index is not that of its first step", facts["data_row_index"] != np.cumsum(lengths) - lengths),
        ("root_seed is not the dataset's", facts["root_seed"] != info["root_seed"]),
        ("it neither terminated nor was truncated", ~(facts["terminated"] | facts["truncated"])),
    ]


def _record_checks(record: SegmentRecord, facts: Facts, next_number: int | None) -> list[Check]:
    """Return the checks of a commit record against its episodes."""
    start, stop, lengths = record.start, record.stop, facts["length"]
    known = sorted([*facts["episode_number"].tolist(), *record.skipped])
    covers = len(known) == stop - start and known == list(range(start, stop))
    stated = (record.episodes, record.steps, record.last_length, repr(record.return_sum))
    held = (len(lengths), int(lengths.sum()), int(lengths[-1]), repr(float(facts["return"].sum())))
    begins = f"its footer covers episode numbers from {start} on, expected from {next_number} on"
    return [
        (begins, next_number not in (None, start)),
        (f"its episodes, and those skipped, are not the numbers {start} to {stop - 1} of its footer", not covers),
        ("the totals in its footer are not those of its episodes", stated != held),
    ]


def _check_data(
    found: Findings, segment: SegmentId, facts: Facts, episodes: pa.Table, *, quick: bool
) -> TableStats | None:
    """Check a data file against its episodes; return the statistics of its steps, unless they were not read."""
    path, ids, ends = segment.data_path(found.root), facts["episode_id"], np.cumsum(facts["length"])
    metadata, table = _read(found, path, found.schema.data, segment, ids=ids, footer_only=quick)
    if table is None:
        return None
    rows = metadata.num_rows
    if rows < ends[-1]:
        found.add(path, f"it has {rows:,} rows, and its episodes file states {ends[-1]:,}", segment, ids[ends > rows])
        return None
    if rows > ends[-1]:
        found.notes.append(f"{found.name(path)} has {rows - ends[-1]:,} rows that no episodes file states")
    if quick:
        return None
    steps = table.slice(0, int(ends[-1]))
    found.add_where(path, segment, ids, _step_checks(found.schema, facts, steps, episodes))
    return table_stats(steps)


def _step_checks(schema: DatasetSchema, facts: Facts, steps: pa.Table, episodes: pa.Table) -> Iterator[Check]:
    """Give the checks of the rows of a data file."""
    lengths = facts["length"]
    ends = np.cumsum(lengths)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    flags = {name: np.zeros(len(owners), bool) for name in ("terminated", "truncated")}
    for name, values in flags.items():
        values[ends - 1] = facts[name]
    expected = flags | {
        "episode_id": facts["episode_id"][owners],
        "step": np.arange(len(owners)) - (ends - lengths)[owners],
        "step_type": derive_step_types(lengths, facts["terminated"], facts["truncated"]),
    }
    for name, values in expected.items():
        wrong = steps[name].to_numpy() != values
        yield f"{name} is not that of its episode's steps", np.logical_or.reduceat(wrong, ends - lengths)
    spaces = schema.spaces
    columns = zip(spaces.observation, spaces.next_observation, spaces.last_observation, strict=False)
    for seen, following, last in columns:
        after = np.roll(seen.decode(steps), -1, axis=0)
        after[ends - 1] = last.decode(episodes)
        wrong = ~_same_rows(following.decode(steps), after)
        yield "next_observation is not the observation that followed", np.logical_or.reduceat(wrong, ends - lengths)
    returns = episode_returns([steps["reward"].to_numpy()], lengths)
    same = np.isclose(returns, facts["return"], rtol=0, atol=0, equal_nan=True)
    yield "its rewards do not sum to its return", ~same


def _same_rows(first: Array, second: Array) -> Array:
    """Return which rows of two arrays of one shape have the same bits (equal texts), bool (N,)."""
    if first.dtype == object:
        return np.asarray(first == second)
    size = first.dtype.itemsize * int(np.prod(first.shape[1:]))
    bits = [np.ascontiguousarray(array).view(np.uint8).reshape(len(array), size) for array in (first, second)]
    return np.asarray((bits[0] == bits[1]).all(axis=1))


def _read(
    found: Findings, path: Path, expected: pa.Schema, segment: SegmentId, *, ids: Any = (), footer_only: bool = False
) -> tuple[Any, pa.Table | None]:
    """Return the metadata and rows of a file; rows are None, and there is a fault, where it is damaged."""
    is_old = found.info["format_version"] == 1
    try:
        with reading(path), open_parquet(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
            table = file.read_row_groups([]) if footer_only else file.read()
            table.validate(full=True)
    except DatasetFormatError as error:
        found.add(path, f"it {error.message.removeprefix(f'{path} ')}", segment, ids)
        return None, None
    for one, other in zip_longest(_columns(expected, is_old=is_old), _columns(schema, is_old=is_old)):
        if one != other:
            found.add(path, f"it has other columns than the dataset: {other}, expected {one}", segment, ids)
            return metadata, None
    # Arrow keeps a copy of the footer's keys in its own schema, and readers take either.
    copies = (metadata.metadata or {}, schema.metadata or {})
    for key, value in {} if is_old else expected.metadata.items():
        if [_json(keys.get(key) or b"") for keys in copies] != [_json(value)] * 2:
            found.add(path, f"{key.decode()} in its footer is not that of the dataset", segment)
    return metadata, table


def _columns(schema: pa.Schema, *, is_old: bool) -> list[str]:
    """Return names and types. Infos, which alone are nullable, had other types in format 1."""
    return [one.name if is_old and one.nullable else str(one) for one in schema]


def _check_totals(found: Findings) -> None:
    """Check the totals. Unless a dataset is complete, info.json may be behind the files, never ahead of them."""
    for name, held in totals_of(found.segments).items():
        stated = found.info[name]
        if stated != held:
            is_fault = found.info["status"] == "complete" or (stated > held and name != "bytes")
            problem = f"it states {stated:,} {name}, and the files hold {held:,}"
            found.add_or_note(info_path(found.root), problem, is_fault=is_fault)


def _check_stats(found: Findings) -> None:
    """Check stats.json against the commit records, if all are known."""
    path, problem = stats_path(found.root), None
    parts = [one.record.stats for one in found.segments if one.record is not None]
    if not path.is_file():
        problem = "it is not a regular file" if path.exists() else "it is missing"
    elif len(parts) == len(found.segments):
        with reading(path):
            stated = _json(path.read_bytes())
        if not _same_stats(stats_document(merge_stats(parts), found.schema), stated):
            problem = "its statistics are not those of the steps"
    if problem is not None:
        found.add_or_note(path, problem, is_fault=found.info["status"] == "complete")


def _check_names(found: Findings) -> None:
    """Note what does not belong to the dataset: files in its own folders are `unexpected`, others are the user's."""
    ours = {*found.data.values(), *found.episodes.values(), info_path(found.root), stats_path(found.root)}
    for top in entries(found.root):
        if top.name in ("data", "meta") and top.is_dir():
            files = {Path(folder) / name for folder, _, names in os.walk(top) for name in names}
            found.unexpected += sorted(files - ours)
        elif top.name in ("data", "meta") or top.name.endswith(".tmp"):
            found.unexpected.append(top)
        elif top.name not in (*DATASET_ENTRIES, LOCK_NAME) and not top.name.startswith(".repair-"):
            found.notes.append(f"{top.name} does not belong to the dataset")
    found.notes += [f"{found.name(path)} does not belong to the dataset" for path in found.unexpected]
    if not (found.root / "README.md").is_file():
        found.notes.append("README.md, the dataset's card, is missing")
        found.is_behind = True


def _json(data: bytes) -> Any:
    """Return the value of a JSON text; the text itself where it is not valid."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def _documents(stats: TableStats) -> dict[str, Any]:
    return {name: one.document() for name, one in stats.items()}


def _same_stats(expected: Mapping[str, Any], found: Any) -> bool:
    """Return whether statistics are the same, but for the order in which another machine may add numbers."""
    if not isinstance(found, dict) or found.keys() != expected.keys():
        return False
    for column, one in expected.items():
        try:
            pairs = {name: [np.asarray(of[name], np.float64) for of in (one, found[column])] for name in _STATS}
        except (KeyError, TypeError, ValueError):
            return False
        rounding = 1e-9 * np.nanmax(np.abs([pairs["min"][0], pairs["max"][0]]), initial=1.0)
        for name, (own, other) in pairs.items():
            tolerance = rounding if name in ("mean", "std") else 0
            if own.shape != other.shape or not np.allclose(own, other, rtol=0, atol=tolerance, equal_nan=True):
                return False
    return True


_STATS = ("count", "min", "max", "mean", "std")
