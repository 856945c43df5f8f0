"""Thrift's compact protocol: what is taken apart is put together again as it was, and numbers are Thrift's."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.dataset.footers import end_of, footer_of
from rollout_cli.dataset.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCTURE,
    TRUE,
    Elements,
    Field,
    Reader,
    encoded,
    i32,
    i64,
    opened,
    signed,
    text,
    unsigned,
)


def arrows_footer() -> bytes:
    """Return the footer of a file with many columns, statistics, indexes and row groups."""
    table = pa.table({f"column {at}": pa.array(range(40), pa.int64()) for at in range(20)} | {"text": ["a", None] * 20})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2, write_page_index=True, sorting_columns=[pq.SortingColumn(0)])
    end = sink.getvalue()
    return footer_of(end[-int.from_bytes(end[-8:-4], "little") - 8 :])


@pytest.mark.parametrize("depth", range(8))
def test_a_footer_is_put_together_as_it_was(depth: int) -> None:
    """However deep it was taken apart."""
    footer = arrows_footer()
    assert footer == encoded(opened(footer, depth))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers(value: int) -> None:
    """Of up to 64 bits, of either sign."""
    assert value == Reader(signed(value)).signed()
    assert abs(value) == Reader(unsigned(abs(value))).unsigned()


def test_bytes_are_those_of_the_protocol() -> None:
    """The specification's own examples of zigzag and varint, and heads of fields and lists by hand."""
    assert [b"\x00", b"\x01", b"\x02", b"\x03"] == [signed(value) for value in (0, -1, 1, -2)]
    assert b"\xac\x02" == unsigned(300)
    assert bytes([0x15, 2, 0x16, 4, 0]) == encoded({1: i32(1), 2: i64(2)})
    assert bytes([I32, 40, 2, 0]) == encoded({20: i32(1)})
    assert bytes([0x11, 0]) == encoded({1: Field(TRUE, b"")})
    assert bytes([0x28, 1, 97, 1, 98]) == encoded(Elements(BINARY, [text("a"), text("b")]))
    assert bytes([0xF5, 16, *[2] * 16]) == encoded(Elements(I32, [signed(1)] * 16))
    assert bytes([0x1C, 0x26, 0, 0, 0]) == encoded({1: Field(STRUCTURE, {2: i64(0)})})


def test_fields_far_apart_and_long_lists_are_taken_apart() -> None:
    """Their numbers have bytes of their own."""
    node = {3: i32(-7), 300: Field(LIST, Elements(I64, [signed(at) for at in range(-9, 30)])), 301: Field(TRUE, b"")}
    data = encoded(node)
    assert node == opened(data, 2)
    assert data == encoded(opened(data, 1))


@pytest.mark.parametrize("end", [b"", b"PAR1", end_of(b"footer")[:-1], b"more" + end_of(b"footer")])
def test_what_is_no_end_of_a_file_is_refused(end: bytes) -> None:
    """It is made in this process: a fault of the program, not of a file."""
    assert b"footer" == footer_of(end_of(b"footer"))
    with pytest.raises(ValueError, match="not the end of a Parquet file"):
        footer_of(end)
