"""What the tests of exporters share."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_cli.dataset.store import FileStore


@pytest.fixture(autouse=True)
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here takes the disk's power away: it need not wait for it."""

    def sync(store: FileStore, path: Path) -> None:
        with store.operation("fsync", path):
            assert path.exists()

    monkeypatch.setattr(FileStore, "sync", sync)
