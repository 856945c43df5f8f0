"""How the leaves of a space become named columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa

from rollout_cli.dataset.arrays import joined
from rollout_cli.dataset.columns import Array, decode_leaf, encode_leaf, is_big, is_stored, leaf_type
from rollout_cli.spaces import Leaf, empty_column, space_leaves


@dataclass(frozen=True, slots=True)
class SpaceColumn:
    """One leaf of a space and the column that holds it.

    Attributes:
        name: The column's name, such as `observation.camera.0`.
        leaf: The leaf.
        stored: Whether there is such a column; a leaf without elements has none.
    """

    name: str
    leaf: Leaf
    stored: bool

    def field(self) -> pa.Field:
        """Return the column's Arrow field: every row has a value."""
        return pa.field(self.name, leaf_type(self.leaf), nullable=False)

    def encode(self, values: Array) -> pa.Array:
        """Return the column of `values`, (T, *leaf.shape)."""
        return encode_leaf(self.leaf, values)

    def encode_pieces(self, pieces: Sequence[Array]) -> pa.Array | pa.ChunkedArray:
        """Return the column of pieces that follow one another: one contiguous array, but where rows are big."""
        if is_big(self.leaf):
            return pa.chunked_array([self.encode(values) for values in pieces])
        return self.encode(joined(pieces))

    def decode(self, table: pa.Table) -> Array:
        """Return the leaf's values in the rows of `table`, (T, *leaf.shape)."""
        if not self.stored:
            return empty_column(self.leaf, table.num_rows)
        return decode_leaf(self.leaf, table[self.name].combine_chunks())

    def describe(self) -> dict[str, Any]:
        """Return the column's entry in the `features` of info.json."""
        dtype = "string" if self.leaf.kind == "text" else np.dtype(self.leaf.dtype).name
        return {
            "kind": self.leaf.kind,
            "dtype": dtype,
            "shape": list(self.leaf.shape),
            "path": list(self.leaf.path),
            "stored": self.stored,
        }


def space_columns(space: gymnasium.Space[Any], prefix: str) -> tuple[SpaceColumn, ...]:
    """Return one column a leaf of `space`, in the order of its leaves, named `prefix` or `prefix.path`.

    Keys may contain dots, so two paths can have one dotted name; the later one gets `#2`, `#3` and so on.

    Raises:
        UnsupportedSpaceError: For a space with no fixed set of columns, or a dtype that cannot be stored.
    """
    taken: set[str] = set()
    columns = []
    for leaf in space_leaves(space):
        name = _free_name(f"{prefix}.{leaf.name}" if leaf.path else prefix, taken)
        taken.add(name)
        column = SpaceColumn(name, leaf, is_stored(leaf))
        column.field()  # A dtype that cannot be stored is refused here, before the first episode.
        columns.append(column)
    return tuple(columns)


def _free_name(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free


def fields(columns: Sequence[SpaceColumn]) -> list[pa.Field]:
    """Return the Arrow fields of the stored columns."""
    return [column.field() for column in columns if column.stored]


def row_bytes(columns: Sequence[SpaceColumn]) -> int:
    """Return the fixed bytes of one row of all columns."""
    return sum(column.leaf.row_bytes for column in columns)
