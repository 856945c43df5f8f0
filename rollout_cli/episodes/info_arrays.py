"""Info arrays: the info dictionaries of an EpisodeBatch as one array a key, joined and padded.

An array has one value a row. It is masked where some rows lack a number, and an object array with None where they lack
anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.infos import DENSE_BYTES, all_masked

Array = npt.NDArray[Any]


def concatenate_infos(infos: Sequence[Mapping[str, Array]], sizes: Sequence[int]) -> dict[str, Array]:
    """Join info arrays by key; one that lacks a key, or has it in another type, gives a masked or an object array.

    Args:
        infos: Arrays by key, those of `infos[j]` of length `sizes[j]`.
        sizes: The number of rows of each.
    """
    keys = dict.fromkeys(key for info in infos for key in info)
    return {key: _join([info.get(key) for info in infos], sizes) for key in keys}


def _join(columns: list[Array | None], sizes: Sequence[int]) -> Array:
    known = [column for column in columns if column is not None]
    first = known[0]
    is_one_type = all(column.dtype == first.dtype and column.shape[1:] == first.shape[1:] for column in known)
    is_too_sparse = len(known) < len(columns) and sum(sizes) * first[:1].nbytes > DENSE_BYTES
    if not is_one_type or first.dtype == object or is_too_sparse:
        return np.concatenate([_objects(column, size) for column, size in zip(columns, sizes, strict=True)])
    if len(known) == len(columns) and not any(isinstance(column, np.ma.MaskedArray) for column in known):
        return np.concatenate(known)
    filled = [
        all_masked((size, *first.shape[1:]), first.dtype) if column is None else column
        for column, size in zip(columns, sizes, strict=True)
    ]
    return np.ma.MaskedArray(
        np.concatenate([np.ma.getdata(column) for column in filled]),
        np.concatenate([np.ma.getmaskarray(column) for column in filled]),
    )


def _objects(column: Array | None, size: int) -> Array:
    out = np.full(size, None, dtype=object)
    if column is not None:
        data, lacks = np.ma.getdata(column), np.ma.getmaskarray(column).reshape(size, -1).any(axis=1)
        for row in np.flatnonzero(~lacks):
            out[row] = data[row]
    return out


def pad_info(values: Array, valids: Array) -> Array:
    """Return flat info values (T, ...) as rows of episodes (N, longest episode, ...), where `valids` is true.

    Padding is zero; None in an object array; masked in a masked one.
    """
    shape = (*valids.shape, *values.shape[1:])
    if values.dtype == object:
        out: Array = np.full(shape, None, dtype=object)
    elif isinstance(values, np.ma.MaskedArray):
        out = all_masked(shape, values.dtype)
    else:
        out = np.zeros(shape, values.dtype)
    out[valids] = values
    return out
