"""`rollout verify`: its exit codes, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.support.chunks import episode
from tests.support.damage import DATA, set_values
from tests.support.datasets import write_dataset

Rollout = Callable[..., Ran]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A small dataset."""
    write_dataset(tmp_path / "out", [episode(number, 4) for number in range(30)])
    return tmp_path / "out"


def test_a_whole_dataset(rollout: Rollout, dataset: Path) -> None:
    """Exit 0, with what was looked at; notes go to stderr."""
    ran = rollout("verify", str(dataset))
    rows = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert (ran.code, ran.stderr) == (0, "")
    assert rows == {
        "dataset": str(dataset),
        "verified": "everything",
        "status": "complete",
        "episodes": "30",
        "steps": "120",
        "files": "2",
        "notes": "0",
    }
    (dataset / "mine.txt").write_text("mine")
    noted = rollout("verify", str(dataset), "--quick")
    assert (noted.code, noted.stderr) == (0, "note: mine.txt does not belong to the dataset\n")
    assert "metadata and footers" in noted.stdout
    assert rollout("verify", str(dataset), "--quiet") == Ran(0, "", "")


def test_a_broken_dataset(rollout: Rollout, dataset: Path) -> None:
    """Exit 6, with the file, and of its episodes the first twenty."""
    set_values(dataset / DATA, "step", list(range(0, 100, 4)), [9] * 25)
    ran = rollout("verify", str(dataset))
    assert (ran.code, ran.stdout) == (6, "")
    assert "does not hold what it says" in ran.stderr
    named = ", ".join(map(str, range(20)))
    assert f"{DATA}: its steps are not numbered 0, 1, 2, … (episodes {named} and 5 more)" in ran.stderr
    assert f"rollout repair {dataset}" in ran.stderr


def test_json(rollout: Rollout, dataset: Path) -> None:
    """One document, with or without faults; an error is in it as in any other."""
    whole = json.loads(rollout("verify", str(dataset), "--json").stdout)
    assert (whole["ok"], whole["episodes"], whole["faults"]) == (True, 30, [])
    set_values(dataset / DATA, "step", 5, [9])
    ran = rollout("verify", str(dataset), "--json")
    broken = json.loads(ran.stdout)
    assert (ran.code, ran.stderr, broken["ok"]) == (6, "", False)
    assert broken["faults"][0]["file"] == DATA
    assert broken["faults"][0]["episodes"] == [1]
    assert (broken["error"]["class"], broken["error"]["exit_code"]) == ("VerificationError", 6)


@pytest.mark.parametrize("name", ["nothing", "."])
def test_no_dataset(rollout: Rollout, name: str) -> None:
    """As any command says it: exit 5."""
    ran = rollout("verify", name)
    assert (ran.code, ran.stdout) == (5, "")
    assert "is not a dataset" in ran.stderr


def test_repair(rollout: Rollout, dataset: Path) -> None:
    """It tells what it would do, does it, and afterwards the dataset verifies."""
    set_values(dataset / DATA, "step", 41, [9])
    tried = rollout("repair", str(dataset), "--dry-run")
    assert (tried.code, tried.stderr) == (0, "")
    assert "not done (--dry-run)" in tried.stdout
    assert "10 stay, 20 do not" in tried.stdout
    assert rollout("verify", str(dataset)).code == 6
    done = rollout("repair", str(dataset), "--json")
    document = json.loads(done.stdout)
    assert (done.code, done.stderr) == (0, "")
    assert (document["episodes"], document["dropped_episodes"], document["cut"]) == (10, 20, {DATA: 10})
    assert (document["dry_run"], document["changed"], document["status"]) == (False, True, "interrupted")
    assert rollout("verify", str(dataset)).code == 0
    assert "nothing to do" in rollout("repair", str(dataset)).stdout


@pytest.mark.parametrize("name", ["nothing", "."])
def test_repair_of_no_dataset(rollout: Rollout, name: str) -> None:
    """Exit 5, and nothing is made."""
    ran = rollout("repair", name)
    assert (ran.code, ran.stdout) == (5, "")
    assert "is not a dataset" in ran.stderr
    assert not list(Path().iterdir())
