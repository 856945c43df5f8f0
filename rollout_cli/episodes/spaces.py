"""Spaces as trees: Dict and Tuple nodes with named leaves, each of which is stored in one column.

Spaces are also converted to JSON and back, so that readers of a dataset do not need the environment.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from operator import getitem, itemgetter
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.plain import Document, Fields, plain_value
from rollout_cli.errors import DatasetFormatError, UnsupportedSpaceError
from rollout_cli.sources.untrusted import check_size

Array = npt.NDArray[Any]
Tree = Any
"""An array, or a dict or tuple of trees."""
DType = np.dtype[Any]
Shape = tuple[int, ...]
Arrays = Mapping[str, Array]
"""Arrays by name."""
Leaves = tuple[Array, ...]
"""One array per leaf of a space."""
Space = spaces.Space[Any]
LeafPath = tuple[str | int, ...]
LeafKind = Literal["box", "discrete", "multi_discrete", "multi_binary", "text", "sequence"]

_KINDS: tuple[tuple[type[Space], LeafKind], ...] = (
    (spaces.Box, "box"),
    (spaces.Discrete, "discrete"),
    (spaces.MultiDiscrete, "multi_discrete"),
    (spaces.MultiBinary, "multi_binary"),
)
_COLUMN_DTYPES = {"discrete": np.int64, "text": object, "sequence": object}
"""The dtypes of columns that differ from the dtype of the space."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a space, which is stored in one column."""

    path: LeafPath  # Keys (Dict) and positions (Tuple) from the root; empty if the space itself is the leaf.
    kind: LeafKind
    dtype: DType  # Of the column; `object` for strings and for sequences, which are arrays (k, *shape).
    shape: Shape  # Of one sample.
    space: Space

    @property
    def name(self) -> str:
        """The dotted path, such as `camera.0` for `("camera", 0)`; empty for the root."""
        return ".".join(map(str, self.path))

    @property
    def row_bytes(self) -> int:
        """The bytes of one row; 0 for strings and sequences, whose rows differ in size."""
        return 0 if self.dtype == object else self.dtype.itemsize * math.prod(self.shape)

    @property
    def element(self) -> Leaf:
        """The leaf of the elements of a sequence."""
        space: Any = self.space
        return space_leaves(space.feature_space)[0]

    @property
    def bounds(self) -> tuple[Any, Any] | None:
        """The minimum and the maximum of each number of a sample; None for strings and sequences."""
        space: Any = self.space
        if self.kind == "box":
            return space.low, space.high
        if self.kind == "discrete":
            return int(space.start), int(space.start) + int(space.n) - 1
        if self.kind == "multi_discrete":
            return space.start, space.start + space.nvec - 1
        if self.kind == "multi_binary":
            return 0, 1
        return None


def space_leaves(space: Space) -> tuple[Leaf, ...]:
    """Return the leaves of `space` in the order of its tree (Dict keys in the order of the space).

    A custom space of strings, such as MiniGrid's MissionSpace, has the kind `text`, by its dtype. A
    Sequence of Box or Discrete is one leaf.

    Raises:
        UnsupportedSpaceError: The space does not have a fixed number of columns (Graph, OneOf, other
            sequences, unknown spaces), has no leaf, or has a key that is not valid UTF-8.
    """
    leaves = tuple(_leaves(space, ()))
    if not leaves:
        raise UnsupportedSpaceError(
            f"the space {space} is empty, expected at least one leaf",
            code="space-empty",
            hint="wrap the environment so that its spaces have at least one Box, Discrete or other leaf",
        )
    return leaves


def _leaves(space: Space, path: LeafPath) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, child in children:
            if not isinstance(key, str | int):
                raise UnsupportedSpaceError(
                    f"the key {key!r} of a Dict space is a {type(key).__name__}, expected a str or an int",
                    code="space-key",
                    hint="wrap the environment so that the keys of its Dict spaces are strings or integers",
                )
            yield from _leaves(child, (*path, key))
        return
    kind = _kind(space)
    name = ".".join(map(str, path))
    if kind is None:
        location = f" at {name!r}" if path else ""
        raise UnsupportedSpaceError(
            f"a {type(space).__name__} space{location} does not have a fixed number of columns",
            code="space-unsupported",
            hint="wrap the environment so that its spaces are "
            "Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple, or a Sequence of Box or Discrete",
        )
    if not has_utf8(name):
        raise UnsupportedSpaceError(
            f"the key {name!r} is not valid UTF-8 and cannot name a column",
            code="space-key",
            hint="wrap the environment so that the keys of its Dict spaces are valid Unicode",
        )
    yield Leaf(path, kind, np.dtype(_COLUMN_DTYPES.get(kind, space.dtype)), tuple(space.shape or ()), space)


