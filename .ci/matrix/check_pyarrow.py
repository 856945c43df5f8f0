"""pyarrow, by its `dataset`."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
from columns import Columns, check_columns
from values import run


def read(folder: Path) -> Columns:
    return ds.dataset(folder, format="parquet").to_table().to_pydict()


run(lambda dataset, _: check_columns(dataset, read), "pyarrow")
