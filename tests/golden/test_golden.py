"""Data of the past is read as it was written, and runs of today give the values of yesterday."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rollout_cli import load
from rollout_cli.cli.app import run
from rollout_cli.dataset.verify import verify_dataset
from tests.golden.make_format3 import COMMAND, EPISODES, FORMAT3
from tests.golden.runs import HASHES, RUNS, run_hashes
from tests.golden.values import value_hashes


def test_a_dataset_of_format_3_has_its_values_verifies_and_is_replayed() -> None:
    """By the command line; the hashes were taken when it was made."""
    assert json.loads(FORMAT3.with_suffix(".json").read_text()) == value_hashes(
        load(FORMAT3).to_episode_batch()
    )
    report = verify_dataset(FORMAT3)
    assert ([], [], EPISODES) == (report.faults, report.notes, report.document()["episodes"])
    assert [0, 0] == [run(["verify", str(FORMAT3)]), run(["replay", str(FORMAT3), "--all"])]


def test_a_dataset_of_format_3_is_resumed(tmp_path: Path) -> None:
    """Its episodes stay, and those that follow are the ones that one longer run collects."""
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(FORMAT3, old)
    more = ["--episodes", str(EPISODES + 8)]
    assert [0, 0] == [run([*COMMAND, str(old), *more, "--resume"]), run([*COMMAND, str(new), *more])]
    assert value_hashes(load(new).to_episode_batch()) == value_hashes(load(old).to_episode_batch())
    assert [] == verify_dataset(old).faults


@pytest.mark.parametrize("name", RUNS)
def test_a_fixed_run_has_the_values_that_it_had(name: str, tmp_path: Path) -> None:
    """Unless a change is meant (see `tests/golden/runs.py`), no rewrite changes data."""
    assert json.loads(HASHES.read_text())[name] == run_hashes(name, tmp_path)
