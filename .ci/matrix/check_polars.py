"""Polars, by its `scan_parquet`."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from columns import Columns, check_columns
from values import run


def read(folder: Path) -> Columns:
    frame = pl.scan_parquet(folder / "**" / "*.parquet").collect()
    return {column.name: column.to_numpy() for column in frame}


run(lambda dataset, _: check_columns(dataset, read), "polars")
