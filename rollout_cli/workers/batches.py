"""Checked arrays and typed columns from the results of vector environments and batched policies for n rows.

gymnasium's vector environments return one info dictionary of arrays (n, ...) for all rows, with a mask `_key`
for each `key` that some rows lack. Policies return arrays, masked arrays if some rows have no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rollout_cli.episodes.infos import InfoColumn, InfoPath, InfoTable, key_text, tabulate
from rollout_cli.episodes.spaces import Array, Leaf
from rollout_cli.workers.checks import BadValueError, as_array, cast_numbers, checked_text, copied, shown

_OBJECTS = "objects"
"""The kind of a column of objects, whose values are classified individually when they are taken."""

_UNSTORABLE = object()
"""Marks a value that will be dropped and counted."""

InfoKey = tuple[InfoPath, str]
"""Path and kind; a path may have several kinds."""

_WIDEST_BYTES = 8
"""Numbers of more bytes are stored as objects."""

_LARGEST_VALUE = 4_096
"""Values of more bytes are stored as objects: a typed column would copy them for every row at every step."""

# -- numbers: unusable values raise BadValueError ------------------------------------------------------------


def leaf_batch(name: str, leaf: Leaf, values: Any, n_rows: int) -> Array:
    """Return a leaf's values in a batch as an array (n, *shape) of its dtype; `name` is a plural noun."""
    if leaf.kind == "text":
        strings = [checked_text("the string of a row", value, leaf.space) for value in values]
        array = np.fromiter(strings, object)
    else:
        array = _as_array(values)
    shape = (n_rows, *leaf.shape)
    where = f" at {leaf.name!r}" if leaf.path else ""
    if array.shape != shape or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        raise BadValueError(
            f"the {name}{where} are {array.dtype}{array.shape}, expected {leaf.dtype}{shape} of {leaf.space}",
            code="batch-shape",
        )
    if array.dtype == leaf.dtype:
        return array
    return cast_numbers(f"the {name}{where}", "have", leaf, array, leaf.dtype)


def reward_batch(rewards: Any, n_rows: int) -> Array:
    """Return the rewards as an array (n,)."""
    array = _as_array(rewards)
    if array.shape != (n_rows,) or array.dtype.kind not in "biuf":
        raise BadValueError(
            f"the rewards are {array.dtype}{array.shape}, expected a number for each of {n_rows} rows",
            f"return a float array of shape ({n_rows},)",
            code="batch-shape",
        )
    return array


def flag_batch(name: str, flags: Any, n_rows: int) -> Array:
    """Return the flags as a bool array (n,); the numbers 0 and 1 are accepted."""
    array = _as_array(flags)
    is_bool = array.dtype == bool or (array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all())
    if array.shape != (n_rows,) or not is_bool:
        raise BadValueError(
            f"{name} is {array.dtype}{array.shape}, expected a bool for each of {n_rows} rows",
            f"return a bool array of shape ({n_rows},)",
            code="batch-shape",
        )
    return array.astype(bool, copy=False)


def row_mask(rows: Sequence[int] | Array, n_rows: int) -> Array:
    """Return row numbers as a mask, bool (n,)."""
    mask = np.zeros(n_rows, bool)
    mask[rows] = True
    return mask


def _as_array(values: Any) -> Array:
    try:
        array: Array = as_array(values)
        return array if array.flags.writeable else array.copy()  # JAX arrays are read-only.
    except Exception as error:  # Arrays of other libraries may raise anything.
        raise BadValueError(
            f"the value {shown(values)} cannot be converted to an array",
            "return a numpy array with one entry per row",
            code="batch-shape",
        ) from error


# -- infos ---------------------------------------------------------------------------------------------------


