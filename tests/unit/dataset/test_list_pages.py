"""Columns of lists of floats: pages and footers of our own hold what Arrow's would, for every reader."""

from __future__ import annotations

import cProfile
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

from rollout_cli.dataset import list_pages
from rollout_cli.dataset.columns import PAGE_BYTES, tensor_type
from rollout_cli.dataset.files import NewFile
from rollout_cli.dataset.list_pages import has_list_pages
from rollout_cli.dataset.pages import DATA_PAGE
from rollout_cli.dataset.thrift import Elements, i64, opened
from tests.unit.dataset.page_files import assert_reads, by_arrow, headers_of, stated, table_of, values_of, written

SHAPES = [(1,), (2,), (4,), (7,), (8,), (17,), (505,), (1, 1), (3, 3), (2, 3, 4), (2, 1, 2, 1, 3)]


@settings(deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(["f4", "f8"]), st.lists(st.integers(0, 700), min_size=1, max_size=3))
def test_arrow_reads_each_bit(
    tmp_path_factory: pytest.TempPathFactory, shape: Any, dtype: str, rows: list[int]
) -> None:
    """Of lists in lists of every depth, in row groups of any size, with checksums that hold."""
    tables = [table_of(x=values_of(shape, count, dtype, seed)) for seed, count in enumerate(rows)]
    path = written(tmp_path_factory.mktemp("pages") / "a.parquet", *tables)
    assert_reads(path, *tables)


