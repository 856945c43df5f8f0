"""DuckDB, by a query of the files."""

from __future__ import annotations

from pathlib import Path

import duckdb
from columns import Columns, check_columns
from values import run


def read(folder: Path) -> Columns:
    query = duckdb.sql(f"select * from '{folder}/**/*.parquet'")
    return dict(zip(query.columns, zip(*query.fetchall(), strict=True), strict=True))


run(lambda dataset, _: check_columns(dataset, read), "duckdb")
