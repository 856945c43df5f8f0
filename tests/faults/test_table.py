"""Every row of the fault table, as a run of the installed command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.running import Case, check, run_case
from tests.faults.table import TABLE


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_faults(case: Case, tmp_path: Path) -> None:
    """The exit code, the words and the time are as expected, what is left verifies, and no process is left."""
    check(case, run_case(case, tmp_path))


def test_names_are_unique() -> None:
    """A row can be told by its name."""
    assert len(TABLE) == len({case.name for case in TABLE}) >= 60
