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
    "a worker is stopped for a while",
    "an episode takes too long",
    "another run writes there",
    "env closes all files",
    "env hangs at close",
    "env leaves processes behind",
    "local: env hangs at close",
    "stderr is full, then SIGTERM",
    "the data are removed",
    "the env's module is edited",
    "the folder is removed",
    "the folder is renamed",
    "the parent is stopped for a while",
    "the terminal is closed",
    "two of them overflow",
    "two signals",
    "too little memory for an episode",
}
"""Rows that take two to ten seconds each."""


@pytest.mark.parametrize("row", usually(TABLE, lambda row: row.name not in SLOW), ids=lambda row: row.name)
def test_faults(row: Row, tmp_path: Path) -> None:
    """Exit code, words and dataset are as expected; no process and no temporary file is left; the fault did happen."""
    run_row(row, tmp_path)
