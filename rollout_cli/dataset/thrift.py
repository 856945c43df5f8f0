"""Thrift's compact protocol, as far as the structures of a Parquet file need it: read, taken apart, and written.

What is read may come from anybody's file; what is taken apart was written by this process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, _SET, _MAP, STRUCTURE = range(1, 13)

_MAX_DEPTH = 8
_NUMBER_BITS = 63
_MORE = 128
"""Set in each byte of a number but its last one."""

_SINGLE = [bytes([value]) for value in range(_MORE)]

_SHORT = 15
"""Lists of so many elements, and fields so far behind the one before, have their number in bytes of its own."""


class Elements(NamedTuple):
    """A list: the type of its elements, and they themselves."""

    kind: int
    nodes: list[Node]


Node = bytes | dict[int, "Field"] | Elements
"""A value: its bytes as they are, or a structure's fields by their numbers, or a list."""


class Field(NamedTuple):
    """A field of a structure: its type and its value."""

    kind: int
    node: Node


# -- writing -----------------------------------------------------------------------------------------------------------


def encoded(node: Node) -> bytes:
    """Return a value as bytes."""
    if isinstance(node, dict):
        return _structure(node)
    if isinstance(node, Elements):
        count = len(node.nodes)
        head = [count << 4 | node.kind] if count < _SHORT else [_SHORT << 4 | node.kind, *unsigned(count)]
        return bytes(head) + b"".join(map(encoded, node.nodes))
    return node


def _structure(fields: dict[int, Field]) -> bytes:
    out = bytearray()
    last = 0
    for number, (kind, node) in sorted(fields.items()):
        step = number - last
        out += bytes([step << 4 | kind]) if step <= _SHORT else bytes([kind]) + signed(number)
        out += encoded(node)
        last = number
    return bytes(out + b"\0")


def i32(value: int) -> Field:
    """Return a field with an integer of 32 bits."""
    return Field(I32, signed(value))


def i64(value: int) -> Field:
    """Return a field with an integer of 64 bits."""
    return Field(I64, signed(value))


def i32_fields(*values: int) -> bytes:
    """Return the first fields of a structure, integers of 32 bits, without its end."""
    return b"".join([_NEXT_I32 + signed(value) for value in values])


_NEXT_I32 = bytes([1 << 4 | I32])
"""What a field that follows the one before begins with."""


def text(value: str) -> bytes:
    """Return a text."""
    data = value.encode()
    return unsigned(len(data)) + data


def signed(value: int) -> bytes:
    """Return an integer of 16, 32 or 64 bits, which are written alike."""
    return unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def unsigned(value: int) -> bytes:
    """Return a number that is not negative."""
    if value < _MORE:
        return _SINGLE[value]
    out = bytearray()
    while value >= _MORE:
        out.append(value & (_MORE - 1) | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- taking apart ------------------------------------------------------------------------------------------------------


def opened(data: bytes, depth: int) -> dict[int, Field]:
    """Return the structure that `data` begins with; so many structures and lists deep, and below as bytes."""
    return _opened_structure(data, 0, depth)[0]


def _opened(data: bytes, at: int, kind: int, depth: int) -> tuple[Node, int]:
    """Return the value of a type that begins at `at`, and where it ends."""
    if depth and kind == STRUCTURE:
        return _opened_structure(data, at, depth)
    if depth and kind == LIST:
        count, element, at = _list_head(data, at)
        nodes = []
        for _ in range(count):
            node, at = _opened(data, at, element, depth - 1)
            nodes.append(node)
        return Elements(element, nodes), at
    end = _behind(data, at, kind)
    return data[at:end], end


def _opened_structure(data: bytes, at: int, depth: int) -> tuple[dict[int, Field], int]:
    fields: dict[int, Field] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            reader = Reader(data, at)
            number, at = reader.signed(), reader.at
        node, at = _opened(data, at, head & 15, depth - 1)
        fields[number] = Field(head & 15, node)
    return fields, at + 1


def _behind(data: bytes, at: int, kind: int) -> int:
    """Return where the value of a type that begins at `at` ends."""
    # One function, without a reader's calls: a footer has hundreds of numbers a row group.
    if kind in (I16, I32, I64):
        while data[at] >= _MORE:
            at += 1
        return at + 1
    if kind == STRUCTURE:
        while (head := data[at]) != 0:
            at = _behind(data, at + 1 if head >> 4 else _behind(data, at + 1, I16), head & 15)
        return at + 1
    if kind == BINARY:
        reader = Reader(data, at)
        return reader.unsigned() + reader.at
    if kind == LIST:
        count, element, at = _list_head(data, at)
        for _ in range(count):
            at = _behind(data, at, element)
        return at
    return at + {TRUE: 0, FALSE: 0, I8: 1, DOUBLE: 8}[kind]


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Return a list's length, its elements' type, and where they begin."""
    head = data[at]
    if head >> 4 < _SHORT:
        return head >> 4, head & 15, at + 1
    reader = Reader(data, at + 1)
    return reader.unsigned(), head & 15, reader.at


# -- reading -----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads from bytes that may be anything.

    An `IndexError` says that the bytes ended, a `ValueError` that they are no structure of a page's header.

    Attributes:
        at: How far it has read.
    """

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a structure by their numbers; texts, which no caller needs, as None."""
        if depth > _MAX_DEPTH:
            raise ValueError("a page's header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (byte := self._byte()) != 0:
            number = number + (byte >> 4) if byte >> 4 else self.signed()
            fields[number] = self._value(byte & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (I16, I32, I64):
            return self.signed()
        if kind == STRUCTURE:
            return self.structure(depth + 1)
        if kind in (I8, DOUBLE, BINARY):
            self._skip({I8: 1, DOUBLE: 8}.get(kind) or self.unsigned())
            return None
        raise ValueError("a page's header has a field of an unknown type")

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        value = self._data[self.at]
        self.at += 1
        return value

    def unsigned(self) -> int:
        """Return a number that is not negative."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & (_MORE - 1)) << shift
            if byte < _MORE:
                return value
            shift += 7
            if shift > _NUMBER_BITS:
                raise ValueError("a page's header has a number without end")

    def signed(self) -> int:
        """Return an integer of 16, 32 or 64 bits."""
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)
