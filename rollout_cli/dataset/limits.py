"""Bounds for reading: a broken or hostile dataset must end in an error, not in a process without memory or end.

What a file claims of itself is held against these before anything of that size is made. Honest datasets are far below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.pages import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, page_headers
from rollout_cli.errors import DatasetFormatError

MAX_JSON_BYTES = 64 << 20
"""Bytes of info.json, and of any other JSON text."""

MAX_JSON_NESTING = 100

MAX_LEAF_ELEMENTS = 1 << 25
"""Numbers in one value of a space: the bounds of a Box are arrays of as many."""

MAX_GROUP_BYTES = 2 << 30
"""Bytes of a row group once it is decoded; the writer closes one at 64 MB, unless a single row has more."""

MAX_EPISODES_PER_BYTE = 4
"""Rows of an episodes file for each of its bytes: seeds and times do not compress to as little."""

MAX_THRIFT_TEXT = 64 << 20
MAX_THRIFT_ITEMS = 1 << 20
"""Bytes of texts and items of lists in a footer, which repeats the spaces for other readers."""

_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_LENGTHS, _RLE_DICTIONARY = 0, 2, 3, 6, 8
_BY_DICTIONARY = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)


def read_json(path: Path) -> Any:
    """Return the JSON document in the file `path`.

    Raises:
        ValueError: If it is none, or over the bounds.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(MAX_JSON_BYTES + 1)
    return parse_json(data)


def parse_json(data: bytes | str) -> Any:
    """Return the JSON document `data`.

    Raises:
        ValueError: If it is none, or over the bounds.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes")
    try:
        document = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_nesting(document)
    return document


def _check_nesting(document: Any) -> None:
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > MAX_JSON_NESTING:
            raise ValueError(f"it is nested more than {MAX_JSON_NESTING} levels deep")
        level = [child for node in level for child in _children(node)]


def _children(node: Any) -> Iterator[Any]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return (value for value in values if isinstance(value, dict | list))


def check_space(document: Any) -> None:
    """Check the sizes in a space's description, before the space, which makes arrays of them, is built.

    Raises:
        DatasetFormatError: If a value of it would be too large.
    """
    level = [document]
    while level:
        for node in level:
            if isinstance(node, Mapping) and isinstance(node.get("shape"), list):
                _check_shape(node["shape"])
        level = [child for node in level for child in _children(node)]


def _check_shape(shape: list[Any]) -> None:
    elements = 1
    for size in shape:
        if not isinstance(size, int) or size < 0:
            raise DatasetFormatError(f"info.json has a space of the shape {str(shape)[:100]}")
        elements *= max(1, size)
        if elements > MAX_LEAF_ELEMENTS:
            raise DatasetFormatError(
                f"info.json has a space of the shape {str(shape)[:100]}, over {MAX_LEAF_ELEMENTS:,} numbers"
            )


def check_inside(root: Path, path: Path) -> None:
    """Check that `path`, all links followed, is in the dataset's folder.

    Raises:
        DatasetFormatError: If it is a link that leads out of it.
    """
    # Links that lead round in a circle are told by whoever opens the file; `Path.resolve` would raise a RuntimeError.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise DatasetFormatError(
            f"{path} is a link that leads out of the dataset", hint="copy the file it names into the dataset's folder"
        )


def open_parquet(root: Path, path: Path) -> pq.ParquetFile:
    """Open a Parquet file of the dataset in `root`; page checksums are verified as pages are read.

    Raises:
        DatasetFormatError: If it is a link that leads out of the dataset.
        OSError: If it cannot be read, or pyarrow finds it broken.
    """
    check_inside(root, path)
    return pq.ParquetFile(
        path,
        page_checksum_verification=True,
        thrift_string_size_limit=MAX_THRIFT_TEXT,
        thrift_container_size_limit=MAX_THRIFT_ITEMS,
        pre_buffer=False,
        arrow_extensions_enabled=False,
    )


def check_episode_rows(path: Path, metadata: pq.FileMetaData) -> None:
    """Check that an episodes file can have as many rows as it claims.

    Raises:
        DatasetFormatError: If its bytes cannot.
    """
    most = MAX_EPISODES_PER_BYTE * path.stat().st_size
    if not 0 <= metadata.num_rows <= most:
        raise DatasetFormatError(f"{path} claims {metadata.num_rows:,} rows, more than a file of its size can have")


def check_group(path: Path, file: pq.ParquetFile, group: int) -> bool:
    """Check that a row group's pages are what the footer says, and that decoding them takes a bounded memory.

    Returns:
        Whether all its pages have checksums.

    Raises:
        DatasetFormatError: If they are not, or if it would be too large.
    """
    claims = file.metadata.row_group(group)
    size = claims.num_rows * sum(map(fixed_row_bytes, file.schema_arrow.types))
    if claims.num_rows < 0 or size > MAX_GROUP_BYTES:
        raise _too_large(path, group, size)
    checked = True
    with path.open("rb") as source:
        for at in range(claims.num_columns):
            column = claims.column(at)
            try:
                largest, checksums = _column_bytes(source, column)
            except ValueError as error:
                raise DatasetFormatError(
                    f"{path} is broken: in row group {group}, column {column.path_in_schema}: {error}"
                ) from error
            size += largest
            checked &= checksums
    if size > MAX_GROUP_BYTES:
        raise _too_large(path, group, size)
    return checked


def _too_large(path: Path, group: int, size: int) -> DatasetFormatError:
    return DatasetFormatError(
        f"row group {group} of {path} would take up to {size:,} bytes of memory, over the limit of {MAX_GROUP_BYTES:,}"
    )


def _column_bytes(source: BinaryIO, column: pq.ColumnChunkMetaData) -> tuple[int, bool]:
    """Return the bytes that decoding a column's pages may take at most, and whether all pages have checksums."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    pages = list(page_headers(source, start, column.total_compressed_size))
    data = [page for page in pages if page.kind in (DATA_PAGE, DATA_PAGE_V2)]
    if sum(page.values for page in data) != column.num_values:
        raise ValueError(f"its pages do not have the {column.num_values:,} values that the footer gives")
    if sum(page.header + page.decoded for page in pages) > column.total_uncompressed_size:
        raise ValueError("its pages are larger than the footer says")
    dictionary = sum(page.decoded for page in pages if page.kind == DICTIONARY_PAGE)
    size = 0
    for page in data:
        size += page.decoded
        if column.physical_type == "BYTE_ARRAY":
            size += _text_bytes(page.encoding, page.values, dictionary)
    return size, all(page.has_checksum for page in pages)


def _text_bytes(encoding: int, values: int, dictionary: int) -> int:
    """Return the bytes that texts may have beyond those of their page: only a dictionary repeats any."""
    if encoding in _BY_DICTIONARY:
        return values * dictionary
    if encoding in (_PLAIN, _RLE, _DELTA_LENGTHS):
        return 0
    raise ValueError(f"its texts have the encoding {encoding}, by which a few bytes may become any number")


def fixed_row_bytes(kind: pa.DataType) -> int:
    """Return the bytes of a value of `kind` in memory; of a text, those of its offset."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * fixed_row_bytes(kind.value_type)
    if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
        return max(1, int(kind.bit_width) // 8)
    return 8
