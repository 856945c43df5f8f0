"""Every row of the fault table, as a run of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.running import Row, run_row
from tests.faults.table import TABLE
from tests.helpers.thorough import usually

SLOW = {
    "SIGTERM to all",
    "TMPDIR is long",
    "a few infos of 8 MB",
    "a keyword argument is nan",
    "a reward is nan in NEXT_STEP",
    "a reward is too large",
    "a spec of 100,000 brackets",
    "a worker is stopped for a while",
    "an action overflows its type",
    "an episode takes too long",
    "another run writes there",
    "env closes all files",
    "env hangs at close",
    "env leaves processes behind",
    "half a pickle",
    "local: a BaseException",
    "local: env hangs at close",
    "local: env interrupts at close",
    "local: env leaves at close",
    "local: env raises at close",
    "local: sys.exit(0)",
    "modules of the same names in the folder",
    "nan cannot be clipped",
    "stderr is full, then SIGTERM",
    "the data are removed",
    "the env's module is edited",
    "the folder cannot be made",
    "the folder is removed",
    "the folder is renamed",
    "the folder's name is not UTF-8",
    "the folder's name is too long",
    "the parent is stopped for a while",
    "the terminal is closed",
    "too little memory for an episode",
    "two of them overflow",
    "two signals",
}
"""Rows that take one to ten seconds each, most of them variants of one that runs anyway."""


@pytest.mark.parametrize("row", usually(TABLE, lambda row: row.name not in SLOW), ids=lambda row: row.name)
def test_faults(row: Row, tmp_path: Path) -> None:
    """Exit code, words and dataset are as expected; no process and no temporary file is left; the fault did happen."""
    run_row(row, tmp_path)
