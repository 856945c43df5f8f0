"""Whether a dataset holds what it states: its files are checked against each other, one segment at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import FILES_PER_CHUNK, SegmentId, SegmentRecord
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.files import DATASET_ENTRIES, LOCK_NAME, info_path, read_info, stats_path
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.reader import table_files
from rollout_cli.dataset.schema import EPISODE_FIELDS, DatasetSchema
from rollout_cli.dataset.stats import TableStats, merge_stats, stats_document, table_stats
from rollout_cli.dataset.tables import episode_returns
from rollout_cli.episodes.batch import derive_step_types
from rollout_cli.errors import DatasetFormatError

SHOWN = 20
"""So many faults, notes, and episodes of one fault are named; of the others, their number."""

MAX_LENGTH = 1 << 38
"""No episode has more steps; the sum of the lengths that one file states is still a number of 64 bits."""


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
        document = asdict(self) | {"episodes": list(self.episodes)}
        del document["segment"]
        return document

    def __str__(self) -> str:
        if not self.n_episodes:
            return f"{self.file}: {self.problem}"
        more = f" and {self.n_episodes - len(self.episodes):,} more" if self.n_episodes > len(self.episodes) else ""
        named = f"episode{'s' if self.n_episodes > 1 else ''} {', '.join(map(str, self.episodes))}{more}"
        return f"{self.file}: {self.problem} ({named})"


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

    Args:
        path: The dataset's folder.
        quick: Read info.json, the episodes files and the footers of data files, but no step.

    Raises:
        DatasetFormatError: If there is no dataset of this format.
        StorageError: If it cannot be read.
    """
    root = Path(path)
    info = read_info(root)
    try:
        check = DatasetCheck(root, info, quick=quick)
    except DatasetFormatError as error:
        fault = Fault("meta/info.json", error.message)
        return VerifyReport(root, "unknown", 0, 0, 0, quick, (fault,), ())
    check.run()
    counts = (check.count("episodes"), check.count("steps"), len(check.data) + len(check.episodes))
    return VerifyReport(root, check.status, *counts, quick, tuple(check.faults), tuple(check.notes))


@dataclass(frozen=True, slots=True)
class Checked:
    """A segment whose episodes file could be read; its steps may be at fault."""

    segment: SegmentId
    episodes: int
    steps: int
    bytes: int
    record: SegmentRecord | None
    stats: TableStats | None


@dataclass(slots=True)
class _Partition:
    """What must follow in a partition; None behind a file that could not be read."""

    next_id: int | None = 0
    next_number: int | None = None
    rows: int = 0

    def lose_track(self) -> None:
        self.next_id = self.next_number = None


