"""Of which episodes of a dataset an EXPRESSION is true: reading the columns that it names."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode_infos
from rollout_cli.dataset.rows import Rows
from rollout_cli.dataset.schema import EPISODE_FIELDS, INFO_PREFIXES, info_columns_of
from rollout_cli.episodes.expression import Expression, of_one_kind

_FACTS = tuple(field.name for field in EPISODE_FIELDS)


def _columns(rows: Rows, names: tuple[str, ...]) -> dict[str, Array]:
    """Return the values of columns, one an episode; of infos of steps, those of the last step."""
    columns: dict[str, Array] = {name: np.ma.asarray(rows.column(name)) for name in names if name in _FACTS}
    typed = info_columns_of(rows.info["features"])
    for prefix in INFO_PREFIXES:
        wanted = {name for name in names if name.startswith(f"{prefix}.")}
        stored = (*sorted(wanted & typed.keys()), f"{prefix}_extra")  # It has values of other types, too.
        if not wanted:
            continue
        table = rows.ends(stored) if prefix == "episode_info" else _last_steps(rows, stored)
        infos = {f"{prefix}.{key}": values for key, values in decode_infos(prefix, table).items()}
        for name in wanted & {*infos, *typed}:
            values = of_one_kind(name, infos.get(name, np.full(len(rows), None, object)))
            columns[name] = np.ma.asarray(values)
    return columns


def _last_steps(rows: Rows, columns: tuple[str, ...]) -> pa.Table:
    """Return the rows of `data` that episodes end with."""
    tables = []
    for block in rows.blocks():
        ends = np.cumsum(block.column("length")) - 1
        tables.append(block.steps(columns).take(pa.array(ends)))
    return pa.concat_tables(tables)


def matching(expression: str, rows: Rows) -> Array:
    """Return of which episodes an expression is true, bool (N,); only columns that it names are read.

    Raises:
        UsageError: If it is not of the language, or names a column that the dataset does not have.
        DatasetFormatError: If the files are damaged.
        StorageError: If they cannot be read.
    """
    parsed = Expression(expression)
    if not len(rows):
        return np.zeros(0, bool)
    columns = _columns(rows, parsed.names)
    for name in parsed.names:
        if name not in columns:
            raise parsed.no_column(name, [*_FACTS, *info_columns_of(rows.info["features"])])
    return parsed.evaluate(columns, len(rows))
