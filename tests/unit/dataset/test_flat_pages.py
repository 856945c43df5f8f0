"""Columns of numbers and flags: pages of our own hold what Arrow's would, for every reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.dataset.columns import PAGE_BYTES, encode_tensor
from rollout_cli.dataset.flat_pages import has_flat_pages
from rollout_cli.dataset.pages import DATA_PAGE, DICTIONARY_PAGE
from tests.unit.dataset.page_files import (
    Array,
    assert_reads,
    by_arrow,
    headers_of,
    stated,
    table_of,
    values_of,
    written,
)

INTEGERS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)]
COUNTS = [0, 1, 2, 7, 8, 9, 31, 32, 33, 96, 97, 127, 128, 129, 130, 255, 256, 257, 504, 505, 1025, 5000]
SPREADS = [0, 1, 2, 3, 4, 15, 16, 17, 255, 256, 257, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1]


def integers_of(dtype: str, count: int, spread: int, seed: int) -> Array:
    """Return integers between two that are so far apart, both among them, anywhere in the type's range."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    spread = min(spread, int(info.max) - int(info.min))
    low = int(info.min) + int(rng.integers(0, 2**63)) % (int(info.max) - int(info.min) - spread + 1)
    words = rng.integers(0, 2**64, count, np.uint64, endpoint=False).tolist()
    numbers = [low + word % (spread + 1) for word in words]
    numbers[:2] = [low, low + spread][:count]
    return np.array(numbers, dtype)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(INTEGERS),
    st.sampled_from(SPREADS),
    st.lists(st.sampled_from(COUNTS), min_size=1, max_size=3),
    st.sampled_from(["x", "step", "episode_id"]),
)
def test_arrow_reads_each_integer(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, spread: int, counts: list[int], name: str
) -> None:
    """Of every type, however far apart, by numbers of a dictionary and by differences that wrap around."""
    name = name if dtype == "i8" else "x" if name == "episode_id" else name
    tables = [table_of(**{name: integers_of(dtype, count, spread, seed)}) for seed, count in enumerate(counts)]
    assert_reads(written(tmp_path_factory.mktemp("flat") / "a.parquet", *tables), *tables)


@pytest.mark.parametrize("width", [0, 1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("count", [2, 33, 34, 129, 130, 1000])
def test_differences_of_every_width(tmp_path: Path, width: int, dtype: str, count: int) -> None:
    """Which the greatest of them asks for; the last block has as many parts as it needs. Wide ones are not taken."""
    bound = min(width, 8 * np.dtype(dtype).itemsize)
    differences = [word % (1 << bound) for word in np.random.default_rng(width).integers(0, 2**63, count).tolist()]
    differences[0] = (1 << bound) - 1
    wrapped = np.cumsum(np.array([(number + 1) % 2**64 for number in differences], np.uint64)) - np.uint64(3)
    tables = [table_of(step=wrapped.astype(dtype)), table_of(step=wrapped[::-1].astype(dtype))]
    path = written(tmp_path / "a.parquet", *tables)
    assert_reads(path, *tables)
    wide = bound > 16 and count > 2
    assert ("PLAIN" if wide else "DELTA_BINARY_PACKED") in pq.ParquetFile(path).metadata.row_group(0).column(
        1
    ).encodings
    expected = [int(number) for table in tables for number in table["step"].to_pylist()]
    assert expected == [row for (row,) in duckdb.execute(f"select step from '{path}'").fetchall()]
    assert expected == pl.read_parquet(path)["step"].to_list()


@settings(deadline=None)
@given(st.sampled_from(["f4", "f8"]), st.lists(st.sampled_from(COUNTS), min_size=1, max_size=3), st.booleans())
def test_arrow_reads_each_bit_of_floats(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, counts: list[int], same: bool
) -> None:
    """Of every pattern, and where all are one number: nan, which is not itself, and zeros of either sign."""
    columns = [values_of((), count, dtype, seed) for seed, count in enumerate(counts)]
    if same:
        columns = [np.full(len(column), (np.nan, -0.0, 1.5)[at], dtype) for at, column in enumerate(columns)]
    tables = [table_of(x=column, y=np.where(np.arange(len(column)) % 2, 0.0, -0.0)) for column in columns]
    assert_reads(written(tmp_path_factory.mktemp("flat") / "a.parquet", *tables), *tables)


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=70), min_size=1, max_size=3))
def test_arrow_reads_each_flag(tmp_path_factory: pytest.TempPathFactory, groups: list[list[bool]]) -> None:
    """In row groups of any size, also where a table begins in the middle of a byte."""
    tables = [table_of(x=np.array([True, *group], bool)).slice(1) for group in groups]
    path = written(tmp_path_factory.mktemp("flat") / "a.parquet", *tables)
    assert groups == [pq.ParquetFile(path).read_row_group(at)["x"].to_pylist() for at in range(len(groups))]


