"""Which type an info column gets, and which values fit into it: decided by values, never by how they were grouped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.infos import JSON, STRING, kind_type

Array = npt.NDArray[Any]

_INTEGERS = "iu"
_LIMIT = 2.0**63


def choose_kind(kinds: Mapping[str, bool]) -> str | None:
    """Return the kind of the column for values of all `kinds` at one path; None where they have none in common.

    JSON values never have a column, so they have no say. Integers and floats of one shape join in the widest of their
    sort; both together in float64, if every integer is exact in it.

    Args:
        kinds: The kinds met, and whether all values of each are exact as float64.
    """
    typed = [kind for kind in kinds if kind != JSON]
    if len(typed) <= 1:
        return typed[0] if typed else None
    if STRING in typed:
        return None
    types = [kind_type(kind) for kind in typed]
    if len({shape for _, shape in types}) > 1:
        return None
    dtype = _common_dtype([dtype for dtype, _ in types], exact=all(kinds[kind] for kind in typed))
    return None if dtype is None else dtype.name + typed[0].removeprefix(types[0][0].name)


def _common_dtype(dtypes: list[np.dtype[Any]], *, exact: bool) -> np.dtype[Any] | None:
    sorts = {dtype.kind for dtype in dtypes}
    if sorts == {"f"}:
        return np.result_type(*dtypes)
    if sorts <= set(_INTEGERS):
        joined = np.result_type(*dtypes)
        return joined if joined.kind in _INTEGERS else None
    if "b" in sorts or not exact:
        return None
    return np.dtype(np.float64)


def exact_as_float64(values: Array) -> bool:
    """Return whether every number of `values` is the same number as a float64; texts are not."""
    if values.dtype == object:
        return False
    if values.dtype.kind not in _INTEGERS:
        return True
    return bool(fits(values, np.dtype(np.float64)).all())


def fits(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return which rows of `values` (n, ...) are exactly promoted to `dtype`, bool (n,).

    A promotion keeps the sort (an integer stays an integer) or goes from integer to float; all numbers of a row must
    stay the same. A bool is no number.
    """
    same = np.zeros(values.shape, bool)
    if values.dtype == dtype:
        same[:] = True
    elif dtype.kind == "f" and values.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            back = values.astype(dtype).astype(np.float64)
        same = (back == values) | np.isnan(values)
    elif dtype.kind == "f" and values.dtype.kind in _INTEGERS:
        same = _exact_floats(values, dtype)
    elif dtype.kind in _INTEGERS and values.dtype.kind in _INTEGERS:
        limits = np.iinfo(dtype)
        # Python's integers compare exactly with every numpy integer type.
        same = (values >= max(limits.min, int(np.iinfo(values.dtype).min))) & (
            values <= min(limits.max, int(np.iinfo(values.dtype).max))
        )
    return np.asarray(same.reshape(len(values), -1).all(axis=1))


def _exact_floats(values: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        floats = values.astype(dtype).astype(np.float64)
    inside = (floats >= -_LIMIT) & (floats < (_LIMIT if values.dtype.kind == "i" else 2 * _LIMIT))
    back = np.where(inside, floats, 0).astype(values.dtype)
    return np.asarray(inside & (back == values))
