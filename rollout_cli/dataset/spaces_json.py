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


def space_to_json(space: Space) -> dict[str, Any]:
    """Describe `space` as JSON: its type, bounds, dtype and shape, without seeds.

    Raises:
        UnsupportedSpaceError: For a space that has no fixed set of columns.
    """
    out: dict[str, Any]
    match space:
        case spaces.Dict():
            # Pairs, because keys keep their order and may be integers.
            out = {"type": "Dict", "spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()]}
        case spaces.Tuple():
            out = {"type": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
        case spaces.Box():
            shape, dtype = list(space.shape), np.dtype(space.dtype).str
            out = {"type": "Box", "dtype": dtype, "shape": shape, "low": _bound(space.low), "high": _bound(space.high)}
        case spaces.Discrete():
            dtype = np.dtype(space.dtype).name
            out = {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
        case spaces.MultiDiscrete():
            numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "shape": list(space.shape)}
            out = {"type": "MultiDiscrete", **numbers, "dtype": np.dtype(space.dtype).name}
        case spaces.MultiBinary():
            out = {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Text():
            charset = "".join(sorted(space.character_set))
            limits = {"min_length": space.min_length, "max_length": space.max_length, "charset": charset}
            out = {"type": "Text", **limits} | ({"class": space.own_class} if isinstance(space, _OwnText) else {})
        case _ if [leaf.kind for leaf in space_leaves(space)] == ["text"]:
            # A space of the environment's own, such as MiniGrid's missions: it comes back as texts of any length.
            limits = {"min_length": 0, "max_length": 1 << 31, "charset": "".join(sorted(string.printable))}
            out = {"type": "Text", **limits, "class": f"{type(space).__module__}.{type(space).__qualname__}"}
        case _:
            raise UnsupportedSpaceError(f"a {type(space).__name__} space has no fixed set of columns")
    return out


def _bound(bound: Array) -> Any:
    """Return a bound as one number where all its values are equal (an image's are), else as nested lists."""
    is_uniform = bound.size and (bound == bound.flat[0]).all()
    return _with_texts(bound.flat[0].item() if is_uniform else bound.tolist())


def _with_texts(values: Any) -> Any:
    if isinstance(values, list):
        return [_with_texts(value) for value in values]
    return values if math.isfinite(values) else str(values)  # JSON has no infinity.


def space_from_json(document: Mapping[str, Any]) -> Space:
    """Build the space that `space_to_json` described.

    Raises:
        DatasetFormatError: If the description is not one of ours.
    """
    try:
        return _build(document)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise DatasetFormatError(f"the description of a space cannot be read: {error!r}") from error


def _build(of: Mapping[str, Any]) -> Space:
    space: Space
    match of["type"]:
        case "Dict":
            space = spaces.Dict([(key, space_from_json(child)) for key, child in of["spaces"]])
        case "Tuple":
            space = spaces.Tuple([space_from_json(child) for child in of["spaces"]])
        case "Box":
            dtype, shape = np.dtype(of["dtype"]), tuple(of["shape"])
            low, high = (_values(of[name], dtype, shape) for name in ("low", "high"))
            space = spaces.Box(low, high, shape=shape, dtype=dtype.type)
        case "Discrete":
            space = spaces.Discrete(of["n"], start=of["start"], dtype=np.dtype(of["dtype"]).type)
        case "MultiDiscrete":
            dtype, shape = np.dtype(of["dtype"]), tuple(of["shape"])
            nvec, start = (np.array(of[name], dtype=dtype).reshape(shape) for name in ("nvec", "start"))
            space = spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
        case "MultiBinary":
            space = spaces.MultiBinary(of["shape"][0] if len(of["shape"]) == 1 else of["shape"])
        case "Text":
            kind = _OwnText if "class" in of else spaces.Text
            space = kind(of["max_length"], min_length=of["min_length"], charset=of["charset"])
            if isinstance(space, _OwnText):
                space.own_class = of["class"]
        case _:
            raise ValueError(of["type"])
    return space


class _OwnText(spaces.Text):
    """Texts of a space of the environment's own, read back with the name of its class, to be described alike."""

    own_class = ""


def _values(bound: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    def parsed(value: Any) -> Any:
        if isinstance(value, list):
            return [parsed(one) for one in value]
        return float(value) if isinstance(value, str) else value

    values = np.array(parsed(bound), dtype=dtype)
    return values.reshape(shape) if isinstance(bound, list) else np.full(shape, values, dtype=dtype)