@pytest.mark.parametrize("spread", [0, 1, 3, 15, 200, 300, 70_000, 2**40])
def test_other_readers_read_each_number(tmp_path: Path, spread: int) -> None:
    """DuckDB and polars have readers of their own."""
    tables = [
        table_of(
            i=integers_of("i8", count, spread, count),
            step=integers_of("i4", count, min(spread, 2**31), count),
            u=integers_of("u1", count, min(spread, 255), count),
            f=values_of((), count, "f8") if spread else np.full(count, -0.5),
            b=np.arange(count) % 3 == 0,
        )
        for count in (1000, 1, 7001)
    ]
    path = written(tmp_path / "a.parquet", *tables)
    for name in tables[0].column_names:
        expected = repr([value for table in tables for value in table[name].to_pylist()])
        assert expected == repr([row for (row,) in duckdb.execute(f"select {name} from '{path}'").fetchall()]), name
        assert expected == repr(pl.read_parquet(path)[name].to_list()), name


def test_encodings_follow_the_numbers(tmp_path: Path) -> None:
    """Few are of a dictionary, rising ones and far ones differences; what is all one number is not compressed."""
    steps = np.arange(1000, dtype=np.int32) % 22
    columns: dict[str, Array] = {
        "episode_id": np.arange(1000) // 22,
        "step": steps,
        "few": steps.astype(np.int64),
        "far": np.arange(1000) * 1000,
        "farther": np.random.default_rng(0).integers(0, 2**40, 1000),
        "one": np.full(1000, 7),
        "number": np.linspace(0, 1, 1000),
        "number_one": np.ones(1000),
        "flag": steps == 0,
        "kind": (steps == 0).astype(np.uint8),
    }
    group = pq.ParquetFile(written(tmp_path / "a.parquet", table_of(**columns))).metadata.row_group(0)
    found = {}
    for column in map(group.column, range(1, group.num_columns)):
        encodings = set(column.encodings) - {"RLE"}
        found[column.path_in_schema] = (column.physical_type, encodings, column.compression)
    dictionary = {"PLAIN", "RLE_DICTIONARY"}
    assert {
        "episode_id": ("INT64", {"DELTA_BINARY_PACKED"}, "ZSTD"),
        "step": ("INT32", {"DELTA_BINARY_PACKED"}, "ZSTD"),
        "few": ("INT64", dictionary, "ZSTD"),
        "far": ("INT64", {"DELTA_BINARY_PACKED"}, "ZSTD"),
        "farther": ("INT64", {"PLAIN"}, "ZSTD"),
        "one": ("INT64", dictionary, "UNCOMPRESSED"),
        "number": ("DOUBLE", {"BYTE_STREAM_SPLIT"}, "ZSTD"),
        "number_one": ("DOUBLE", dictionary, "UNCOMPRESSED"),
        "flag": ("BOOLEAN", {"PLAIN"}, "ZSTD"),
        "kind": ("INT32", dictionary, "ZSTD"),
    } == found


