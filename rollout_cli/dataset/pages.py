"""The headers of a column's pages, read without decoding any page: how much a reader would have to make of them.

A page's header is a Thrift structure in the compact protocol, in front of the page's bytes; nothing else in the file
repeats what it says, and the checksum is of the bytes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from rollout_cli.dataset.thrift import Reader

_FIRST_READ = 256
_HEADER_BYTES = 64 << 10
"""No header is longer: statistics are the only part of it that grows, and Arrow leaves out those over 4 kB."""

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
_OF_KIND = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}


@dataclass(frozen=True, slots=True)
class PageHeader:
    """What stands in front of a page.

    Attributes:
        kind: `DATA_PAGE`, `DICTIONARY_PAGE`, …
        decoded: Bytes of the page once it is decompressed.
        stored: Bytes of it in the file.
        header: Bytes of the header itself.
        values: Values in it, nulls counted.
        encoding: Parquet's number of the values' encoding.
        has_checksum: Whether a checksum of the stored bytes is given.
    """

    kind: int
    decoded: int
    stored: int
    header: int
    values: int
    encoding: int
    has_checksum: bool


def page_headers(file: BinaryIO, start: int, size: int) -> Iterator[PageHeader]:
    """Yield the headers of the pages in `size` bytes of `file` from `start` on.

    Raises:
        ValueError: If these bytes are not pages, one after another.
    """
    at, end = start, start + size
    while at < end:
        header = _read_header(file, at)
        at += header.header + header.stored
        yield header
    if at != end:
        raise ValueError(f"its pages end {at - end} bytes after the place that the footer gives")


def _read_header(file: BinaryIO, at: int) -> PageHeader:
    for size in (_FIRST_READ, _HEADER_BYTES):
        file.seek(at)
        source = Reader(file.read(size))
        try:
            return _header(source.structure(), source)
        except IndexError:
            continue  # It is longer than what was read, or the file ends in it.
    raise ValueError(f"the page header at byte {at} has no end")


def _header(fields: dict[int, Any], source: Reader) -> PageHeader:
    kind, decoded, stored = (fields.get(number) for number in (1, 2, 3))
    own = fields.get(_OF_KIND.get(kind, -1)) if isinstance(kind, int) else None
    if not isinstance(own, dict) or not isinstance(decoded, int) or not isinstance(stored, int):
        raise ValueError("a page has a header that is none")  # noqa: TRY004 - it is the file that is wrong
    encoding = own.get(4 if kind == DATA_PAGE_V2 else 2)
    values = own.get(1)
    if not isinstance(values, int) or not isinstance(encoding, int) or min(decoded, stored, values) < 0:
        raise ValueError("a page's header gives impossible sizes")
    return PageHeader(int(kind or 0), decoded, stored, source.at, values, encoding, isinstance(fields.get(4), int))
