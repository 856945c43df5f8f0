"""A gymnasium space as JSON, and back, so that a dataset's reader needs no environment."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.plain import plain_value
from rollout_cli.episodes.spaces import Array, Space, space_leaves
from rollout_cli.errors import DatasetFormatError


def space_to_json(space: Space) -> dict[str, Any]:
    """Describe `space` as JSON, without seeds; `UnsupportedSpaceError` if it has no fixed set of columns."""
    out: dict[str, Any]
    match space:
        case spaces.Dict():
            # Pairs, because keys keep their order and may be integers.
            out = {
                "type": "Dict",
                "spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()],
            }
        case spaces.Tuple():
            out = {"type": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
        case spaces.Box():
            out = {
                "type": "Box",
                "dtype": np.dtype(space.dtype).str,
                "shape": list(space.shape),
                "low": _bound(space.low),
                "high": _bound(space.high),
            }
        case spaces.Discrete():
            out = {
                "type": "Discrete",
                "n": int(space.n),
                "start": int(space.start),
                "dtype": np.dtype(space.dtype).name,
            }
        case spaces.MultiDiscrete():
            out = {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "shape": list(space.shape),
                "dtype": np.dtype(space.dtype).name,
            }
        case spaces.MultiBinary():
            out = {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Text():
            out = {
                "type": "Text",
                "min_length": space.min_length,
                "max_length": space.max_length,
                "charset": "".join(sorted(space.character_set)),
            }
            out |= {"class": space.own_class} if isinstance(space, _OwnText) else {}
        case _:
            # All others are refused but texts of the environment's own, as MiniGrid's, which come back of any
            # length.
            space_leaves(space)
            out = {
                "type": "Text",
                "min_length": 0,
                "max_length": 1 << 31,
                "charset": "".join(sorted(string.printable)),
                "class": f"{type(space).__module__}.{type(space).__qualname__}",
            }
    return out


def _bound(bound: Array) -> Any:
    """Return a bound as one number where all its values are equal (an image's are), else as nested lists."""
    is_one = bound.size and (bound == bound.flat[0]).all()
    return plain_value(bound.flat[0] if is_one else bound)


def space_from_json(document: Mapping[str, Any]) -> Space:
    """Build the space that `space_to_json` described; `DatasetFormatError` for any other description."""
    try:
        return _build(document)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError) as error:
        raise DatasetFormatError(
            f"gymnasium {gymnasium.__version__} builds no space as info.json describes it: {error!r}",
            hint="install the gymnasium that info.json names in its versions, "
            "or restore meta/info.json from a copy",
        ) from error


def _build(document: Mapping[str, Any]) -> Space:
    space: Space
    kind: Any = np.dtype(document.get("dtype")).type
    match document["type"]:
        case "Dict":
            space = spaces.Dict([(key, space_from_json(child)) for key, child in document["spaces"]])
        case "Tuple":
            space = spaces.Tuple([space_from_json(child) for child in document["spaces"]])
        case "Box":
            low, high = (_values(document[name], kind, document["shape"]) for name in ("low", "high"))
            space = spaces.Box(low, high, shape=document["shape"], dtype=kind)
        case "Discrete":
            # Before gymnasium 1.2.2 a Discrete takes no dtype, and all are int64.
            dtype = {} if kind is np.int64 else {"dtype": kind}
            space = spaces.Discrete(document["n"], start=document["start"], **dtype)
        case "MultiDiscrete":
            nvec, start = (_values(document[name], kind, document["shape"]) for name in ("nvec", "start"))
            space = spaces.MultiDiscrete(nvec, dtype=kind, start=start)
        case "MultiBinary":
            space = spaces.MultiBinary(
                document["shape"][0] if len(document["shape"]) == 1 else document["shape"]
            )
        case "Text":
            text = _OwnText if "class" in document else spaces.Text
            space = text(
                document["max_length"], min_length=document["min_length"], charset=document["charset"]
            )
            if isinstance(space, _OwnText):
                space.own_class = document["class"]
        case _:
            raise ValueError(document["type"])
    return space


class _OwnText(spaces.Text):
    """Texts of a space of the environment's own, read back with its class's name, to be described alike."""

    own_class = ""


def _values(values: Any, kind: Any, shape: list[int]) -> Array:
    array = np.array(values, object).astype(kind)  # By way of objects, where `inf` is a text.
    return array.reshape(shape) if isinstance(values, list) else np.full(shape, array)
