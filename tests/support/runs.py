"""Running collect() in tests, and what to ask of the dataset it leaves."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

from rollout_cli.collect import CollectResult, collect
from rollout_cli.config import CollectConfig
from rollout_cli.dataset import Dataset, load


def run(output: Path, **options: Any) -> Dataset:
    """Collect with `options` into `output` and load the dataset."""
    result: CollectResult = collect(CollectConfig(output=output, **options))
    assert result.status == "complete"
    return load(output)


def data_hashes(path: Path) -> dict[str, str]:
    """Return the hash of every file in `data/`, by its path there."""
    folder = path / "data"
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest() for file in files}


def episodes_by_worker(dataset: Dataset) -> Counter[int]:
    """Return how many episodes each worker ran."""
    return Counter(dataset.episodes["worker"].to_pylist())
