"""Every row of the fault table, as a run of the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.running import Row, run_row, server
from tests.faults.table import TABLE


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder by which the workers of this process are given their faults."""
    with server(tmp_path_factory.mktemp("shared")) as folder:
        yield folder


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_faults(row: Row, tmp_path: Path, shared: Path) -> None:
    """Exit code, words and dataset are as expected; no process and no temporary file is left; the fault did happen."""
    run_row(row, tmp_path, shared)
