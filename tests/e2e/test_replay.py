"""Stored episodes are run again from what a dataset says of itself, and come out the same; where not, it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from tests.helpers.damage import set_values
from tests.helpers.datasets import episodes_of, info_of, source_of, steps_of
from tests.helpers.policies import OwnNoisePolicy
from tests.helpers.processes import ROOT, called, rollout
from tests.helpers.thorough import usually

ENV = ("--env", "tests.helpers.envs:FaultyEnv")
POLICY = "tests.helpers.policies:"
LOCAL = ("--sampler", "local", "--workers", "1", "--seed", "7", "--quiet")

RUNS: dict[str, tuple[str, ...]] = {
    "in processes": ("--timesteps", "200", *ENV, "--workers", "2", "--sampler", "multiprocessing"),
    "own noise": ("--timesteps", "200", *ENV, "--policy", f"{POLICY}OwnNoisePolicy"),
    "global noise": ("--timesteps", "200", *ENV, "--policy", f"{POLICY}GlobalNoisePolicy"),
    "trees": ("--timesteps", "200", *ENV, "--env-kwargs", "space=dict"),
    "images": ("--timesteps", "200", *ENV, "--env-kwargs", "space=image", "--next-observation"),
    "frames": ("--timesteps", "200", "--env", "tests.helpers.envs:stacked"),
    "a later part": ("--episodes", "40:60", *ENV),
    "a limit": ("--timesteps", "200", *ENV, "--env-kwargs", "endless=true", "--max-episode-length", "7"),
    "odd infos": ("--timesteps", "200", *ENV, "--env-kwargs", "what=info keys"),
    "some infos left out": ("--timesteps", "200", *ENV, "--drop-info", "steps"),
    "four rows": (
        "--timesteps",
        "200",
        *ENV,
        "--policy",
        f"{POLICY}CountingPolicy",
        "--envs-per-worker",
        "4",
    ),
    "native": (
        *("--timesteps", "200", "--env", "tests.helpers.envs:vector"),
        *("--vectorization", "native", "--envs-per-worker", "4"),
    ),
}


@pytest.mark.parametrize(
    "kind", usually(RUNS, {"in processes", "global noise", "images", "four rows"}.__contains__)
)
def test_all_episodes_are_identical(tmp_path: Path, kind: str) -> None:
    """Whatever made them."""
    output = tmp_path / "out"
    called("collect", *LOCAL, *RUNS[kind], "--output", output)
    ran = called("replay", "--trust", output, "--all", "--json")
    assert len(episodes_of(output)) == json.loads(ran.stdout)["identical"]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    (tmp_path / "p.pkl").write_bytes(cloudpickle.dumps(OwnNoisePolicy))
    words = ("collect", "--episodes", "12", *ENV, *LOCAL, "--policy", "p.pkl", "--output", "out")
    called(*words, cwd=tmp_path)
    return tmp_path / "out"


def edit_info(dataset: Path, **changes: Any) -> None:
    """Change the record of the run in info.json; a double underscore leads to an inner key."""
    info = info_of(dataset)
    for name, value in changes.items():
        *outer, last = name.split("__")
        inner = info["sources"][0]
        for key in outer:
            inner = inner[key]
        inner[last] = value
    (dataset / "meta" / "info.json").write_text(json.dumps(info))


def test_what_was_collected_on_ray_is_replayed_here(dataset: Path) -> None:
    """The address of its cluster is not asked for."""
    edit_info(dataset, collector__sampler="ray", collector__ray_address="auto")
    called("replay", "--trust", dataset, "--episode", "0", cwd=dataset.parent)


def test_a_changed_value_is_found(dataset: Path) -> None:
    """Exit code 6; field, step and both values are named; other episodes are identical."""
    (path,) = (dataset / "data").rglob("*.parquet")
    row = sum(episodes_of(dataset)["length"].to_pylist()[:3]) + 2
    set_values(path, "reward", row, [np.nextafter(steps_of(dataset)["reward"][row].as_py(), 2)])
    called("replay", "--trust", dataset, "--episode", "2", cwd=dataset.parent)
    ran = called("replay", "--trust", dataset, "--episode", "3", cwd=dataset.parent, code=6)
    assert "reward" in ran.said
    assert "step 2" in ran.said


def test_a_policys_file_must_be_there_and_the_same(dataset: Path) -> None:
    """Missing or of other bytes, nothing of it is loaded: exit code 3; from a new place it serves."""
    path = dataset.parent / "p.pkl"
    data = path.read_bytes()
    path.rename(dataset.parent / "moved.pkl")
    called("replay", "--trust", dataset, "--all", cwd=dataset.parent, code=3)
    called("replay", "--trust", dataset, "--all", "--policy", "moved.pkl", cwd=dataset.parent)
    path.write_bytes(b"this would not load")
    assert "[policy-hash]" in called("replay", "--trust", dataset, "--all", cwd=dataset.parent, code=3).stderr
    path.write_bytes(data)
    called("replay", "--trust", dataset, "--all", cwd=dataset.parent)


def test_other_versions_are_named(dataset: Path) -> None:
    """The episodes are run all the same."""
    edit_info(dataset, versions__numpy="1.0")
    assert (
        "numpy was 1.0" in called("replay", "--trust", dataset, "--episode", "0", cwd=dataset.parent).stderr
    )


@pytest.mark.thorough
def test_a_module_that_was_edited_is_named(tmp_path: Path) -> None:
    """Perhaps only a comment was, so episodes are run all the same."""
    module = tmp_path / "mine.py"
    module.write_text("from tests.helpers.envs import FaultyEnv\n\n\nclass Mine(FaultyEnv):\n    pass\n")
    rollout("collect", "--episodes", "3", "--env", "mine:Mine", *LOCAL, "--output", "out", cwd=tmp_path)
    module.write_text(module.read_text() + "# edited\n")
    assert "changed" in rollout("replay", "--trust", "out", "--all", cwd=tmp_path).stderr


def test_a_dataset_that_does_not_say_what_made_it_is_refused(dataset: Path) -> None:
    """Exit code 5."""
    edit_info(dataset, collector={})
    called("replay", "--trust", dataset, "--episode", "0", cwd=dataset.parent, code=5)


# -- the end-of-run check ----------------------------------------------------------------------------------------------


def verdict(output: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """Collect, and return what the dataset says of being reproducible."""
    called("collect", "--timesteps", "2000", *LOCAL, *words, "--output", output, cwd=ROOT, code=code)
    return dict(source_of(output)["reproducible"])


@pytest.mark.parametrize(
    "more", [(), ("--envs-per-worker", "4"), ("--sampler", "multiprocessing", "--workers", "2")]
)
def test_a_run_checks_that_its_episodes_can_be_repeated(tmp_path: Path, more: tuple[str, ...]) -> None:
    """At least one was run again."""
    found = verdict(tmp_path / "out", *ENV, "--policy", f"{POLICY}OwnNoisePolicy", *more)
    assert "yes" == found["status"], found
    assert found["episodes"]


def test_state_that_is_carried_on_is_found(tmp_path: Path) -> None:
    """`no`, and the first difference; with --require-reproducible it is exit code 3."""
    stateful = (*ENV, "--policy", f"{POLICY}StatefulPolicy")
    found = verdict(tmp_path / "out", *stateful)
    assert "no" == found["status"]
    assert "action" in json.dumps(found)
    called("verify", tmp_path / "out")
    assert "no" == verdict(tmp_path / "required", *stateful, "--require-reproducible", code=3)["status"]
