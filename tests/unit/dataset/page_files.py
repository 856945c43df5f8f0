"""Tables, and files of them as `TableFile` writes them and as Arrow alone does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset.columns import encode_tensor
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.pages import PageHeader, page_headers
from rollout_cli.dataset.parquet import TableFile

Array = npt.NDArray[Any]


def values_of(shape: Sequence[int], rows: int, dtype: str, seed: int = 0) -> Array:
    """Return floats of every bit pattern: also nan of any payload, infinities, negative zero, subnormals."""
    bits = np.random.default_rng(seed).integers(0, 256, (rows, *shape, np.dtype(dtype).itemsize), np.uint8)
    return bits.view(dtype).reshape(rows, *shape)


def table_of(**columns: Array) -> pa.Table:
    """Return a table whose columns cannot be null; `id` is the first."""
    rows = len(next(iter(columns.values())))
    arrays = {"id": encode_tensor(np.arange(rows)), **{name: encode_tensor(values) for name, values in columns.items()}}
    schema = pa.schema([pa.field(name, array.type, nullable=False) for name, array in arrays.items()])
    return pa.Table.from_arrays(list(arrays.values()), schema=schema.with_metadata({"what": "a table"}))


def written(path: Path, *tables: pa.Table, **metadata: str) -> Path:
    """Return a file with a row group for each of the tables."""
    file = TableFile(FileStore(), path.with_suffix(".tmp"), tables[0].schema)
    for table in tables:
        file.write(table)
    file.publish(path, metadata)
    return path


def by_arrow(path: Path, *tables: pa.Table, **metadata: str) -> Path:
    """Return such a file that Arrow wrote as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("has_list_pages", "has_flat_pages", "has_null_pages"):
            patch.setattr(f"rollout_cli.dataset.parquet.{name}", lambda _field: False)
        return written(path, *tables, **metadata)


def stated(metadata: pq.FileMetaData) -> Any:
    """Return what a footer says, without what may differ from Arrow's: places, sizes, encodings."""
    out = metadata.to_dict()
    del out["serialized_size"]
    own = ("file_offset", "data_page_offset", "total_compressed_size", "total_uncompressed_size", "encodings")
    for group in out["row_groups"]:
        del group["total_byte_size"]
        for column in group["columns"]:
            for name in (*own, "compression", "has_dictionary_page", "dictionary_page_offset"):
                del column[name]
    return out


def headers_of(path: Path, column: pq.ColumnChunkMetaData) -> list[PageHeader]:
    """Return the headers of a column's pages in one row group, its dictionary's first."""
    start = column.dictionary_page_offset or column.data_page_offset
    with path.open("rb") as file:
        return list(page_headers(file, start, column.total_compressed_size))


def bits(values: Any) -> bytes:
    """Return the bytes of an Arrow column's numbers, whatever lists are around them."""
    for _ in range(9):
        if not pa.types.is_list(values.type) and not pa.types.is_fixed_size_list(values.type):
            break
        values = values.combine_chunks().flatten() if isinstance(values, pa.ChunkedArray) else values.flatten()
    return np.asarray(values).tobytes()


def assert_reads(path: Path, *tables: pa.Table) -> None:
    """Check that Arrow reads the tables from the file's row groups, and that no checksum fails."""
    file = pq.ParquetFile(path, page_checksum_verification=True)
    assert len(tables) == file.num_row_groups
    for at, table in enumerate(tables):
        read = file.read_row_group(at)
        read.validate(full=True)
        assert table.schema == read.schema
        for name in table.column_names:
            assert bits(table[name]) == bits(read[name]), name
