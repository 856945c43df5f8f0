"""Making the valid part of a dataset the dataset: the rest is moved aside, and nothing is deleted.

Files are moved from the last one on, a commit record before its rows, and info.json is written at the end. So a repair
that was killed leaves a dataset whose info.json states more than its files hold, which the next repair completes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import FILES_PER_CHUNK
from rollout_cli.dataset.files import FORMAT, FORMAT_VERSION, FileStore, FolderLock, info_path, read_info, stats_path
from rollout_cli.dataset.metadata import render_card
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.reader import table_files
from rollout_cli.dataset.schema import INFO_PREFIXES, DatasetSchema, InfoField, InfoSchema, SpaceSchema, env_spec_of
from rollout_cli.dataset.stats import Place, anomalies, merge_stats, stats_document
from rollout_cli.dataset.verify import Checked, DatasetCheck
from rollout_cli.episodes.infos import STRING
from rollout_cli.errors import DatasetFormatError, UnsupportedSpaceError


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The outcome of a repair, or of one that was only tried.

    Attributes:
        path: The dataset's folder.
        changed: Whether anything was, or would be, changed.
        status: The status of the dataset afterwards.
        episodes: Episodes that stay.
        steps: Their steps.
        dropped_episodes: Readable episodes that do not stay.
        aside: The folder to which files were moved; None where none was, or would be.
        moved: The files that were moved, by name.
        rebuilt_info: Whether info.json was made anew from the files.
    """

    path: Path
    changed: bool
    status: str
    episodes: int
    steps: int
    dropped_episodes: int
    aside: Path | None
    moved: tuple[str, ...]
    rebuilt_info: bool

    def document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        aside = None if self.aside is None else str(self.aside)
        return asdict(self) | {"path": str(self.path), "aside": aside, "moved": list(self.moved)}


def repair_dataset(path: Path | str, *, dry_run: bool = False, files: FileStore | None = None) -> RepairReport:
    """Keep the segments of each partition before the first one at fault, and move the others aside.

    Unless all episodes that info.json stated are still there, the status is `interrupted`.

    Args:
        path: The dataset's folder.
        dry_run: Change nothing, and report what would be done.
        files: The disk.

    Raises:
        DatasetFormatError: If there is no dataset of this format, or too little of it to know its columns.
        DatasetLockedError: If it is being written.
        StorageError: If it cannot be read or written.
    """
    root, files = Path(path), files or FileStore()
    if not info_path(root).exists() and not (root / "meta" / "episodes").is_dir():
        read_info(root)  # Raises: there is no dataset.
    if dry_run:
        return _Repair(root).report
    lock = FolderLock(files, root)
    try:
        repair = _Repair(root)
        repair.run(files)
        return repair.report
    finally:
        lock.release()


