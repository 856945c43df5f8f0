"""`rollout replay`: which episodes, what is printed, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ran, run_command
from tests.support.runs import run

Rollout = Callable[..., Ran]
OPTIONS: dict[str, Any] = {"sampler": "local", "workers": 1, "seed": 5, "timesteps": 300}


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """A dataset that can be reproduced."""
    run(tmp_path / "out", env="tests.support.envs:ChainEnv", **OPTIONS)
    return str(tmp_path / "out")


@pytest.fixture
def drifting(tmp_path: Path) -> str:
    """A dataset of an environment with running statistics."""
    run(tmp_path / "drift", env="tests.support.irreproducible:normalised", **OPTIONS)
    return str(tmp_path / "drift")


def test_one_episode(rollout: Rollout, dataset: str) -> None:
    """Exit 0, and which episode it was."""
    ran = rollout("replay", dataset, "--episode", "7")
    assert (ran.code, ran.stderr) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert ("identical", dataset) == (rows["replayed"], rows["dataset"])
    assert rows["episode"].startswith("7 (number 7, seed ")


@pytest.mark.parametrize(("flags", "count"), [(["--number", "3"], 1), (["--episodes", "2:6"], 4), (["--all"], None)])
def test_which_episodes(rollout: Rollout, dataset: str, flags: list[str], count: int | None) -> None:
    """By number, by a range of ids, or all of them."""
    document = json.loads(rollout("replay", dataset, *flags, "--json").stdout)
    assert document["identical"] == document["replayed"]
    assert ([], []) == (document["different"], document["notices"])
    assert document["replayed"] == count if count else document["replayed"] > 20


def test_episodes_that_differ(rollout: Rollout, drifting: str) -> None:
    """Exit 6: the first difference with both values, the likely cause, and the others below."""
    ran = rollout("replay", drifting, "--episodes", "20:50")
    assert (ran.code, ran.stdout) == (6, "")
    first, hint, *details = ran.stderr.splitlines()
    assert "30 of 30 episodes" in first
    assert f"episode 20 of {drifting}, is not what is stored: observation at step 0 is [" in first
    assert "running statistics" in hint
    assert 20 == sum(line.startswith("episode ") for line in details)
    assert "and 10 more episodes" == details[-1]


def test_differences_as_json(rollout: Rollout, drifting: str) -> None:
    """One document: what differs, and the error beside it."""
    ran = rollout("replay", drifting, "--episode", "20", "--json")
    document = json.loads(ran.stdout)
    assert (6, "", 6) == (ran.code, ran.stderr, document["error"]["exit_code"])
    (one,) = document["different"]
    first = one["differences"][0]
    assert ("observation", 0) == (first["field"], first["step"])
    assert first["stored"] != first["replayed"]
    assert (1, 0, False) == (document["replayed"], document["identical"], one["identical"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "say which episodes"),
        (["--all", "--episode", "1"], "in one way"),
        (["--episode", "0", "--number", "0"], "in one way"),
        (["--episode", "9999"], "no such episode"),
        (["--number", "9999"], "no such episode"),
        (["--episodes", "9999:10000"], "no such episode"),
        (["--episodes", "5:5"], "A:B"),
        (["--episodes", "x"], "A:B"),
        (["--episode", "-1"], "greater than or equal to 0"),
        (["--episode", "1", "--env-kwargs", "odd"], "key=value"),
    ],
)
def test_episodes_that_cannot_be_meant(rollout: Rollout, dataset: str, flags: list[str], words: str) -> None:
    """Exit 2, before anything is run."""
    ran = rollout("replay", dataset, *flags)
    assert (2, "") == (ran.code, ran.stdout)
    assert words in ran.stderr


def test_what_is_no_dataset(rollout: Rollout, tmp_path: Path) -> None:
    """Exit 5."""
    assert 5 == rollout("replay", str(tmp_path), "--all").code


def test_the_installed_command(dataset: str) -> None:
    """In a process of its own, and quietly, it says nothing of what is identical."""
    assert Ran(0, "", "") == run_command("replay", dataset, "--episode", "0", "--quiet")
