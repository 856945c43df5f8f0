"""Breaking one thing in a dataset's files, as a fault of a program or a disk would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.parquet import TableFile

DATA = "data/chunk-00000/file-00000.parquet"
EPISODES = "meta/episodes/chunk-00000/file-00000.parquet"
INFO = "meta/info.json"
STATS = "meta/stats.json"


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], *, footer: dict[str, Any] | None = None) -> None:
    """Write a Parquet file again, as our writer would, its row groups changed one by one; keep its footer.

    Args:
        path: The file.
        change: Gives the new rows of a row group; it is called with all row groups in turn.
        footer: What to change in the footer; None for a key takes it out.
    """
    file = pq.ParquetFile(path)
    groups = [change(file.read_row_group(at)) for at in range(file.metadata.num_row_groups)]
    metadata = {key: value for key, value in file.metadata.metadata.items() if key != b"ARROW:schema"}
    metadata |= {key.encode(): value.encode() for key, value in (footer or {}).items() if value is not None}
    for key, value in (footer or {}).items():
        if value is None:
            del metadata[key.encode()]
    out = TableFile(FileStore(), path.with_name(".again.tmp"), groups[0].schema.with_metadata(metadata))
    for table in groups:
        if table.num_rows:
            out.write(table.replace_schema_metadata(metadata))
    out.publish(path)


def set_values(path: Path, name: str, rows: Any, values: Any) -> None:
    """Put `values` into some rows, counted through the whole file, of a column."""
    start = 0

    def change(table: pa.Table) -> pa.Table:
        nonlocal start
        at = table.schema.get_field_index(name)
        column = table[name].to_pylist()
        for row, value in zip(np.atleast_1d(rows).tolist(), values, strict=True):
            if start <= row < start + len(column):
                column[row - start] = value
        start += len(column)
        field = table.schema.field(at)
        array = pa.array(column, _nullable(field.type) if _lacks(values) else field.type)
        return table.set_column(at, field.with_type(array.type).with_nullable(field.nullable or _lacks(values)), array)

    rewrite(path, change)


def _lacks(values: list[Any]) -> bool:
    return any(value is None or (isinstance(value, list) and _lacks(value)) for value in values)


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)), kind.list_size)
    return kind


def set_bytes(path: Path, name: str, row: int, value: bytes) -> None:
    """Put bytes into a row of a column of texts, whether they are a text or not."""
    start = 0

    def change(table: pa.Table) -> pa.Table:
        nonlocal start
        at = table.schema.get_field_index(name)
        texts = table[name].combine_chunks().cast(pa.binary()).to_pylist()
        if start <= row < start + len(texts):
            texts[row - start] = value
        start += len(texts)
        column = pa.array(texts, pa.binary())
        return table.set_column(
            at, table.schema.field(at), pa.StringArray.from_buffers(len(column), *column.buffers()[1:])
        )

    rewrite(path, change)


def set_footer(path: Path, key: str, value: str | None) -> None:
    """Change, add or take out a key of a file's footer."""
    rewrite(path, lambda table: table, footer={key: value})


def set_json(path: Path, **values: Any) -> None:
    """Change keys of a JSON document."""
    document = json.loads(path.read_text()) | values
    path.write_text(json.dumps(document))


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def page_bytes(path: Path, column: str, group: int = 0) -> range:
    """Return where the pages of a column of a row group lie in its file, headers included."""
    metadata = pq.ParquetFile(path).metadata.row_group(group)
    for at in range(metadata.num_columns):
        found = metadata.column(at)
        if found.path_in_schema.split(".list.")[0] == column:
            start = found.dictionary_page_offset or found.data_page_offset
            return range(start, start + found.total_compressed_size)
    raise KeyError(column)
