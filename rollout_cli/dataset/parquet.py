"""Parquet files: the options of written tables, and reading by row group with checksums."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.layout import Origin, check_origin, info_path, read_info, started_at
from rollout_cli.dataset.schema import BIG_ROW_BYTES
from rollout_cli.dataset.store import FileStore
from rollout_cli.episodes.plain import Fields
from rollout_cli.errors import DatasetFormatError, StorageError
from rollout_cli.sources.remote import RemotePath
from rollout_cli.sources.untrusted import check_size

MEMORY_HINT = (
    "use a smaller {segment_bytes} or fewer partitions, leave out large infos with {drop_info}, "
    "or free memory"
)

DAMAGED_HINT = "list the damage with `rollout verify`; keep the rest with `rollout repair`"

CACHE_BYTES = 96 << 20
"""The size of the cache of row groups, which saves random access from decoding one for each episode."""

_LEAST_KEPT = 2
"""The number of row groups kept at any size: an episode has rows in both tables."""

_MOST_UNPACKED = 100
"""A large file may take up to this many times its size in memory."""

_REPEATING = {"DELTA_BYTE_ARRAY", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}

Columns = tuple[str, ...] | None
"""The columns to read; None for all."""

_PAGE_BYTES = 1 << 20
# More rows than a row group has: pages then end by bytes alone, which compresses better than the default of
# 20,000 rows. Older versions of pyarrow lack both options.
_PAGE_ROWS = (
    {"max_rows_per_page": 1 << 20} if "max_rows_per_page" in signature(pq.write_table).parameters else {}
)
_NO_EXTENSIONS = (
    {"arrow_extensions_enabled": False}
    if "arrow_extensions_enabled" in signature(pq.ParquetFile).parameters
    else {}
)


@contextmanager
def parquet_file(files: FileStore, path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Yield a writer of the file; the file is synced when the context ends, and may be partial after an error.

    Columns must be contiguous unless their rows are big, because a page ends at the end of a piece.
    """
    with (
        files.operation("write", path),
        files.output(path) as sink,
        pq.ParquetWriter(sink, schema, **_options(schema)) as writer,
    ):
        yield writer
    files.sync(path)