class _Repair:
    """One repair: decided as it is made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._info, rebuilt, self._check, self._kept = _choose(root)
        check = self._check
        kept = {one.segment for one in self._kept}
        others = sorted({*check.data, *check.episodes} - kept, key=lambda one: one.file, reverse=True)
        # Commit records go before their rows, the last ones first: at each moment a dataset is left.
        self._aside = [part[segment] for segment in others for part in (check.episodes, check.data) if segment in part]
        self._aside += check.strays
        counts = {name: sum(getattr(one, name) for one in self._kept) for name in ("episodes", "steps", "bytes")}
        self._totals = dict(zip(check.totals, (*counts.values(), len(self._kept)), strict=True))
        is_whole = not rebuilt and all(self._info[name] == counts[name] for name in ("episodes", "steps"))
        status = "complete" if is_whole and check.status == "complete" else "interrupted"
        is_behind = check.status != status or any(note.startswith(("meta/", "README")) for note in check.notes)
        self.report = RepairReport(
            path=root,
            changed=bool(self._aside or check.faults or rebuilt or is_behind),
            status=status,
            episodes=counts["episodes"],
            steps=counts["steps"],
            dropped_episodes=check.count("episodes") - counts["episodes"],
            aside=_new_folder(root) if self._aside or rebuilt else None,
            moved=tuple(check.name(path) for path in self._aside),
            rebuilt_info=rebuilt,
        )

    def run(self, files: FileStore) -> None:
        """Do it."""
        if not self.report.changed:
            return
        if self.report.aside is not None:
            self._move_aside(files, self.report.aside)
        info = self._new_info()
        stats = merge_stats([one.stats for one in self._kept if one.stats is not None])
        files.write_json(stats_path(self._root), stats_document(stats, self._check.schema))
        files.replace(self._root / "README.md", render_card(info).encode(errors="backslashreplace"))
        files.write_json(info_path(self._root), info)

    def _move_aside(self, files: FileStore, aside: Path) -> None:
        for path in (info_path(self._root), stats_path(self._root)):
            if path.exists():
                target = aside / path.relative_to(self._root)
                files.make_folder(target.parent)
                if path.is_file():
                    files.replace(target, path.read_bytes())
                else:
                    files.move(path, target)
        for path in self._aside:
            target = aside / path.relative_to(self._root)
            files.make_folder(target.parent)
            files.move(path, target)

    def _new_info(self) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        times = self._info["times"]
        info = dict(self._info) | self._totals | {"status": self.report.status}
        info["times"] = times | {"updated": now, "repaired": [*times.get("repaired", []), now]}
        records = [one.record for one in self._kept if one.record is not None]
        if records:
            dropped: Counter[str] = Counter()
            places: dict[str, Place] = {}
            for record in records:
                dropped.update(record.dropped_infos)
                places = dict(record.anomalies) | places
            stats = merge_stats([record.stats for record in records])
            found = anomalies(stats, places, self._check.schema, self.report.steps)
            info |= {"dropped_infos": dict(dropped), "anomalies": [one.to_dict() for one in found]}
        return info


def _new_folder(root: Path) -> Path:
    """Return a name for what is moved aside that is still free."""
    name, number = f".repair-{datetime.now(UTC):%Y%m%dT%H%M%SZ}", 0
    while (path := root / (f"{name}-{number}" if number else name)).exists():
        number += 1
    return path


def _choose(root: Path) -> tuple[Mapping[str, Any], bool, DatasetCheck, list[Checked]]:
    """Return info.json, whether it was made from the files, its check, and the segments that stay.

    It is made from the files where it is lost, or where by its own statement nothing of the files stays.
    """
    failure: DatasetFormatError | None = None
    stated = None
    try:
        stated = _checked(root, read_info(root), rebuilt=False)
        if stated[3] or not stated[2].episodes:
            return stated
    except DatasetFormatError as error:
        failure = error
    try:
        rebuilt = _checked(root, rebuilt_info(root), rebuilt=True)
    except DatasetFormatError as error:
        if failure is not None:
            raise DatasetFormatError(f"{failure.message}; {error.message}", hint=error.hint) from error
        assert stated is not None
        return stated
    return rebuilt if stated is None or rebuilt[3] else stated


def _checked(
    root: Path, info: Mapping[str, Any], *, rebuilt: bool
) -> tuple[Mapping[str, Any], bool, DatasetCheck, list[Checked]]:
    check = DatasetCheck(root, info)
    check.run()
    wrong = {fault.segment for fault in check.faults}
    kept: list[Checked] = []
    following = dict.fromkeys(range(check.n_partitions), 0)
    for one in check.checked:
        if one.segment.number == following.get(one.segment.partition) and one.segment not in wrong:
            following[one.segment.partition] += 1
            kept.append(one)
    return info, rebuilt, check, kept


def rebuilt_info(root: Path) -> dict[str, Any]:
    """Return an info.json made from the files: spaces, columns, environment and root seed, but no totals.

    Raises:
        DatasetFormatError: If no segment can be read.
    """
    data, episodes = (table_files(root / name) for name in ("data", "meta/episodes"))
    last = max((chunk for chunk, _ in (*data, *episodes)), default=0)
    partitions = 1 if last == 0 or (0, FILES_PER_CHUNK - 1) in episodes else last + 1
    for file in episodes:
        if file in data:
            try:
                return _info_of(data[file], episodes[file], partitions)
            except (DatasetFormatError, UnsupportedSpaceError, ValueError, KeyError, TypeError, RecursionError):
                continue
    raise DatasetFormatError(
        f"and no segment of format {FORMAT_VERSION} can be read, from which info.json could be made",
        hint="restore meta/info.json from a copy, or collect the dataset again",
    )


def _info_of(data: Path, episodes: Path, partitions: int) -> dict[str, Any]:
    tables, keys = [], {}
    for path in (data, episodes):
        with reading(path), open_parquet(path) as file:
            keys = file.metadata.metadata
            tables.append(file.read())
    version, spaces, limit, env = (json.loads(keys[f"rollout.{name}".encode()]) for name in _FOOTER)
    if version != FORMAT_VERSION:
        raise DatasetFormatError(f"{episodes} has format version {version}")
    spec = env_spec_of({"spaces": spaces, "max_episode_length": limit})
    following = any(name.split(".")[0] == "next_observation" for name in tables[0].column_names)
    env_infos, agent_infos, episode_infos = (
        _info_fields(prefix, table) for prefix, table in zip(INFO_PREFIXES, (tables[0], *tables), strict=True)
    )
    infos = InfoSchema(env_infos, agent_infos, episode_infos)
    schema = DatasetSchema.of(SpaceSchema.of(spec, next_observation=following), infos, env)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {
        "format": FORMAT,
        "format_version": version,
        "status": "interrupted",
        **dict.fromkeys(("episodes", "steps", "bytes", "segments"), 0),
        "root_seed": tables[1]["root_seed"][0].as_py(),
        "partitions": partitions,
        "first_numbers": None,
        "next_observation": following,
        "max_episode_length": limit,
        "spaces": spaces,
        "features": json.loads(json.dumps(schema.describe())),
        "info_columns": "decided",
        "dropped_infos": {},
        "anomalies": [],
        "env": env,
        "times": {"started": None, "updated": now, "ended": now},
    }


_FOOTER = ("format_version", "spaces", "max_episode_length", "env")


def _info_fields(prefix: str, table: pa.Table) -> tuple[InfoField, ...]:
    """Return the info columns of a file; a dotted name is taken for a path of as many keys."""
    names = (name for name in table.column_names if name.startswith(f"{prefix}."))
    return tuple(InfoField(tuple(name.split(".")[1:]), _kind(table[name])) for name in names)


def _kind(column: pa.ChunkedArray) -> str:
    """Return the kind of an info column. Its type does not state the sizes of its lists, but its first value does."""
    kind, depth = column.type, 0
    while pa.types.is_nested(kind):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_string(kind):
        return STRING
    first = next((value.as_py() for value in column if value.is_valid), None)
    shape: Sequence[int] = [1] * depth if first is None else np.shape(first)
    name = np.dtype(kind.to_pandas_dtype()).name
    return f"{name}[{','.join(map(str, shape))}]" if depth else name
