"""Every test of the command line runs in an empty working folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Caller


@pytest.fixture
def rollout(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.chdir(tmp_path)
    return Caller(capsys)
