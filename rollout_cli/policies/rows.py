"""Rows: one environment's share of a batch, taken out of trees of arrays and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.spaces import leaf_getters, space_leaves, tree_leaves, unflatten

Array = npt.NDArray[Any]
Tree = Any


def count_rows(tree: Tree) -> int:
    """Return n of a tree of arrays (n, *shape)."""
    return len(tree if isinstance(tree, np.ndarray) else tree_leaves(tree)[0])


class SpaceRows:
    """Batches of samples of one space, whose leaves are found once: that takes longer than a step of a small batch.

    Attributes:
        leaves: The leaves.

    Args:
        space: Of one row.
    """

    __slots__ = ("_getters", "_is_leaf", "_space", "leaves")

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = space
        self.leaves = space_leaves(space)
        self._getters = leaf_getters(space)
        self._is_leaf = len(self.leaves) == 1 and not self.leaves[0].path

    def columns(self, tree: Tree) -> Sequence[Any]:
        """Return one value a leaf of a sample, or of a tree of arrays (n, *shape)."""
        return (tree,) if self._is_leaf else tuple(get(tree) for get in self._getters)

    def tree(self, columns: Sequence[Any]) -> Tree:
        """Put one value a leaf together again."""
        return columns[0] if self._is_leaf else unflatten(self._space, columns)

    def take(self, tree: Tree) -> list[Any]:
        """Return the n samples in a tree of arrays (n, *shape), as views; a 0-d row stays an array."""
        columns = [rows_of(leaf.kind, column) for leaf, column in zip(self.leaves, self.columns(tree), strict=True)]
        return columns[0] if self._is_leaf else [unflatten(self._space, row) for row in zip(*columns, strict=True)]

    def stack(self, samples: Sequence[Any]) -> Tree:
        """Return n samples as a tree of arrays (n, *shape), in the dtypes of the leaves."""
        columns = zip(*(self.columns(sample) for sample in samples), strict=True)
        pairs = zip(self.leaves, columns, strict=True)
        return self.tree([np.array(column, leaf.dtype) for leaf, column in pairs])


def rows_of(kind: str, column: Array) -> list[Any]:
    """Return the rows of one leaf's column; those of a 0-d Box as arrays, since that is what its space contains.

    Those of a Discrete are Python's integers, which are made several times as fast as numpy's.
    """
    if kind == "discrete":
        numbers: list[Any] = column.tolist()
        return numbers
    if kind == "box" and column.ndim == 1:
        return [column[row, ...] for row in range(len(column))]
    return list(column)


def stack_samples(space: spaces.Space[Any], samples: Sequence[Any]) -> Tree:
    """Return n samples of `space` as a tree of arrays (n, *shape), as `SpaceRows.stack` does."""
    return SpaceRows(space).stack(samples)


_MISSING: Any = object()


def stack_infos(infos: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """Return n info dictionaries as one array (n, ...) a key; masked where some lack the key.

    Values of one numeric type and shape make an array of it. All others stay the objects they are.
    """
    keys = dict.fromkeys(key for info in infos for key in info)
    return {key: _info_column([info.get(key, _MISSING) for info in infos]) for key in keys}


def _info_column(values: list[Any]) -> Array:
    present = [value for value in values if value is not _MISSING]
    column = _typed_column(present)
    if len(present) == len(values):
        return column
    missing = np.array([value is _MISSING for value in values])
    whole = np.zeros((len(values), *column.shape[1:]), column.dtype)
    whole[~missing] = column
    mask = np.broadcast_to(missing.reshape(-1, *[1] * (column.ndim - 1)), whole.shape)
    return np.ma.MaskedArray(whole, mask)


def _typed_column(values: list[Any]) -> Array:
    first = values[0]
    if isinstance(first, bool | int | float | np.ndarray | np.generic):
        same = {(type(value), getattr(value, "dtype", None), np.shape(value)) for value in values}
        # Python's integers may be too large for int64; numpy would then choose another type.
        if len(same) == 1 and (type(first) is not int or all(-(2**63) <= value < 2**63 for value in values)):
            return np.array(values)
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


def is_action_and_info(result: Any) -> bool:
    """Return whether `result` has the form (action, info dictionary)."""
    match result:
        case (_, dict()):
            return isinstance(result, tuple)
    return False