class DatasetCheck:
    """One verification.

    Args:
        root: The dataset's folder.
        info: Its info.json.
        quick: Whether to leave the steps out.

    Attributes:
        faults: All contradictions.
        notes: Harmless observations.
        checked: The segments whose episodes files could be read.
        strays: Files in the dataset's folders that do not belong there.

    Raises:
        DatasetFormatError: If `info` does not describe a dataset.
        StorageError: If a folder cannot be read.
    """

    def __init__(self, root: Path, info: Mapping[str, Any], *, quick: bool = False) -> None:
        self._root, self._info, self._quick = root, info, quick
        self.is_old = info.get("format_version") == 1
        self.totals = ("episodes", "steps", "bytes", "shards" if self.is_old else "segments")
        partitions = "lanes" if self.is_old else "partitions"
        for name in (*self.totals, "root_seed", partitions):
            if type(info.get(name)) is not int or info[name] < (name == partitions):
                raise DatasetFormatError(f"its {name} is {info.get(name)!r}, expected a whole number")
        if info.get("status") not in ("collecting", "complete", "interrupted"):
            raise DatasetFormatError(f"its status is {info.get('status')!r}")
        self.status, self.n_partitions = str(info["status"]), int(info[partitions])
        self.schema = DatasetSchema.from_info(info)
        self.data, self.episodes = (self._segments(root / name) for name in ("data", "meta/episodes"))
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.checked: list[Checked] = []
        self.strays = tuple(self._find_strays())

    def run(self) -> None:
        """Check everything."""
        if self._info["features"] != self.schema.describe():
            self._fault(info_path(self._root), "its features are not those of its spaces")
        for partition in range(self.n_partitions):
            self._check_partition(partition)
        for segment, path in (*self.episodes.items(), *self.data.items()):
            if segment.partition >= self.n_partitions:
                self._fault(path, f"it is of another partition than the dataset's {self.n_partitions}", segment)
        self._check_totals()
        self._check_stats()
        self.notes += [f"{self.name(path)} does not belong to the dataset" for path in self.strays]
        if not (self._root / "README.md").is_file():
            self.notes.append("README.md, the dataset's card, is missing")

    def count(self, name: str) -> int:
        """Return the sum of `episodes`, `steps` or `bytes` over all readable segments."""
        return sum(getattr(one, name) for one in self.checked)

    def name(self, path: Path) -> str:
        """Return a file's name within the dataset."""
        return path.relative_to(self._root).as_posix()

    def _segments(self, folder: Path) -> dict[SegmentId, Path]:
        found = {}
        for (chunk, file), path in table_files(folder).items():
            place = (chunk, file) if self.n_partitions > 1 else (0, chunk * FILES_PER_CHUNK + file)
            found[SegmentId(self.n_partitions, *place)] = path
        return found

    def _find_strays(self) -> Iterator[Path]:
        ours = {*self.data.values(), *self.episodes.values(), info_path(self._root), stats_path(self._root)}
        for name in ("data", "meta/episodes"):
            if (self._root / name).exists() and not (self._root / name).is_dir():
                self._fault(self._root / name, "it is not a folder")
                yield self._root / name
        for name in ("data", "meta"):
            for folder, _, files in os.walk(self._root / name):
                yield from sorted({Path(folder) / file for file in files} - ours - {self._root / "meta/episodes"})
        for path in sorted(self._root.iterdir()):
            if path.name.endswith(".tmp"):
                yield path
            elif path.name not in (*DATASET_ENTRIES, LOCK_NAME) and not path.name.startswith(".repair-"):
                self.notes.append(f"{path.name} does not belong to the dataset")

    def _check_partition(self, partition: int) -> None:
        firsts = self._info.get("first_numbers") or [None] * self.n_partitions
        state, previous = _Partition(next_number=firsts[partition]), -1
        for segment in self.episodes:
            if segment.partition != partition:
                continue
            if segment.number != previous + 1:
                missing = SegmentId(self.n_partitions, partition, previous + 1)
                self._fault(missing.episodes_path(self._root), "it is missing, and there are later ones", missing)
                state.lose_track()
            previous = segment.number
            self._check_segment(segment, state)
        for segment, path in self.data.items():
            if segment.partition == partition and segment.number > previous:
                self.notes.append(f"{self.name(path)} has no episodes file, so none of its rows is committed")

    def _check_segment(self, segment: SegmentId, state: _Partition) -> None:
        path, data_path = self.episodes[segment], segment.data_path(self._root)
        file = self._read(path, self.schema.episodes, segment)
        if file is None or file.table is None or not file.n_rows:
            if file is not None:
                self._fault(path, "it has no episode", segment)
            state.lose_track()
            return
        facts = _Facts(path, segment, {one.name: file.table[one.name].to_numpy() for one in EPISODE_FIELDS})
        record = self._check_facts(facts, file.footer, state)
        stats, steps = None, 0
        if facts.has_lengths:
            steps = int(facts["length"].sum())
            stats = self._check_data(data_path, facts, file.table, first_row=state.rows)
            state.rows += steps
        if record is not None and stats is not None and not _same_stats(_documents(record.stats), _documents(stats)):
            self._fault(path, "the statistics in its footer are not those of its steps", segment)
        size = sum(one.stat().st_size for one in (path, data_path) if one.exists())
        self.checked.append(
            Checked(segment, file.n_rows, steps, size, record, stats if record is None else record.stats)
        )

    def _check_facts(self, facts: _Facts, footer: Mapping[bytes, bytes], state: _Partition) -> SegmentRecord | None:
        """Check an episodes file by itself, and against the one before it; return its commit record."""
        ids, numbers, lengths = facts["episode_id"], facts["episode_number"], facts["length"]
        chunk, file = facts.segment.file
        first = int(ids[0]) if state.next_id is None else state.next_id
        expected = first + np.arange(len(ids))
        if self.n_partitions > 1:
            expected = numbers - int(self._info.get("base") or 0)
        elsewhere = (facts["data_chunk_index"] != chunk) | (facts["data_file_index"] != file)
        for problem, wrong in (
            ("its id is not the next one", ids != expected),
            ("its number is not above the one before", np.diff(numbers, prepend=numbers[0] - 1) <= 0),
            (f"its length is not in 1 to {MAX_LENGTH:,}", (lengths < 1) | (lengths > MAX_LENGTH)),
            ("it names another data file", elsewhere),
            ("data_row_index is not that of its first step", facts["data_row_index"] != np.cumsum(lengths) - lengths),
            ("root_seed is not the dataset's", facts["root_seed"] != self._info["root_seed"]),
            ("it neither terminated nor was truncated", ~(facts["terminated"] | facts["truncated"])),
        ):
            self._fault_where(facts, facts.path, problem, wrong)
        state.next_id = int(ids[-1]) + 1
        try:
            record = None if self.is_old else SegmentRecord.from_footer(footer)
            covered = _covered(footer) if record is None else (record.start, record.stop, record.skipped)
        except ValueError as error:
            self._fault(facts.path, str(error), facts.segment)
            state.next_number = None
            return None
        self._check_covered(facts, covered, state)
        if record is not None:
            held = (len(lengths), int(lengths.sum()), int(lengths[-1]), repr(float(facts["return"].sum())))
            if held != (record.episodes, record.steps, record.last_length, repr(record.return_sum)):
                self._fault(facts.path, "the totals in its footer are not those of its episodes", facts.segment)
        return record

    def _check_covered(self, facts: _Facts, covered: tuple[int, int, Sequence[int]], state: _Partition) -> None:
        """Check that each number that a segment covers is that of an episode, or skipped."""
        start, stop, skipped = covered
        if state.next_number not in (None, start):
            problem = f"its footer covers episode numbers from {start} on, expected from {state.next_number} on"
            self._fault(facts.path, problem, facts.segment)
        known = sorted([*facts["episode_number"].tolist(), *skipped])
        if len(known) != stop - start or known != list(range(start, stop)):
            problem = f"its episodes, and those skipped, are not the numbers {start} to {stop - 1} of its footer"
            self._fault(facts.path, problem, facts.segment)
        state.next_number = stop

    def _check_data(self, path: Path, facts: _Facts, episodes: pa.Table, *, first_row: int) -> TableStats | None:
        """Check a data file; return the statistics of its steps, unless they were not read."""
        file = self._read(path, self.schema.data, facts.segment, ids=facts["episode_id"], rows=not self._quick)
        ends = np.cumsum(facts["length"])
        if file is None or file.n_rows < ends[-1]:
            if file is not None:
                problem = f"it has {file.n_rows:,} rows, and its episodes file states {ends[-1]:,}"
                self._fault_where(facts, path, problem, ends > file.n_rows)
            return None
        if file.n_rows > ends[-1]:
            self.notes.append(f"{self.name(path)} has {file.n_rows - ends[-1]:,} rows that no episodes file states")
        if file.table is None:
            return None
        steps = file.table.slice(0, int(ends[-1]))
        for problem, wrong in self._step_problems(steps, episodes, facts):
            self._fault_where(facts, path, problem, np.bincount(facts.owners[wrong], minlength=len(ends)) > 0)
        returns = episode_returns([steps["reward"].to_numpy()], facts["length"])
        differs = (facts["return"] != returns) & ~(np.isnan(facts["return"]) & np.isnan(returns))
        self._fault_where(facts, path, "its rewards do not sum to its return", differs)
        # The first version sampled big rows by their place in the partition, this one by that in their file.
        return table_stats(steps, first_row=first_row if self.is_old else 0)

    def _step_problems(self, steps: pa.Table, episodes: pa.Table, facts: _Facts) -> Iterator[tuple[str, Array]]:
        """Give each problem of steps, with the rows that have it, bool (T,)."""
        lengths, ends = facts["length"], np.cumsum(facts["length"])
        flags = {name: np.zeros(len(facts.owners), bool) for name in ("terminated", "truncated")}
        for name, values in flags.items():
            values[ends - 1] = facts[name]
        expected = flags | {
            "episode_id": facts["episode_id"][facts.owners],
            "step": np.arange(len(facts.owners)) - np.repeat(ends - lengths, lengths),
            "step_type": derive_step_types(lengths, facts["terminated"], facts["truncated"]),
        }
        for name, values in expected.items():
            yield f"{name} is not that of its episode's steps", steps[name].to_numpy() != values
        spaces = self.schema.spaces
        columns = zip(spaces.observation, spaces.next_observation, spaces.last_observation, strict=False)
        for seen, following, last in columns:
            after = np.concatenate([seen.decode(steps)[1:], last.decode(episodes)[-1:]])
            after[ends - 1] = last.decode(episodes)
            yield "next_observation is not the observation that followed", ~_same_rows(following.decode(steps), after)

    def _read(
        self, path: Path, expected: pa.Schema, segment: SegmentId, *, ids: Array | None = None, rows: bool = True
    ) -> _File | None:
        """Return a file; None, and a fault, where it cannot be read or has other columns."""
        try:
            with reading(path), open_parquet(path) as file:
                schema, footer = file.schema_arrow, file.metadata.metadata or {}
                found = _modern(schema) if self.is_old else schema
                _check_columns(path, expected, found)
                table = file.read() if rows else None
                if table is not None:
                    table.validate(full=True)
        except DatasetFormatError as error:
            self._fault(path, f"it {error.message.removeprefix(f'{path} ')}", segment, () if ids is None else ids)
            return None
        # Arrow keeps a copy of the footer's keys in its own schema, and readers take either.
        for key, value in expected.metadata.items():
            stated = [_json(keys.get(key) or b"") for keys in (footer, schema.metadata or {})]
            if stated != [_json(value)] * 2 and not (self.is_old and key in _CHANGED_KEYS):
                self._fault(path, f"{key.decode()} in its footer is not that of the dataset", segment)
        return _File(footer, file.metadata.num_rows, table)

    def _check_totals(self) -> None:
        """Check the totals. Unless a dataset is complete, info.json may be behind the files, never ahead of them."""
        held = [*(self.count(name) for name in self.totals[:3]), len(self.checked)]
        for name, found in zip(self.totals, held, strict=True):
            stated = self._info[name]
            text = f"it states {stated:,} {name}, and the files hold {found:,}"
            if stated != found and (self.status == "complete" or (stated > found and name != "bytes")):
                self._fault(info_path(self._root), text)
            elif stated != found:
                self.notes.append(f"meta/info.json: {text}")

    def _check_stats(self) -> None:
        path, parts = stats_path(self._root), [one.stats for one in self.checked if one.stats is not None]
        problem = None
        if not path.is_file():
            problem = "it is not a regular file" if path.exists() else "it is missing"
        elif len(parts) == len(self.checked):
            with reading(path):
                found = _json(path.read_bytes())
            if not _same_stats(stats_document(merge_stats(parts), self.schema), found):
                problem = "its statistics are not those of the steps"
        if problem is not None and self.status == "complete":
            self._fault(path, problem)
        elif problem is not None and self.checked:
            self.notes.append(f"meta/stats.json: {problem}")

    def _fault(
        self, path: Path, problem: str, segment: SegmentId | None = None, ids: Sequence[int] | Array = ()
    ) -> None:
        text = " ".join(problem.replace(f"{self._root}/", "").split())[:500]
        self.faults.append(Fault(self.name(path), text, tuple(int(one) for one in ids[:SHOWN]), len(ids), segment))

    def _fault_where(self, facts: _Facts, path: Path, problem: str, wrong: Array) -> None:
        """Note a fault of the episodes for which `wrong`, bool (N,), is true; none where there are none."""
        if wrong.any():
            self._fault(path, problem, facts.segment, facts["episode_id"][wrong])


