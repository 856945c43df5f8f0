"""Every row of the fault table, as a run of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.running import Row, run_row
from tests.faults.table import TABLE


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_faults(row: Row, tmp_path: Path) -> None:
    """Exit code, words and dataset are as expected; no process and no temporary file is left; the fault did happen."""
    run_row(row, tmp_path)
