"""Each sample configuration runs as its own comment says, and gives the dataset that it is there to show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_cli
from tests.helpers.processes import ROOT, rollout

SAMPLES = sorted((ROOT / "sample_configs").glob("*.toml"))


def run_sample(name: str, output: Path, *more: str) -> Mapping[str, Any]:
    """Run the command in the file's comment and `more`, from the folder above, with its dataset elsewhere."""
    path = ROOT / "sample_configs" / f"{name}.toml"
    stated = re.search(r"^#   rollout (.+)$", path.read_text(), re.MULTILINE)
    assert stated, f"{path} does not say how it is run"
    arguments = stated[1].split()
    assert ["--config", f"sample_configs/{name}.toml"] == arguments[-2:]
    ran = rollout(*arguments, "--output", output, "--json", *more, cwd=ROOT)
    result: Mapping[str, Any] = json.loads(ran.stdout)
    return result


def batch(output: Path) -> Any:
    return rollout_cli.load(output).to_episode_batch()


def test_all_are_tested() -> None:
    """No sample is without its test below."""
    expected = ["cartpole_smoke", "custom_env", "exact", "image_env", "offline_rl_pendulum", "rl2"]
    assert expected == [path.stem for path in SAMPLES]


def test_cartpole_smoke(tmp_path: Path) -> None:
    """The lengths sum to the steps asked for, and would not without the last episode."""
    result = run_sample("cartpole_smoke", tmp_path / "out")
    lengths = rollout_cli.load(tmp_path / "out").episodes["length"].to_numpy()
    assert lengths.sum() == result["steps"] >= 2000 > lengths[:-1].sum()


def test_offline_rl_pendulum(tmp_path: Path) -> None:
    """Transitions have their next observations, the controller is good, and it explores differently each episode."""
    result = run_sample("offline_rl_pendulum", tmp_path / "out")
    dataset = rollout_cli.load(tmp_path / "out")
    assert (50, 10_000) == (result["episodes"], result["steps"])
    assert result["mean_return"] > -300
    assert {"next_observation", "agent_info.torque"} <= dataset.info["features"].keys()
    assert len({float(episode.actions[-1, 0]) for episode in dataset}) > 25


def test_exact(tmp_path: Path) -> None:
    """Three workers give five episodes each, in worker order."""
    run_sample("exact", tmp_path / "out")
    episodes = rollout_cli.load(tmp_path / "out").episodes
    assert [0] * 5 + [1] * 5 + [2] * 5 == episodes["worker"].to_pylist()
    assert max(episodes["length"].to_pylist()) <= 100


def test_custom_env(tmp_path: Path) -> None:
    """The environment is found below the working folder, gets its argument, and its Dict becomes columns."""
    run_sample("custom_env", tmp_path / "out")
    found = batch(tmp_path / "out")
    assert (200, 5, 60) == (len(found.lengths), found.observations["agent"].max(), max(found.lengths))
    assert np.array_equal(found.env_infos["distance"] == 0, found.rewards == 1.0)


def test_image_env(tmp_path: Path) -> None:
    """Images come back as they were."""
    run_sample("image_env", tmp_path / "out")
    found = batch(tmp_path / "out")
    assert (32, 32, 3) == found.observations.shape[1:]
    assert (found.observations[:, :-1].max(axis=(1, 2, 3)) == 255).all()


def test_rl2(tmp_path: Path) -> None:
    """Each trial has one task, which the policy has learnt by its second episode."""
    run_sample("rl2", tmp_path / "out")
    tasks = batch(tmp_path / "out").episode_infos["task"].reshape(20, 4)
    assert (tasks == tasks[:, :1]).all()
    assert {0, 1, 2} == set(tasks[:, 0].tolist())
    returns = rollout_cli.load(tmp_path / "out").episodes["return"].to_numpy().reshape(20, 4)
    assert (returns[:, 1:] == 3.0).all()


def test_arguments_of_the_worker_class(tmp_path: Path) -> None:
    """They reach the workers from the command line too, over those of the file, and are recorded."""
    run_sample("rl2", tmp_path / "out", "--worker-args", "episodes_per_trial=2")
    tasks = batch(tmp_path / "out").episode_infos["task"].reshape(40, 2)
    assert (tasks == tasks[:, :1]).all()
    assert (tasks[0::2] != tasks[1::2]).any()
    recorded = rollout_cli.load(tmp_path / "out").info["collector"]["worker_args"]
    assert {"episodes_per_trial": 2} == recorded


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: str(path.stem))
def test_the_command_is_in_the_file(path: Path, tmp_path: Path) -> None:
    """A file that is used with the other command says which one it is for."""
    command = "exact" if 'command = "collect"' in path.read_text() else "collect"
    ran = rollout(command, "--config", path, "--output", tmp_path / "out", code=2)
    assert f"not for `rollout {command}`" in ran.stderr
    assert not (tmp_path / "out").exists()