def _options(schema: pa.Schema) -> Fields:
    # With the default of 1,024 rows, a page of images would have a hundred megabytes and end with its chunk.
    # Row by row, pages depend only on the rows, not on the boundaries of chunks.
    widest_row = max(map(_row_bytes, schema.types))
    batch_rows = 1 if widest_row >= BIG_ROW_BYTES else max(1, min(1024, _PAGE_BYTES // widest_row))
    return {
        "compression": "zstd",
        "compression_level": 1,
        # Values of an observation rarely repeat: a dictionary costs time and is dropped after a page.
        "use_dictionary": False,
        "column_encoding": dict(_encodings(schema)),
        # Readers select by episode. Statistics of other columns have no use and cost time in each row.
        "write_statistics": ["episode_id"],
        # Finds a flipped bit, which neither the compression nor the rest of Parquet does.
        "write_page_checksum": True,
        "write_batch_size": batch_rows,
        "data_page_size": _PAGE_BYTES,
        **_PAGE_ROWS,
    }


def _row_bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _row_bytes(kind.value_type)
    return int(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else 8


def _encodings(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    for field in schema:
        kind = field.type
        path = field.name
        while pa.types.is_nested(kind):
            kind = kind.value_type
            path = f"{path}.list.element"
        if pa.types.is_float32(kind) or pa.types.is_float64(kind):
            yield path, "BYTE_STREAM_SPLIT"
        elif pa.types.is_boolean(kind):
            yield path, "PLAIN"  # Bits: run lengths take more bytes and more time.
        elif pa.types.is_integer(kind) and kind != pa.uint8():
            yield path, "DELTA_BINARY_PACKED"  # Actions and infos: few distinct values, or close ones.


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Yield an open Parquet file, whose pages are checked when read; the errors are those of `reading`."""
    is_remote = isinstance(path, RemotePath)
    with reading(path):
        if not is_remote and path.exists() and not path.is_file():
            raise DatasetFormatError(
                f"{path} is not a regular file", code="not-a-regular-file", hint=DAMAGED_HINT
            )
        # As bytes: pyarrow encodes a `str` as UTF-8, but a path may not be valid UTF-8.
        source = path.open_input() if isinstance(path, RemotePath) else pa.OSFile(os.fsencode(path), "rb")
        # With a buffer, the columns of a row group are one request.
        options = {"page_checksum_verification": True, "pre_buffer": is_remote, **_NO_EXTENSIONS}
        with pq.ParquetFile(source, **options) as file:
            claimed = _claimed_bytes(file)
            # A large file may be large in memory. The size is requested from a server only if it matters.
            if claimed > 1 << 30 and claimed > _MOST_UNPACKED * path.stat().st_size:
                check_size(path, claimed)
            yield file


def _claimed_bytes(file: pq.ParquetFile) -> int:
    """Return an upper bound of a file's size in memory from its footer; fixed-size values may be run lengths."""
    metadata = file.metadata
    schema = file.schema
    texts = [at for at in range(len(schema)) if schema.column(at).physical_type == "BYTE_ARRAY"]
    n_bytes: int = metadata.num_rows * sum(map(_row_bytes, file.schema_arrow.types))
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        n_bytes += group.total_byte_size
        for column in map(group.column, texts):
            # Each row may repeat the longest string. Our own writer does not use these encodings.
            if _REPEATING & {*column.encodings}:
                n_bytes += column.num_values * column.total_uncompressed_size
    return n_bytes


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise `DatasetFormatError` if `path` is missing or damaged, `StorageError` if it cannot be read."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetFormatError(f"{path} is missing", code="file-missing", hint=DAMAGED_HINT) from error
    except MemoryError as error:
        raise StorageError(
            f"out of memory while reading {path}: {error}", code="out-of-memory", hint=MEMORY_HINT
        ) from error
    except OSError as error:
        # Parquet's reader sets no error number; an impossible offset in a damaged file gives EINVAL.
        if error.errno in (None, errno.EINVAL):
            raise DatasetFormatError(
                f"{path} is damaged: {error}", code="parquet-unreadable", hint=DAMAGED_HINT
            ) from error
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}", code="read-failed", hint="check its permissions"
        ) from error
    except (pa.ArrowException, UnicodeDecodeError, OverflowError, IndexError) as error:
        raise DatasetFormatError(
            f"{path} cannot be read as a Parquet file of this format: {error}",
            code="parquet-unreadable",
            hint=DAMAGED_HINT,
        ) from error


def check_table(path: Path, file: pq.ParquetFile, columns: Sequence[str]) -> None:
    """Raise `DatasetFormatError` unless an open file has rows, and exactly these columns.

    The columns are compared as `str` of their fields, because a pickled schema loses the nullability of list
    elements.
    """
    present = [*map(str, file.schema_arrow)]
    if present != columns:
        differing = "; ".join(sorted({*columns} ^ {*present})) or "their order"
        raise DatasetFormatError(
            f"{path} and the dataset have different columns: {differing}",
            code="parquet-columns",
            hint=DAMAGED_HINT,
        )
    if not file.metadata.num_rows:
        raise DatasetFormatError(f"{path} has no rows", code="parquet-empty", hint=DAMAGED_HINT)


class RowReader:
    """Reads ranges of rows of Parquet files, with a cache of row groups. A pickled copy has an empty cache.

    Each file must have its origin and its columns in `files`. Both are checked whenever the file is opened,
    because a run may have replaced the dataset in `root`, which started at `started`. The file may have gained
    rows, from episodes that a run has added. Threads may read concurrently.
    """

    def __init__(self, root: Path, started: str, files: Mapping[Path, tuple[Origin, Sequence[str]]]) -> None:
        self._root = root
        self._started = started
        self._files = files
        self._checked_info = b""  # The last info.json that was checked.
        self._edges: dict[Path, list[int]] = {}
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self.find = self._kept.get  # Returns the cached value of a key, or None.
        self._changing = threading.Lock()  # Held by the thread that changes the cache.

    def __reduce__(self) -> tuple[Any, ...]:
        return RowReader, (self._root, self._started, self._files)

    def check_dataset(self) -> None:
        """Raise `DatasetFormatError` if the folder now holds another dataset.

        A fingerprint is not enough: a run with another `--keep` may have the same one. A new info.json is
        written before any new file.
        """
        info_bytes = b""
        with suppress(OSError):
            info_bytes = info_path(self._root).read_bytes()
        if info_bytes and info_bytes == self._checked_info:
            return
        if started_at(read_info(self._root)) != self._started:
            raise DatasetFormatError(
                f"{self._root} was replaced while it was being read",
                code="dataset-replaced",
                hint="load the dataset again",
            )
        self._checked_info = info_bytes

    @contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[Any, list[int]]]:
        """Yield an open file, with the first rows of its row groups followed by its number of rows."""
        with open_parquet(path) as file:
            origin, columns = self._files[path]
            check_origin(path, file.metadata.metadata, origin)
            check_table(path, file, columns)
            self.check_dataset()  # After opening, which fixes the file that is read.
            sizes = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
            yield file, list(accumulate(sizes, initial=0))

    def edges(self, path: Path) -> list[int]:
        """Return the first rows of the row groups of a file, followed by its number of rows."""
        if path not in self._edges:
            with self._opened(path) as (_, edges):
                self._edges[path] = edges
        return self._edges[path]

    def groups(self, path: Path, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return index, first row and end of each row group that overlaps rows `start` to `stop - 1`."""
        edges = self.edges(path)
        n_rows = edges[-1]
        if not 0 <= start < stop <= n_rows:
            raise DatasetFormatError(
                f"{path} has {n_rows} rows, but meta/episodes refers to rows {start} to {stop - 1}",
                code="segment-row-count",
                hint=DAMAGED_HINT,
            )
        pairs = enumerate(pairwise(edges))
        return [(at, first, last) for at, (first, last) in pairs if first < stop and start < last]

    def read(self, path: Path, start: int, stop: int, columns: Columns = None) -> list[pa.Table]:
        """Return rows `start` to `stop - 1` of file `path` as slices of row groups."""
        tables = []
        for at, first, last in self.groups(path, start, stop):
            table = self.kept((path, at, columns), lambda key: self.decoded(*key))
            tables.append(table.slice(max(start - first, 0), min(stop, last) - max(start, first)))
        return tables

    def kept(self, key: Any, read: Callable[[Any], Any]) -> Any:
        """Return the cached value of `key`, or cache `read(key)`; the size of a value is its `nbytes`."""
        value = self.find(key)
        if value is not None:
            return value
        value = read(key)
        with self._changing:
            self._kept[key] = value
        self.trim()
        return value

    def trim(self) -> None:
        """Evict the oldest values until the rest fits in `CACHE_BYTES`, or only `_LEAST_KEPT` are left."""
        with self._changing:
            n_bytes = sum(kept.nbytes for kept in self._kept.values())
            while len(self._kept) > _LEAST_KEPT and n_bytes > CACHE_BYTES:
                n_bytes -= self._kept.popitem(last=False)[1].nbytes

    def decoded(self, path: Path, group: int, columns: Columns) -> pa.Table:
        """Return a row group of a file whose `edges` are known, without caching it."""
        start, stop = self._edges[path][group : group + 2]
        with self._opened(path) as (file, edges):
            if edges[group : group + 1] != [start] or edges[group + 1 : group + 2] < [stop]:
                raise DatasetFormatError(
                    f"{path} was replaced while it was being read",
                    code="dataset-replaced",
                    hint="load the dataset again",
                )
            # Parquet treats a name also as a prefix of other columns.
            table = file.read_row_group(group, columns=None if columns is None else list(columns))
            return table if columns is None else table.select(columns)
