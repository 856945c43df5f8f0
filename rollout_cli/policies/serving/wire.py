"""Messages of policy servers: values as msgpack, with arrays as in the openpi protocol. No pickle.

An array is a map of its dtype, shape and bytes, as `openpi-client` writes it. Tuples, masked arrays, arrays of
objects and graphs, which that protocol lacks, have separate maps; numbers beyond 64 bits are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import PolicyError
from rollout_cli.sources.loading import needing

PROTOCOL = 1
"""Version of the protocol; a client refuses a server with another version."""

ATTRIBUTES = ("row_wise", "row_by_row", "resets", "acts_within_space", "takes_masks")
"""Attributes of an `AdaptedPolicy` that a client copies."""

MAX_BYTES = 1 << 28
"""Maximum bytes of a message, in both directions."""

_PLAIN = "biufSU"  # Kinds of dtypes that are sent as bytes: neither objects, structures, dates nor complex numbers.
_ARRAY = b"__ndarray__"
_NUMBER = b"__npgeneric__"
_TUPLE = b"__tuple__"
_MASKED = b"__masked__"
_OBJECTS = b"__objects__"
_GRAPH = b"__graph__"


class BadMessageError(ValueError):
    """Bytes that are not a message of a policy server."""


def check_packages() -> None:
    """Raise UsageError if a package that servers and clients need is missing."""
    with needing("msgpack websockets", "msgpack"), needing("msgpack websockets", "websockets"):
        import msgpack  # noqa: F401, PLC0415
        import websockets  # noqa: F401, PLC0415


def pack(value: Any) -> bytes:
    """Return a value as a message.

    Raises:
        PolicyError: The value contains an object without a representation, or is too large.
    """
    import msgpack  # noqa: PLC0415 - an optional package: see `check_packages`

    try:
        # strict_types: a tuple must stay a tuple, and a subclass of dict may have more state.
        data: bytes = msgpack.packb(value, default=_encoded, strict_types=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PolicyError(
            f"a value cannot be sent between a worker and a policy server: {error}",
            code="served-value",
            hint="use numbers, strings, arrays, and dicts, lists or tuples of them",
        ) from error
    if len(data) > MAX_BYTES:
        raise PolicyError(
            f"a message to or from a policy server has {len(data):,} bytes, expected at most {MAX_BYTES:,}",
            code="served-size",
            hint="use fewer environments per worker or smaller observations",
        )
    return data


def unpack(data: Any) -> Any:
    """Return the value of a message; arrays are writable copies.

    Raises:
        BadMessageError: The bytes are not a message.
    """
    import msgpack  # noqa: PLC0415 - as above

    try:
        return msgpack.unpackb(data, object_hook=_decoded, strict_map_key=False)
    except Exception as error:  # msgpack raises errors of many kinds, and so do numpy and `_decoded`.
        raise BadMessageError(f"{type(error).__name__}: {error}") from error


def _encoded(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """Return the map for a value that msgpack does not know."""
    match value:
        case np.ndarray():
            return _encoded_array(value)
        case np.generic() if value.dtype.kind in _PLAIN and type(value) is not np.longdouble:
            return {_NUMBER: True, b"data": value.item(), b"dtype": value.dtype.str}
        case GraphInstance():
            return {_GRAPH: list(value)}
        case tuple():
            return {_TUPLE: list(value)}
        case Mapping():
            return dict(value)
        case str():  # A subclass.
            return str(value)
        case _ if not isinstance(value, np.generic) and callable(getattr(value, "__array__", None)):
            return np.asarray(value)  # A tensor, for example.
        case _:
            raise TypeError(f"{value!r:.100} of type {type(value).__name__}")


def _encoded_array(array: Array) -> dict[bytes, Any]:
    if type(array) is not np.ndarray and isinstance(
        array, np.ma.MaskedArray
    ):  # `np.ma` is large: load it if needed.
        return {_MASKED: [np.ma.getdata(array), np.ma.getmaskarray(array)]}
    fields: dict[bytes, Any] = {b"shape": list(array.shape)}
    if array.dtype.kind == "O":
        return {_OBJECTS: array.ravel().tolist(), **fields}
    if array.dtype.kind not in _PLAIN:
        raise TypeError(f"an array of dtype {array.dtype}")
    return {_ARRAY: True, b"data": array.tobytes(), b"dtype": array.dtype.str, **fields}


def _decoded(fields: dict[Any, Any]) -> Any:
    """Return the value of a map that `_encoded` made, or the map itself."""
    for tag, decode in _DECODERS.items():
        if tag in fields:
            return decode(fields)
    return fields


def _array(fields: dict[Any, Any]) -> Any:
    shape = fields[b"shape"]
    if math.prod(shape) * _dtype(fields).itemsize != len(fields[b"data"]):
        raise ValueError(f"{len(fields[b'data'])} bytes for an array of shape {shape}")
    return np.ndarray(shape, _dtype(fields), bytearray(fields[b"data"]))


def _number(fields: dict[Any, Any]) -> Any:
    return _dtype(fields).type(fields[b"data"])


def _dtype(fields: dict[Any, Any]) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(fields[b"dtype"])
    if dtype.kind not in _PLAIN:
        raise ValueError(f"the dtype {dtype} is not supported")
    return dtype


def _objects(fields: dict[Any, Any]) -> Any:
    items = fields[_OBJECTS]
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array.reshape(fields[b"shape"])


_DECODERS: dict[bytes, Callable[[dict[Any, Any]], Any]] = {
    _ARRAY: _array,
    _NUMBER: _number,
    _TUPLE: lambda fields: tuple(fields[_TUPLE]),
    _MASKED: lambda fields: np.ma.MaskedArray(*fields[_MASKED]),
    _OBJECTS: _objects,
    _GRAPH: lambda fields: GraphInstance(*fields[_GRAPH]),
}
