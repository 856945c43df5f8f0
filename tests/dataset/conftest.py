"""What the tests of the dataset share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fsync check its descriptor alone: no test here cuts the power, and the files of all would wait for a disk."""
    monkeypatch.setattr(os, "fsync", os.fstat)