@dataclass(frozen=True, slots=True)
class _File:
    footer: Mapping[bytes, bytes]
    n_rows: int
    table: pa.Table | None


class _Facts:
    """The columns `EPISODE_FIELDS` of one episodes file."""

    def __init__(self, path: Path, segment: SegmentId, columns: Mapping[str, Array]) -> None:
        self.path, self.segment, self._columns = path, segment, columns
        lengths = columns["length"]
        self.has_lengths = bool(lengths.min() >= 1 and lengths.max() <= MAX_LENGTH)

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    @cached_property
    def owners(self) -> Array:
        """Return the place of each step's episode, int64 (T,)."""
        return np.repeat(np.arange(len(self["length"])), self["length"])


_CHANGED_KEYS = (b"rollout.format_version", b"huggingface")


def _check_columns(path: Path, expected: pa.Schema, found: pa.Schema) -> None:
    if not found.equals(expected, check_metadata=False):
        pairs = zip_longest(map(_shown, expected), map(_shown, found), fillvalue="no column")
        one, other = next(pair for pair in pairs if pair[0] != pair[1])
        raise DatasetFormatError(f"{path} has other columns than the dataset: {other}, expected {one}")


def _shown(field: pa.Field) -> str:
    return f"{field.name} ({field.type}{'' if field.nullable else ' not null'})"


