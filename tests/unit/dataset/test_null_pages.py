"""Columns of texts that may be null: where a row group has none, their pages are our own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset import null_pages
from rollout_cli.dataset.null_pages import has_null_pages
from tests.unit.dataset.page_files import by_arrow, headers_of, stated, written

Texts = list[str | None]


def table_of(*columns: Texts) -> pa.Table:
    """Return a table of `id`, which has no nulls, and columns of texts."""
    rows = len(columns[0])
    fields = [pa.field("id", pa.int64(), nullable=False)]
    fields += [pa.field(f"t{at}", pa.string()) for at in range(len(columns))]
    return pa.table([list(range(rows)), *columns], schema=pa.schema(fields))


NOTHING: Texts = [None] * 300
GROUPS: list[list[Sequence[Texts]]] = [
    [(NOTHING, NOTHING)],
    [(["a", None, ""], [None, None, None]), (NOTHING, NOTHING)],
    [(NOTHING, NOTHING), ([None], ["x" * 1000]), (NOTHING[:1], NOTHING[:1]), (["b"], ["c"]), (NOTHING, NOTHING)],
    [([], []), (NOTHING, NOTHING), ([], [])],
]


@pytest.mark.parametrize("groups", GROUPS)
def test_every_reader_reads_texts_and_nulls(tmp_path: Path, groups: list[Sequence[Texts]]) -> None:
    """Whether row groups with texts come before, between or behind those without."""
    tables = [table_of(*columns) for columns in groups]
    path = written(tmp_path / "a.parquet", *tables)
    whole = pa.concat_tables(tables)
    file = pq.ParquetFile(path, page_checksum_verification=True)
    for at, table in enumerate(tables):
        read = file.read_row_group(at)
        read.validate(full=True)
        assert table.equals(read)
    names = whole.column_names
    assert list(zip(*whole.to_pydict().values(), strict=True)) == duckdb.execute(f"select * from '{path}'").fetchall()
    frame = pl.read_parquet(path)
    assert whole.to_pydict() == {name: frame[name].to_list() for name in names}


@pytest.mark.parametrize("groups", GROUPS[:3])
def test_a_footer_says_what_arrows_does(tmp_path: Path, groups: list[Sequence[Texts]]) -> None:
    """Row group by row group, whoever wrote it."""
    tables = [table_of(*columns) for columns in groups]
    own = pq.ParquetFile(written(tmp_path / "own.parquet", *tables)).metadata
    assert stated(pq.ParquetFile(by_arrow(tmp_path / "arrow.parquet", *tables)).metadata) == stated(own)


def test_pages_of_nulls_are_a_few_bytes(tmp_path: Path) -> None:
    """One for a column of a row group, with a checksum; Arrow is not asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(null_pages, "ArrowColumns")
        path = written(tmp_path / "a.parquet", table_of(NOTHING, NOTHING))
    group = pq.ParquetFile(path).metadata.row_group(0)
    for column in (group.column(1), group.column(2)):
        (header,) = headers_of(path, column)
        assert (300, True) == (header.values, header.has_checksum)
        assert header.stored < 10
        assert "UNCOMPRESSED" == column.compression


def test_which_columns_are_written_so() -> None:
    """Texts that may be null; Arrow writes all else that may be."""
    assert has_null_pages(pa.field("x", pa.string()))
    for other in (pa.field("x", pa.string(), nullable=False), pa.field("x", pa.int64()), pa.field("x", pa.binary())):
        assert not has_null_pages(other)
