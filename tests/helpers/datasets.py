"""Datasets as other programs see them: files, tables, info.json."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VARYING = ("worker", "wall_time_s")
"""Columns of the episodes that two runs of one seed need not share."""


def info_of(path: Path) -> dict[str, Any]:
    """Return info.json; empty where there is none yet."""
    try:
        return dict(json.loads((path / "meta" / "info.json").read_text()))
    except FileNotFoundError:
        return {}


def source_of(path: Path) -> dict[str, Any]:
    """Return what info.json records of the run that collected the dataset."""
    (source,) = info_of(path)["sources"]
    return dict(source)


def set_source(path: Path, **values: Any) -> None:
    """Change what info.json records of the run that collected the dataset."""
    document = info_of(path)
    document["sources"][0] |= values
    (path / "meta" / "info.json").write_text(json.dumps(document))


def stats_of(path: Path) -> Any:
    """Return stats.json."""
    return json.loads((path / "meta" / "stats.json").read_text())


def has_commit(path: Path) -> bool:
    """Return whether anything is committed; a run may be replacing it just now."""
    try:
        return any((path / "meta" / "episodes").rglob("file-*.parquet"))
    except FileNotFoundError:
        return False


def data_hashes(path: Path) -> dict[str, str]:
    """Return the hash of every file of `data/`, by its path there. There must be one."""
    folder = path / "data"
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    assert files, f"{folder} is empty"
    return {str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest() for file in files}


def assert_same_data(expected: Path, actual: Path) -> None:
    """Check that `data/` of two datasets has the same bytes, and the episodes the same facts."""
    assert data_hashes(expected) == data_hashes(actual)
    assert episode_facts(expected).equals(episode_facts(actual))


def episodes_of(path: Path) -> pa.Table:
    """Return the table of episodes, in the order of the files."""
    return _read(path / "meta" / "episodes")


def episode_facts(path: Path) -> pa.Table:
    """Return the columns of the episodes that depend on the seed alone."""
    table = episodes_of(path)
    return table.select([name for name in table.column_names if name not in VARYING])


def numbers_of(path: Path) -> list[int]:
    """Return the episode numbers; none where nothing is committed."""
    return (
        [int(number) for number in episodes_of(path)["episode_number"].to_pylist()]
        if has_commit(path)
        else []
    )


def steps_of(path: Path) -> pa.Table:
    """Return all steps."""
    return _read(path / "data")


def _read(folder: Path) -> pa.Table:
    # As bytes: pyarrow takes no name that is not UTF-8.
    files = sorted(folder.rglob("file-*.parquet"))
    return pa.concat_tables([pq.read_table(pa.BufferReader(file.read_bytes())) for file in files])