def test_pages_are_of_a_megabyte(tmp_path: Path) -> None:
    """A dictionary comes first; flags are counted in bits. However many pieces the columns come in."""
    rows = 300_000
    table = table_of(
        step=np.arange(rows) % 7, x=np.arange(rows) % 5, f=values_of((), rows, "f8"), b=np.ones(rows, bool)
    )
    path = written(tmp_path / "whole.parquet", table)
    group = pq.ParquetFile(path).metadata.row_group(0)
    by_name = {group.column(at).path_in_schema: headers_of(path, group.column(at)) for at in range(group.num_columns)}
    per_page = PAGE_BYTES // 8
    parts = [per_page, per_page, rows - 2 * per_page]
    data = {
        name: [header.values for header in headers if header.kind == DATA_PAGE] for name, headers in by_name.items()
    }
    assert {"id": parts, "step": parts, "x": parts, "f": parts, "b": [rows]} == data
    assert [DICTIONARY_PAGE, *[DATA_PAGE] * 3] == [header.kind for header in by_name["x"]]
    assert all(header.has_checksum for headers in by_name.values() for header in headers)
    pieces = pa.concat_tables([table.slice(start, rows // 3) for start in range(0, rows, rows // 3)])
    assert path.read_bytes() == written(tmp_path / "pieces.parquet", pieces).read_bytes()


def test_a_footer_says_what_arrows_does(tmp_path: Path) -> None:
    """Extremes of ids among it, by which readers choose row groups."""
    columns = {
        "episode_id": np.arange(300) // 7 - 5,
        "x": np.arange(300) % 3,
        "f": np.ones(300),
        "b": np.ones(300, bool),
    }
    tables = [table_of(**columns), table_of(**{name: column[:77] for name, column in columns.items()})]
    own = pq.ParquetFile(written(tmp_path / "own.parquet", *tables)).metadata
    arrows = pq.ParquetFile(by_arrow(tmp_path / "arrow.parquet", *tables)).metadata
    assert stated(arrows) == stated(own)
    assert (-5, 5) == (own.row_group(1).column(1).statistics.min, own.row_group(1).column(1).statistics.max)
    # Both the fields of today and those for old readers.
    assert (True, True) == (own.row_group(0).column(1).is_stats_set, own.row_group(0).column(1).statistics.has_min_max)


def test_a_flipped_bit_of_any_page_is_found(tmp_path: Path) -> None:
    """Of a dictionary too, and where nothing is compressed."""
    tables = [table_of(step=np.arange(500) % 9, x=np.arange(500) % 5, one=np.ones(500), b=np.ones(500, bool))]
    path = written(tmp_path / "a.parquet", *tables)
    content = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0)
    for at in range(group.num_columns):
        column = group.column(at)
        place = column.dictionary_page_offset or column.data_page_offset
        for header in headers_of(path, column):
            place += header.header + header.stored
            broken = bytearray(content)
            broken[place - 1] ^= 1
            (tmp_path / "b.parquet").write_bytes(broken)
            with pytest.raises(OSError, match="CRC"):
                pq.ParquetFile(tmp_path / "b.parquet", page_checksum_verification=True).read()


def field(kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """Return a field `x`."""
    return pa.field("x", kind, nullable=nullable)


def test_which_columns_are_written_so() -> None:
    """Numbers and flags of which none is null; no others."""
    kinds: list[Any] = [pa.from_numpy_dtype(np.dtype(kind)) for kind in (*INTEGERS, "f4", "f8", "?")]
    assert all(has_flat_pages(field(kind)) for kind in kinds)
    others = [*kinds, pa.string()]
    assert not any(has_flat_pages(field(kind, nullable=True)) for kind in others)
    for kind in (pa.float16(), pa.string(), pa.binary(4), encode_tensor(np.zeros((1, 3), np.int64)).type):
        assert not has_flat_pages(field(kind))