def _kind(space: Space) -> LeafKind | None:
    """Return the kind of a leaf; None for a space without a fixed number of columns."""
    for space_type, kind in _KINDS:
        if isinstance(space, space_type):
            return kind
    if isinstance(space, spaces.Sequence):
        element = space.feature_space
        is_plain = isinstance(element, spaces.Box | spaces.Discrete) and 0 not in (element.shape or ())
        return "sequence" if is_plain else None
    return "text" if np.dtype(space.dtype).kind == "U" else None


def has_utf8(value: str) -> bool:
    """Return True if a string can be encoded as UTF-8, i.e. has no lone surrogates."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def leaf_getter(leaf: Leaf) -> Callable[[Any], Any]:
    """Return the function from a sample of the space to the leaf's value."""
    if len(leaf.path) == 1:
        return itemgetter(leaf.path[0])
    return partial(reduce, getitem, leaf.path)


def unflatten(space: Space, columns: Iterable[Any]) -> Any:
    """Return the tree of `space` (dicts for Dict, tuples for Tuple) with one value per leaf."""
    remaining = iter(columns)
    if isinstance(space, spaces.Dict):
        return {key: unflatten(child, remaining) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(unflatten(child, remaining) for child in space.spaces)
    return next(remaining)


def are_alike(first: Space, second: Space) -> bool:
    """Return True if two spaces are stored identically, such as MultiBinary((3,)) and MultiBinary(3)."""
    return first == second or space_to_json(first) == space_to_json(second)


def differences(name: str, first: Space, second: Space) -> Iterator[tuple[str, Space, Space]]:
    """Yield the parts in which two spaces differ: the part's name and both spaces.

    Dict spaces with the same keys are compared by key. `name` is the name of the complete spaces.
    """
    if isinstance(first, spaces.Dict) and isinstance(second, spaces.Dict) and first.keys() == second.keys():
        for key in first:
            yield from differences(f"{name} {key!r}", first[key], second[key])
    elif not are_alike(first, second):
        yield name, first, second


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` to the leaves of trees with the same structure; only dicts and tuples are nodes."""
    if isinstance(tree, dict):
        return {key: map_tree(function, tree[key], *map(itemgetter(key), others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree of arrays, in the order of the tree."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        return [*chain.from_iterable(map(tree_leaves, tree))]
    return [tree]


def empty_column(leaf: Leaf, rows: int) -> Array:
    """Return a column of zeros or empty strings, shape `(rows, *leaf.shape)`."""
    return np.full((rows, *leaf.shape), "" if leaf.kind == "text" else 0, leaf.dtype)


class SpaceRows:
    """Converts between samples, batches and columns of one space, whose leaves are computed once."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.leaves = space_leaves(space)
        self._getters = tuple(map(leaf_getter, self.leaves))
        self._is_leaf = not self.leaves[0].path

    def columns(self, tree: Any) -> tuple[Any, ...]:
        """Return the value of each leaf of a sample, or of a tree of arrays (n, *shape)."""
        if self._is_leaf:
            return (tree,)
        return tuple(get(tree) for get in self._getters)

    def tree(self, columns: Sequence[Any]) -> Any:
        """Return the tree of one value per leaf, the inverse of `columns`."""
        return columns[0] if self._is_leaf else unflatten(self._space, columns)

    def split(self, tree: Any) -> list[Any]:
        """Return the n samples in a tree of arrays (n, *shape), as views."""
        columns = list(map(_rows, self.leaves, self.columns(tree)))
        if self._is_leaf:
            return columns[0]
        return [self.tree(row) for row in zip(*columns, strict=True)]

    def stack(self, samples: Sequence[Any]) -> Any:
        """Return n samples as a tree of arrays (n, *shape), in the dtypes of the leaves."""
        columns = zip(*map(self.columns, samples), strict=True)
        return self.tree(list(map(_stacked, self.leaves, columns)))


def _stacked(leaf: Leaf, samples: Sequence[Any]) -> Array:
    if leaf.kind != "sequence":
        return np.array(samples, leaf.dtype)
    element = leaf.element
    return np.fromiter(
        (np.array(sample, element.dtype).reshape(-1, *element.shape) for sample in samples), object
    )


def _rows(leaf: Leaf, column: Any) -> list[Any]:
    if leaf.kind == "discrete" and isinstance(column, np.ndarray):
        return list(column.tolist())  # Python integers are created several times as fast as numpy integers.
    if leaf.kind == "box" and not leaf.shape and not isinstance(column, list | tuple):
        return [column[row, ...] for row in range(len(column))]  # Samples of a 0-d Box are arrays.
    if isinstance(leaf.space, spaces.Sequence) and not leaf.space.stack:
        return list(map(tuple, column))
    return list(column)


def count_rows(tree: Any) -> int:
    """Return the number of rows of a tree of arrays (n, *shape)."""
    return len(tree_leaves(tree)[0])


# A space as JSON, and back.


def space_to_json(space: Space) -> Fields:  # noqa: PLR0911 - one for each kind of space
    """Return `space` as JSON, without seeds; raise UnsupportedSpaceError if it cannot be stored."""
    match space:
        case spaces.Dict():
            # Pairs keep the order of keys, and integer keys.
            return {
                "type": "Dict",
                "spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()],
            }
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
        case spaces.Box():
            return {
                "type": "Box",
                "dtype": np.dtype(space.dtype).str,
                "shape": list(space.shape),
                "low": _bound(space.low),
                "high": _bound(space.high),
            }
        case spaces.Discrete():
            return {
                "type": "Discrete",
                "n": int(space.n),
                "start": int(space.start),
                "dtype": np.dtype(space.dtype).name,
            }
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "shape": list(space.shape),
                "dtype": np.dtype(space.dtype).name,
            }
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Sequence():
            space_leaves(space)
            feature = space_to_json(space.feature_space)
            return {"type": "Sequence", "feature_space": feature, "stack": space.stack}
        case spaces.Text():
            document: Fields = {
                "type": "Text",
                "min_length": space.min_length,
                "max_length": space.max_length,
                "charset": "".join(sorted(space.character_set)),
            }
            if isinstance(space, _OwnText):
                document["class"] = space.own_class
            return document
        case _:
            # A custom space of strings, such as MiniGrid's, is read back as Text of any length. `space_leaves`
            # raises for all other spaces.
            space_leaves(space)
            return {
                "type": "Text",
                "min_length": 0,
                "max_length": 1 << 31,
                "charset": "".join(sorted(string.printable)),
                "class": f"{type(space).__module__}.{type(space).__qualname__}",
            }


def _bound(bound: Array) -> Any:
    """Return a bound as one number if all its values are equal, as for images, else as nested lists."""
    is_one = bound.size and (bound == bound.flat[0]).all()
    return plain_value(bound.flat[0] if is_one else bound)


def space_from_json(document: Document) -> Space:
    """Return the space of a `space_to_json` document; raise DatasetFormatError if the document is invalid."""
    try:
        # A Box has several arrays of this size, and its constructor creates more.
        check_size("a space of info.json", 64 * _n_elements(document))
        return _build(document)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError) as error:
        raise DatasetFormatError(
            f"gymnasium {gymnasium.__version__} cannot build a space described in info.json: {error!r}",
            code="info-features",
            hint="install the gymnasium version that info.json names, or restore meta/info.json from a copy",
        ) from error


def _n_elements(document: Any) -> int:
    """Return the number of elements of a described space, including nested spaces."""
    if isinstance(document, dict):
        return math.prod(document.get("shape") or ()) + _n_elements(document.get("spaces"))
    return sum(map(_n_elements, document)) if isinstance(document, list) else 0


def _build(document: Document) -> Space:  # noqa: PLR0911 - one for each kind of space
    kind: Any = np.dtype(document.get("dtype")).type
    match document["type"]:
        case "Dict":
            return spaces.Dict([(key, _build(child)) for key, child in document["spaces"]])
        case "Tuple":
            return spaces.Tuple([_build(child) for child in document["spaces"]])
        case "Box":
            low = _values(document, "low", kind)
            high = _values(document, "high", kind)
            return spaces.Box(low, high, shape=document["shape"], dtype=kind)
        case "Discrete":
            # Before gymnasium 1.2.2 a Discrete has no argument dtype; all are int64.
            dtype = {} if kind is np.int64 else {"dtype": kind}
            return spaces.Discrete(document["n"], start=document["start"], **dtype)
        case "MultiDiscrete":
            start = _values(document, "start", kind)
            return spaces.MultiDiscrete(_values(document, "nvec", kind), dtype=kind, start=start)
        case "MultiBinary":
            return spaces.MultiBinary(
                document["shape"][0] if len(document["shape"]) == 1 else document["shape"]
            )
        case "Sequence":
            return spaces.Sequence(space_from_json(document["feature_space"]), stack=document["stack"])
        case "Text":
            space_type = _OwnText if "class" in document else spaces.Text
            space = space_type(
                document["max_length"], min_length=document["min_length"], charset=document["charset"]
            )
            if isinstance(space, _OwnText):
                space.own_class = document["class"]
            return space
        case _:
            raise ValueError(document["type"])


class _OwnText(spaces.Text):
    """A custom space of strings, read back with the name of its class, so that its JSON stays the same."""

    own_class = ""

    def contains(self, x: Any) -> bool:  # noqa: ARG002
        """Return True for all values: only the original class could decide."""
        return True


def _values(document: Document, name: str, kind: Any) -> Array:
    values = document[name]
    array = np.array(values, object).astype(kind)  # Via objects, because infinite bounds are strings.
    return array.reshape(document["shape"]) if isinstance(values, list) else np.full(document["shape"], array)