@pytest.mark.parametrize("shape", SHAPES[:-1])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_other_readers_read_each_number(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """DuckDB and polars have readers of their own."""
    rows = 1000
    values = np.random.default_rng(1).standard_normal((rows, *shape)).astype(dtype)
    path = written(tmp_path / "a.parquet", table_of(x=values), table_of(x=-values))
    expected = np.concatenate([values, -values]).tolist()
    assert expected == [row for (row,) in duckdb.execute(f"select x from '{path}'").fetchall()]
    assert expected == pl.read_parquet(path)["x"].to_list()


@pytest.mark.parametrize("shape", [(4,), (3, 3), (2, 3, 4)])
def test_a_footer_says_what_arrows_does(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """But for places and for sizes that compression gives; also of columns before, between and behind."""
    columns = {
        "a": np.arange(300),
        "b": values_of(shape, 300, "f4"),
        "c": np.ones(300),
        "d": values_of((2,), 300, "f8"),
    }
    tables = [table_of(**columns), table_of(**{name: column[:77] for name, column in columns.items()})]
    own = pq.ParquetFile(written(tmp_path / "own.parquet", *tables, note="more"))
    arrows = pq.ParquetFile(by_arrow(tmp_path / "arrow.parquet", *tables, note="more"))
    assert arrows.schema_arrow.equals(own.schema_arrow, check_metadata=True)
    assert arrows.schema.equals(own.schema)
    assert b"more" == own.metadata.metadata[b"note"]
    assert arrows.metadata.metadata == own.metadata.metadata
    assert stated(arrows.metadata) == stated(own.metadata)
    lists = [own.metadata.row_group(0).column(at) for at in (2, 4)]
    assert ["b", "d"] == [column.path_in_schema.split(".")[0] for column in lists]
    assert [{"RLE", "BYTE_STREAM_SPLIT"}] * 2 == [set(column.encodings) for column in lists]
    assert ["ZSTD"] * 2 == [column.compression for column in lists]


def test_a_row_groups_sizes_are_those_of_its_columns(tmp_path: Path) -> None:
    """They follow one another in the schema's order, as some readers take for granted; no byte lies between."""
    table = table_of(x=values_of((4,), 3000, "f4"), y=values_of((3, 3), 3000, "f8"))
    path = written(tmp_path / "a.parquet", table, table.slice(0, 10).combine_chunks())
    metadata = pq.ParquetFile(path).metadata
    footer = path.read_bytes()[-metadata.serialized_size - 8 : -8]
    told = opened(footer, 3)[4].node
    assert isinstance(told, Elements)
    at = 4
    for fields, group in zip(told.nodes, map(metadata.row_group, range(metadata.num_row_groups)), strict=True):
        columns = [group.column(place) for place in range(group.num_columns)]
        assert isinstance(fields, dict)
        assert i64(at) == fields[5]
        assert i64(sum(column.total_compressed_size for column in columns)) == fields[6]
        assert group.total_byte_size == sum(column.total_uncompressed_size for column in columns)
        for column in columns:
            assert at == (column.dictionary_page_offset or column.data_page_offset)
            at += column.total_compressed_size
    assert path.stat().st_size == at + metadata.serialized_size + 8


@pytest.mark.parametrize(
    ("shape", "dtype", "rows"), [((4,), "f4", 150_000), ((505,), "f8", 600), ((300, 500), "f8", 3)]
)
def test_pages_are_of_a_megabyte_and_begin_with_a_row(tmp_path: Path, shape: Any, dtype: str, rows: int) -> None:
    """As Arrow's, whatever comes in how many pieces; a row that is larger has a page of its own."""
    table = table_of(x=values_of(shape, rows, dtype))
    path = written(tmp_path / "whole.parquet", table)
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    headers = headers_of(path, column)
    row = int(np.prod(shape))
    per_page = max(1, PAGE_BYTES // (row * np.dtype(dtype).itemsize))
    counts = [min(per_page, rows - start) * row for start in range(0, rows, per_page)]
    assert counts == [header.values for header in headers]
    assert {(DATA_PAGE, True)} == {(header.kind, header.has_checksum) for header in headers}
    assert column.total_uncompressed_size == sum(header.decoded + header.header for header in headers)
    pieces = pa.concat_tables([table.slice(start, rows // 3) for start in range(0, rows, rows // 3)])
    assert path.read_bytes() == written(tmp_path / "pieces.parquet", pieces).read_bytes()


def test_a_row_group_without_rows_has_a_page_without_values(tmp_path: Path) -> None:
    """Where the footer says that its pages begin, there is one."""
    path = written(tmp_path / "a.parquet", table_of(x=values_of((4,), 0, "f4")), table_of(x=values_of((4,), 2, "f4")))
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    headers = headers_of(path, column)
    assert [0] == [header.values for header in headers]
    assert 2 == pq.read_table(path).num_rows


def test_a_flipped_bit_of_a_page_is_found(tmp_path: Path) -> None:
    """By its checksum: mantissas are not compressed, so nothing else would see it."""
    path = written(tmp_path / "a.parquet", table_of(x=values_of((4,), 3000, "f4")))
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def field(kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """Return a field `x`."""
    return pa.field("x", kind, nullable=nullable)


def test_which_columns_are_written_so() -> None:
    """Lists of floats that cannot be null, at any depth; Arrow writes all others."""
    assert has_list_pages(field(tensor_type(np.dtype("f4"), (3,))))
    assert has_list_pages(field(tensor_type(np.dtype("f8"), (3, 4))))
    others = [
        field(tensor_type(np.dtype("f4"), (3,)), nullable=True),
        field(tensor_type(np.dtype("i8"), (3,))),
        field(tensor_type(np.dtype("f2"), (3,))),
        field(pa.float32()),
        field(pa.list_(pa.field("element", pa.float32(), nullable=False))),
        field(pa.list_(pa.float32(), 3)),
        field(pa.list_(pa.field("element", pa.float32(), nullable=False), 0)),
    ]
    assert [] == [other for other in others if has_list_pages(other)]


def test_a_files_own_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them go this way, or the tests above would tell nothing."""
    seen = []

    class Noted(list_pages.ListPages):
        def __init__(self, column: pa.Field, compression_level: int, file: NewFile) -> None:
            seen.append(column.name)
            super().__init__(column, compression_level, file)

    monkeypatch.setattr("rollout_cli.dataset.parquet.ListPages", Noted)
    written(tmp_path / "a.parquet", table_of(x=values_of((4,), 3, "f4"), y=np.ones(3), z=values_of((2, 2), 3, "f8")))
    assert ["x", "z"] == seen


def test_levels_are_made_under_a_profiler_too() -> None:
    """Which holds on to arrays that it sees, so that numpy does not resize them."""
    cProfile.Profile().runcall(list_pages._Levels, (4,), 100)
