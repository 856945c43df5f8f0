"""Commit records: the footers of episodes files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode
from rollout_cli.dataset.layout import SegmentId
from rollout_cli.dataset.parquet import check_table, open_parquet
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.stats import Place, TableStats, stats_from_json, stats_to_json
from rollout_cli.episodes.chunk import sum_of
from rollout_cli.episodes.plain import Fields, plain_json

_RECORD = "rollout.segment"
_STATS = "rollout.stats"
_CHECKSUM = "rollout.checksum"


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The footer of an episodes file, described in docs/dataset-format.md, with the statistics of its steps."""

    start: int
    stop: int
    skipped: tuple[tuple[int, int], ...]  # Ranges of episode numbers: the first, and one past the last.
    episodes: int
    steps: int  # The data file may have more rows, from uncommitted episodes.
    last_length: int
    return_sum: float
    nominal: int
    is_long: bool
    anomalies: Mapping[str, Place]
    dropped_infos: Mapping[str, int]
    stats: TableStats

    def footer(self) -> dict[str, str]:
        """Return the record as Parquet file metadata."""
        record = {name: getattr(self, name) for name in _FIELDS}
        texts = (json.dumps(plain_json(record)), json.dumps(plain_json(stats_to_json(self.stats))))
        # Parquet has checksums for pages, but not for footers.
        return {_RECORD: texts[0], _STATS: texts[1], _CHECKSUM: record_checksum(*texts)}

    @classmethod
    def from_footer(cls, metadata: Mapping[bytes, bytes]) -> SegmentRecord:
        """Return the record in a file's metadata; raise `ValueError` if it is missing or damaged."""
        try:
            texts = [metadata[key.encode()].decode() for key in (_RECORD, _STATS)]
            if metadata[_CHECKSUM.encode()].decode() != record_checksum(*texts):
                raise ValueError("the commit record in its footer is damaged")
            record, stats = map(json.loads, texts)
            values = {name: record[name] for name in _FIELDS} | {
                "return_sum": float(record["return_sum"]),
                "skipped": tuple(map(tuple, record["skipped"])),
                "anomalies": {key: tuple(place) for key, place in record["anomalies"].items()},
            }
            return cls(stats=stats_from_json(stats), **values)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its footer has no commit record: {error!r}") from error


def counted(start: int, episodes: pa.Table, order: str) -> Fields:
    """Return the fields of a record that its first number and its rows of `meta/episodes` determine.

    `order` is the column whose range the record covers.
    """
    # pyarrow's own `to_numpy` imports pandas if installed, which takes longer than a short run.
    numbers, lengths, returns = (decode(episodes[name]) for name in (order, "length", "return"))
    stop = int(numbers[-1]) + 1
    return {
        "start": start,
        "stop": stop,
        "skipped": _missing_ranges(start, stop, numbers),
        "episodes": len(numbers),
        "steps": int(lengths.sum()),
        "last_length": int(lengths[-1]),
        "return_sum": sum_of(returns),
    }


def _missing_ranges(start: int, stop: int, numbers: Array) -> tuple[tuple[int, int], ...]:
    """Return the ranges between `start` and `stop - 1` that ascending `numbers`, int64 (N,), leave out."""
    firsts = np.append(start, numbers + 1)
    stops = np.append(numbers, stop)
    is_gap = firsts < stops
    return tuple(zip(firsts[is_gap].tolist(), stops[is_gap].tolist(), strict=True))


_FIELDS = tuple(field.name for field in fields(SegmentRecord) if field.name != "stats")


def record_checksum(record: str, stats: str) -> str:
    """Return the checksum of the two JSON strings of a commit record."""
    return f"{zlib.crc32((record + stats).encode()):08x}"


class Written(NamedTuple):
    """A segment on disk."""

    segment: SegmentId
    record: SegmentRecord
    data_bytes: int
    episodes_bytes: int


def totals_of(segments: Sequence[Written], *names: str) -> Fields:
    """Return the sums of the named fields over the records."""
    return {name: sum(getattr(segment.record, name) for segment in segments) for name in names}


def read_tables(
    root: Path, schema: DatasetSchema, segment: SegmentId, record: SegmentRecord
) -> tuple[pa.Table, pa.Table]:
    """Return both tables of a segment, without the rows of uncommitted episodes."""
    tables = []
    for path, kind in zip(segment.paths(root), (schema.data, schema.episodes), strict=True):
        with open_parquet(path) as file:
            check_table(path, file, [*map(str, kind)])
            tables.append(file.read())
    return tables[0].slice(0, record.steps), tables[1]