def _modern(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a file of format 1 as this version has them: its infos had fixed-size lists."""
    return pa.schema([field.with_type(_variable(field.type)) if field.nullable else field for field in schema])


def _variable(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_fixed_size_list(kind):
        return kind
    return pa.list_(pa.field("element", _variable(kind.value_type), nullable=False))


def _covered(footer: Mapping[bytes, bytes]) -> tuple[int, int, Sequence[int]]:
    """Return start, stop and skipped numbers in a footer of format 1."""
    try:
        covered = json.loads(footer[b"rollout.settles"])
        return int(covered["start"]), int(covered["stop"]), [int(number) for number in covered["skipped"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"its footer has no commit record: {error!r}") from error


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def _same_rows(first: Array, second: Array) -> Array:
    """Return which rows of two arrays of one shape have the same bits (equal texts), bool (N,)."""
    if first.dtype == object:
        return np.asarray(first == second)
    size = first.dtype.itemsize * int(np.prod(first.shape[1:]))
    bits = [np.ascontiguousarray(array).view(np.uint8).reshape(len(array), size) for array in (first, second)]
    return np.asarray((bits[0] == bits[1]).all(axis=1))


def _documents(stats: TableStats) -> dict[str, Any]:
    return {name: one.document() for name, one in stats.items()}


def _same_stats(expected: Mapping[str, Any], found: Any) -> bool:
    if not isinstance(found, dict) or found.keys() != expected.keys():
        return False
    return all(_same_column(expected[name], found[name]) for name in expected)


def _same_column(expected: Mapping[str, Any], found: Any) -> bool:
    """Return whether statistics are the same, but for the order in which another machine may add numbers."""
    if expected == found:
        return True
    try:
        pairs = {name: [np.asarray(one[name], np.float64) for one in (expected, found)] for name in _STATS}
    except (KeyError, TypeError, ValueError):
        return False
    scale = max(1.0, np.nanmax(np.abs([pairs["min"][0], pairs["max"][0]]), initial=0.0))
    tolerances = {"mean": 1e-9 * scale, "std": 1e-9 * scale}
    return all(
        one.shape == other.shape and np.allclose(one, other, rtol=0, atol=tolerances.get(name, 0), equal_nan=True)
        for name, (one, other) in pairs.items()
    )


_STATS = ("count", "min", "max", "mean", "std")
