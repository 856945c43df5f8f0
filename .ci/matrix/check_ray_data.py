"""Ray Data, by its `read_parquet`."""

from __future__ import annotations

from pathlib import Path

import ray
from columns import Columns, check_columns
from values import run


def read(folder: Path) -> Columns:
    rows = ray.data.read_parquet(str(folder)).take_all()
    return {name: [row[name] for row in rows] for name in rows[0]}


def check(dataset: Path, _: Path) -> str:
    ray.init(num_cpus=2, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    return check_columns(dataset, read)


run(check, "ray")