def batch_columns(
    infos: Any, n_rows: int, path: InfoPath = ()
) -> Iterator[tuple[InfoKey, Array, Array | None]]:
    """Yield the columns of a batch's infos: key, values (n, ...), and a mask of rows (n,), None for all.

    Raises:
        BadValueError: If the infos are not a dictionary, or a value does not have one entry per row.
    """
    if not isinstance(infos, Mapping):
        raise BadValueError(
            f"expected a dictionary of infos, got {shown(infos)}",
            "return {} if there are no infos",
            code="info-type",
        )
    for key, value in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in infos:
            continue
        value_path = (*path, key_text(key))
        mask = infos.get(f"_{key}")
        if mask is not None:
            mask = np.asarray(mask, bool)
        if isinstance(value, Mapping) and value:
            for inner, values, inner_mask in batch_columns(value, n_rows, value_path):
                # gymnasium puts masks into nested dictionaries; without one, the mask of the parent holds.
                yield inner, values, mask if inner_mask is None else inner_mask
            continue
        if isinstance(value, np.ma.MaskedArray):
            is_hidden = np.ma.getmaskarray(value).reshape(len(value), -1)
            mask = np.asarray(~is_hidden.all(axis=1))
            # Masked elements are not values, but a plain array would include them.
            if (is_hidden.any(axis=1) & mask).any():
                value = list(value)  # noqa: PLW2901  Some elements are masked: store objects.
        yield _column(value_path, value, mask, n_rows)


def _column(
    path: InfoPath, value: Any, mask: Array | None, n_rows: int
) -> tuple[InfoKey, Array, Array | None]:
    try:
        if hasattr(value, "__array__") and np.ndim(value) > 0:
            values = np.asarray(value)
        else:
            # A value without one entry per row applies to every row.
            if not (isinstance(value, list | tuple) and len(value) == n_rows):
                value = [value] * n_rows
            # `np.array` would stack arrays of equal shape into rows of numbers.
            values = np.fromiter(value, object)
    except Exception:  # noqa: BLE001  Arrays of other libraries (tensors with gradients) may raise anything.
        values = np.full(n_rows, _UNSTORABLE)
    for name, array in (("info", values), ("mask of info", mask)):
        if array is not None and array.shape[:1] != (n_rows,):
            raise BadValueError(
                f"the {name} {'.'.join(path)!r} is {array.dtype}{array.shape}, "
                f"expected an entry for each of {n_rows} rows",
                f"return arrays whose first axis has length {n_rows}",
                code="batch-shape",
            )
    kind = _kind(values)
    if kind == _OBJECTS:
        copies: list[Any] = [None] * n_rows
        for row, value in enumerate(values):
            if mask is None or mask[row]:
                copies[row] = copied(value)
        values = np.fromiter(copies, object)
    return (path, kind), values, mask


def _kind(values: Array) -> str:
    row_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:]))
    if (
        values.dtype.kind not in "biuf"
        or values.dtype.itemsize > _WIDEST_BYTES
        or not 0 < row_bytes <= _LARGEST_VALUE
    ):
        return _OBJECTS
    name = values.dtype.newbyteorder("=").name
    if values.ndim == 1:
        return name
    return f"{name}[{','.join(map(str, values.shape[1:]))}]"


def infos_of_rows(infos: Any, rows: list[int], n_rows: int) -> list[dict[Any, Any]] | None:
    """Return the info dictionaries of k rows of a batch, or None if the batch has no infos."""
    if not infos:
        return None
    row_infos: list[dict[Any, Any]] = [{} for _ in rows]
    for (path, _), values, mask in batch_columns(infos, n_rows):
        # Copied once for all rows: the environment or policy may overwrite the array.
        for info, row, value in zip(row_infos, rows, values[rows], strict=True):
            if mask is None or mask[row]:
                _put(info, path, value)
    return row_infos


def info_table(n_rows: int, columns: Mapping[InfoKey, tuple[Array, Array]]) -> InfoTable:
    """Return a table of columns, which are pairs of values (T, ...) and a mask of rows with a value (T,)."""
    typed: list[InfoColumn] = []
    others = InfoTable(n_rows)
    # Objects may include numbers that other steps returned as an array: both belong in one column.
    object_paths = {path for (path, kind), (_, mask) in columns.items() if kind == _OBJECTS and mask.any()}
    infos: list[dict[str, Any]] = []
    if object_paths:
        infos = [{} for _ in range(n_rows)]
    for (path, kind), (values, mask) in columns.items():
        rows = np.flatnonzero(mask)
        if path in object_paths:
            for row in rows.tolist():
                _put(infos[row], path, values[row])
        elif len(rows) == n_rows:
            typed.append(InfoColumn(path, kind, None, values))
        elif len(rows):
            typed.append(InfoColumn(path, kind, rows, values[rows]))
    if object_paths:
        others = tabulate(infos)
    return InfoTable(n_rows, (*typed, *others.columns), others.dropped_rows)


def _put(info: dict[str, Any], path: InfoPath, value: Any) -> None:
    for name in path[:-1]:
        info = info.setdefault(name, {})
    info[path[-1]] = value
