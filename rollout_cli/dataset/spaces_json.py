"""A gymnasium space as JSON, and back, so that a dataset's reader needs no environment."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.spaces import space_leaves
from rollout_cli.errors import DatasetFormatError, UnsupportedSpaceError

Array = npt.NDArray[Any]
Space = spaces.Space[Any]

_LONGEST_TEXT = 1 << 31


def space_to_json(space: Space) -> dict[str, Any]:
    """Describe `space` as JSON: its type, bounds, dtype and shape, without seeds.

    Raises:
        UnsupportedSpaceError: For a space that has no fixed set of columns.
    """
    if isinstance(space, spaces.Dict):
        # Pairs, because keys keep their order and may be integers.
        return {"type": "Dict", "spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
    return _leaf_to_json(space)


def _leaf_to_json(space: Space) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        shape, dtype = list(space.shape), np.dtype(space.dtype).str
        return {"type": "Box", "dtype": dtype, "shape": shape, "low": _bound(space.low), "high": _bound(space.high)}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": _dtype_name(space)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "shape": list(space.shape),
            "dtype": _dtype_name(space),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Text):
        charset = "".join(sorted(space.character_set))
        limits = {"min_length": space.min_length, "max_length": space.max_length, "charset": charset}
        return {"type": "Text", **limits} | ({"class": space.own_class} if isinstance(space, _OwnText) else {})
    if [leaf.kind for leaf in space_leaves(space)] == ["text"]:
        # A space of the environment's own, such as MiniGrid's missions: it comes back as texts of any length.
        limits = {"min_length": 0, "max_length": _LONGEST_TEXT, "charset": "".join(sorted(string.printable))}
        return {"type": "Text", **limits, "class": f"{type(space).__module__}.{type(space).__qualname__}"}
    raise UnsupportedSpaceError(f"a {type(space).__name__} space has no fixed set of columns")


def space_from_json(document: Mapping[str, Any]) -> Space:
    """Build the space that `space_to_json` described.

    Raises:
        DatasetFormatError: If the description is not one of ours.
    """
    try:
        return _BUILDERS[document["type"]](document)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise DatasetFormatError(f"the description of a space cannot be read: {error!r}") from error


def _box(document: Mapping[str, Any]) -> Space:
    dtype, shape = np.dtype(document["dtype"]), tuple(document["shape"])
    low, high = (_values(document[name], dtype, shape) for name in ("low", "high"))
    return spaces.Box(low, high, shape=shape, dtype=dtype.type)


def _discrete(document: Mapping[str, Any]) -> Space:
    return spaces.Discrete(document["n"], start=document["start"], dtype=np.dtype(document["dtype"]).type)


def _multi_discrete(document: Mapping[str, Any]) -> Space:
    dtype, shape = np.dtype(document["dtype"]), tuple(document["shape"])
    nvec, start = (np.array(document[name], dtype=dtype).reshape(shape) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _multi_binary(document: Mapping[str, Any]) -> Space:
    shape = document["shape"]
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


class _OwnText(spaces.Text):
    """Texts of a space of the environment's own, read back with the name of its class, to be described alike."""

    own_class = ""


def _text(document: Mapping[str, Any]) -> Space:
    kind = _OwnText if "class" in document else spaces.Text
    space = kind(document["max_length"], min_length=document["min_length"], charset=document["charset"])
    if isinstance(space, _OwnText):
        space.own_class = document["class"]
    return space


def _dict(document: Mapping[str, Any]) -> Space:
    return spaces.Dict([(key, space_from_json(child)) for key, child in document["spaces"]])


def _tuple(document: Mapping[str, Any]) -> Space:
    return spaces.Tuple([space_from_json(child) for child in document["spaces"]])


_BUILDERS = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Text": _text,
    "Dict": _dict,
    "Tuple": _tuple,
}


def _dtype_name(space: Space) -> str:
    return np.dtype(space.dtype).name


def _bound(bound: Array) -> Any:
    """Return a bound as one number where all its values are equal (an image's are), else as nested lists."""
    if bound.size and (bound == bound.flat[0]).all():
        return _number(bound.flat[0].item())
    return _numbers(bound.tolist())


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else _number(values)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no infinity.


def _values(bound: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if isinstance(bound, list):
        return np.array(_parsed(bound), dtype=dtype).reshape(shape)
    return np.full(shape, _parsed(bound), dtype=dtype)


def _parsed(bound: Any) -> Any:
    if isinstance(bound, list):
        return [_parsed(value) for value in bound]
    return float(bound) if isinstance(bound, str) else bound
