"""Breaking one thing in a dataset's files, as a fault of a program or a disk would."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.commits import record_checksum
from rollout_cli.dataset.parquet import parquet_file
from rollout_cli.dataset.store import FileStore

ORIGIN_KEYS = ("rollout.run", "rollout.partition", "rollout.first_number")
RECORD_KEYS = ("rollout.segment", "rollout.stats", "rollout.checksum", *ORIGIN_KEYS)
INFO = "meta/info.json"
STATS = "meta/stats.json"


def data(number: int, chunk: int = 0) -> str:
    return f"data/chunk-{chunk:05}/file-{number:05}.parquet"


def episodes(number: int, chunk: int = 0) -> str:
    return f"meta/episodes/chunk-{chunk:05}/file-{number:05}.parquet"


def rewrite(
    path: Path, change: Callable[[pa.Table], pa.Table], footer: Mapping[str, str | None] | None = None
) -> None:
    """Write a Parquet file again, as our writer would, with other rows or another footer.

    Args:
        path: The file.
        change: Gives the new rows.
        footer: What to change in the footer; None for a key takes it out.
    """
    file = pq.ParquetFile(path)
    table = change(file.read()).combine_chunks()
    keys = {
        key.decode(): value.decode()
        for key, value in file.metadata.metadata.items()
        if key != b"ARROW:schema"
    }
    changed = {key: value for key, value in (keys | dict(footer or {})).items() if value is not None}
    own = {key: value for key, value in changed.items() if key in RECORD_KEYS}
    schema = table.schema.with_metadata({key: value for key, value in changed.items() if key not in own})
    temporary = path.with_name("again.tmp")
    with parquet_file(FileStore(), temporary, schema) as out:
        out.write_table(table.cast(schema), row_group_size=file.metadata.row_group(0).num_rows)
        out.add_key_value_metadata(own)
    temporary.replace(path)


def set_values(path: Path, name: str, rows: Any, values: Any) -> None:
    """Put `values` into some rows of a column."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        column = table[name].to_pylist()
        for row, value in zip(np.atleast_1d(rows).tolist(), values, strict=True):
            column[row] = value
        return table.set_column(at, table.schema.field(at), pa.array(column, table.schema.field(at).type))

    rewrite(path, change)


def set_footer(path: Path, key: str, value: str | None) -> None:
    """Change, add or take out a key of a file's footer."""
    rewrite(path, lambda table: table, {key: value})


def set_record(path: Path, **values: Any) -> None:
    """Change the commit record of an episodes file, as a program would that is wrong."""
    keys = pq.ParquetFile(path).metadata.metadata
    record = json.dumps(json.loads(keys[b"rollout.segment"]) | values)
    checksum = record_checksum(record, keys[b"rollout.stats"].decode())
    rewrite(path, lambda table: table, {"rollout.segment": record, "rollout.checksum": checksum})


def set_json(path: Path, **values: Any) -> None:
    """Change keys of a JSON document."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(bytes(content))


def page_bytes(path: Path, column: str, group: int = 0) -> range:
    """Return where the pages of a column of a row group lie in its file, headers included."""
    metadata = pq.ParquetFile(path).metadata.row_group(group)
    for at in range(metadata.num_columns):
        found = metadata.column(at)
        if found.path_in_schema.split(".list.")[0] == column:
            start = found.dictionary_page_offset or found.data_page_offset
            return range(start, start + found.total_compressed_size)
    raise KeyError(column)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no folder")
