"""pandas, by its `read_parquet`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from columns import Columns, check_columns
from values import run


def read(folder: Path) -> Columns:
    frame = pd.read_parquet(folder)
    return {name: frame[name].to_numpy() for name in frame}


run(lambda dataset, _: check_columns(dataset, read), "pandas")
