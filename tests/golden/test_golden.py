"""Data of the past is read as it was written, and runs of today give the values of yesterday."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollout_cli
from rollout_cli.dataset.commits import read_committed
from rollout_cli.dataset.repair import repair_dataset
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import DatasetFormatError
from tests.golden.runs import HASHES, RUNS, run_hashes
from tests.golden.values import value_hashes

FORMAT1 = Path(__file__).with_name("format1")
"""Ten episodes made by the first version: Dict and Tuple spaces, a frame stack, an image, texts, infos of all sorts."""


def test_a_dataset_of_the_first_version_has_the_values_that_it_read_itself() -> None:
    """The hashes are of what its own reader gave."""
    expected = json.loads(FORMAT1.with_suffix(".json").read_text())
    dataset = rollout_cli.load(FORMAT1)
    assert expected == value_hashes(dataset.to_episode_batch())
    one_by_one = rollout_cli.EpisodeBatch.concatenate(*(dataset[at].batch for at in range(len(dataset))))
    assert expected == value_hashes(one_by_one)


def test_a_dataset_of_the_first_version_verifies() -> None:
    """With all that it states, and nothing to note."""
    report = verify_dataset(FORMAT1)
    assert ((), ()) == (report.faults, report.notes)
    assert ("complete", 10, 53, 4) == (report.status, report.episodes, report.steps, report.files)


def test_a_dataset_of_the_first_version_is_neither_repaired_nor_resumed() -> None:
    """Both say so; its intact files are still read."""
    with pytest.raises(DatasetFormatError, match="read but not repaired"):
        repair_dataset(FORMAT1)
    with pytest.raises(DatasetFormatError, match="read but not resumed"):
        read_committed(FORMAT1, rollout_cli.load(FORMAT1).info)


@pytest.mark.parametrize("name", RUNS)
def test_a_fixed_run_has_the_values_that_it_had(name: str, tmp_path: Path) -> None:
    """Unless a change is meant (see `tests/golden/runs.py`), no rewrite changes data."""
    assert json.loads(HASHES.read_text())[name] == run_hashes(name, tmp_path)
