"""What tests of the workers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_cli.workers import block_recorder
from tests.support.setups import Diary


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so short that nearly every episode is carried from one to the next."""
    monkeypatch.setattr(block_recorder, "BLOCK_STEPS", 5)


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary")
