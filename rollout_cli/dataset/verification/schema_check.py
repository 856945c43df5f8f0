"""Opening a Parquet file of a dataset, and holding its columns and footer against what the dataset says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.limits import open_parquet, parse_json
from rollout_cli.dataset.shard import Place
from rollout_cli.dataset.tables import reading
from rollout_cli.dataset.verification.claims import Claims, schema_of_files
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.errors import DatasetFormatError

_OWN_KEYS = {b"rollout.settles", b"rollout.open", b"ARROW:schema"}
"""Keys that differ from file to file."""


def open_file(root: Path, path: Path, place: Place, findings: Findings) -> pq.ParquetFile | None:
    """Open a file; None, and a fault, where it cannot be."""
    try:
        with reading(path):
            return open_parquet(root, path)
    except DatasetFormatError as error:
        findings.fault(path, _shortened(error.message), place=place)
        return None


class DecidedSchema:
    """The columns that every file must have: those of info.json, or else of the first file that can be read.

    A run that was killed before its first commit reached info.json has files, and no columns there yet.

    Args:
        claims: What the dataset says.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._decided = claims.schema
        self._first: dict[str, pa.Schema] = {}

    def check(self, file: pq.ParquetFile, path: Path, place: Place, table: str, findings: Findings) -> bool:
        """Check columns, types and footer; return whether the columns are right, so that the rows can be looked at.

        Args:
            file: The opened file.
            path: Its path.
            place: Its place.
            table: `data` or `episodes`.
            findings: Where faults go.
        """
        with reading(path):
            actual = file.schema_arrow
        try:
            expected = self._expected(table, actual)
        except ValueError as error:
            findings.fault(path, f"its columns are not those of a dataset: {error}", place=place)
            return False
        if not actual.equals(expected, check_metadata=False):
            difference = _difference(expected, actual)
            findings.fault(path, f"its columns are not those of the dataset: {difference}", place=place)
            return False
        # Arrow keeps a copy of the footer's keys within its own schema, and readers take either.
        for footer in (file.metadata.metadata or {}, actual.metadata or {}):
            for problem in _footer_problems(footer, expected.metadata):
                findings.fault(path, problem, place=place)
        return True

    def _expected(self, table: str, actual: pa.Schema) -> pa.Schema:
        if self._decided is not None:
            return self._decided.data if table == "data" else self._decided.episodes
        first = self._first.setdefault(table, actual)
        claims = self._claims
        both = {"data": first, "episodes": first} | self._first
        schema = schema_of_files(
            claims.spaces, claims.info.get("env") or {}, both["data"], both["episodes"], closed=False
        )
        return schema.data if table == "data" else schema.episodes


def _footer_problems(footer: Mapping[bytes, bytes], expected: Mapping[bytes, bytes]) -> Iterator[str]:
    for key, value in expected.items():
        found = footer.get(key)
        if found is None:
            yield f"its footer has no {key.decode()}"
        elif found != value and _json(found) != _json(value):
            yield f"its footer's {key.decode()} is not that of the dataset"
    unknown = footer.keys() - expected.keys() - _OWN_KEYS
    if unknown:
        yield f"its footer has the unknown key {min(unknown)!r}"


def check_row_groups(file: pq.ParquetFile, path: Path, place: Place, most: int | None, findings: Findings) -> None:
    """Check that row groups have rows, and no more than the dataset's limit."""
    metadata = file.metadata
    sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
    if sum(sizes) != metadata.num_rows:
        findings.fault(
            path, f"its footer says {metadata.num_rows:,} rows, and its row groups {sum(sizes):,}", place=place
        )
    wrong = [at for at, rows in enumerate(sizes) if rows < 1 or (most is not None and rows > most)]
    if wrong:
        limit = "at least one" if most is None else f"1 to {most:,}"
        findings.fault(path, f"its row group {wrong[0]} has {sizes[wrong[0]]:,} rows, expected {limit}", place=place)


def _json(data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError:
        return data


def _difference(expected: pa.Schema, actual: pa.Schema) -> str:
    for name in (*expected.names, *actual.names):
        wanted, got = _kinds(expected, name), _kinds(actual, name)
        if wanted != got:
            return f"{name} is {got or 'no such column'}, expected {wanted or 'no such column'}"
    return f"their order is {', '.join(actual.names)}"[:300]


def _kinds(schema: pa.Schema, name: str) -> str:
    fields = [schema.field(at) for at in schema.get_all_field_indices(name)]
    return ", ".join(f"{field.type}{' not null' * (not field.nullable)}" for field in fields)


def _shortened(text: str) -> str:
    return " ".join(text.split())[:500]
