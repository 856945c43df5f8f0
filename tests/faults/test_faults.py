"""Every row of the fault table, as a run of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.running import Row, run_row
from tests.faults.table import TABLE
from tests.helpers.thorough import usually

SLOW = {
    "SIGTERM to all",
    "a few infos of 8 MB",
    "a keyword argument is nan",
    "an episode takes too long",
    "local: env hangs at close",
    "stderr is full, then SIGTERM",
    "the data are removed",
    "the folder is renamed",
    "the terminal is closed",
    "too little memory for an episode",
}
"""Rows that take two to ten seconds each."""


@pytest.mark.parametrize("row", usually(TABLE, lambda row: row.name not in SLOW), ids=lambda row: row.name)
def test_faults(row: Row, tmp_path: Path) -> None:
    """Exit code, words and dataset are as expected; no process and no temporary file is left; the fault did happen."""
    run_row(row, tmp_path)
