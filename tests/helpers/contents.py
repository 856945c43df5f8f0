"""Columns and tables as plain values that compare: dtype, shape and every value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable

_TUPLES = ("observations", "actions", "last_observations")
_TABLES = ("env_infos", "agent_infos", "episode_infos")
_ARRAYS = ("numbers", "seeds", "lengths", "terminated", "truncated", "workers", "wall_times", "rewards")


def array_contents(values: npt.NDArray[Any]) -> Any:
    """Return dtype, shape, and the values as text, in which NaN equals NaN and a masked value is no number."""
    kind = "masked" if isinstance(values, np.ma.MaskedArray) else "plain"
    return kind, values.dtype, values.shape, repr(values.tolist())


def table_contents(table: InfoTable) -> Any:
    """Return rows, columns and counts of a table."""
    columns = [(c.path, c.kind, c.row_numbers().tolist(), array_contents(c.values)) for c in table.columns]
    return table.n_rows, columns, dict(table.dropped)


def row_dicts(table: InfoTable) -> list[dict[str, Any]]:
    """Return one flat dictionary a row, keys dotted."""
    out: list[dict[str, Any]] = [{} for _ in range(table.n_rows)]
    for column in table.columns:
        for row, value in column.items():
            out[row][".".join(column.path)] = value
    return out


def chunk_contents(chunk: Chunk) -> dict[str, Any]:
    """Return every field of a chunk."""
    return {
        **{name: array_contents(getattr(chunk, name)) for name in _ARRAYS},
        **{name: [array_contents(column) for column in getattr(chunk, name)] for name in _TUPLES},
        **{name: table_contents(getattr(chunk, name)) for name in _TABLES},
    }
