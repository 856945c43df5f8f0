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
from rollout_cli.dataset import Dataset
from tests.cli.conftest import ROOT, run_command

SAMPLES = sorted((ROOT / "sample_configs").glob("*.toml"))


def run_sample(name: str, output: Path, *more: str) -> Mapping[str, Any]:
    """Run the command in the file's comment and `more`, from the folder above, with its dataset elsewhere."""
    path = ROOT / "sample_configs" / f"{name}.toml"
    told = re.search(r"^#   rollout (.+)$", path.read_text(), re.MULTILINE)
    assert told, f"{path} does not say how it is run"
    arguments = told[1].split()
    assert arguments[-2:] == ["--config", f"sample_configs/{name}.toml"]
    ran = run_command(*arguments, "--output", str(output), "--json", *more, cwd=ROOT)
    assert ran.code == 0, ran.stderr
    result: Mapping[str, Any] = json.loads(ran.stdout)
    return result


def test_all_are_tested() -> None:
    """No sample is without its test below."""
    assert [path.stem for path in SAMPLES] == sorted(
        ["cartpole_smoke", "custom_env", "exact", "image_env", "offline_rl_pendulum", "rl2"]
    )


def test_cartpole_smoke(tmp_path: Path) -> None:
    """The lengths sum to what was asked for, and would not without the last episode."""
    result = run_sample("cartpole_smoke", tmp_path / "out")
    lengths = rollout_cli.load(tmp_path / "out").episodes["length"].to_numpy()
    assert lengths.sum() == result["steps"] >= 2000 > lengths[:-1].sum()


def test_offline_rl_pendulum(tmp_path: Path) -> None:
    """Transitions have their next observations, the controller is good, and it explores differently each episode."""
    result = run_sample("offline_rl_pendulum", tmp_path / "out")
    dataset = rollout_cli.load(tmp_path / "out")
    assert (result["episodes"], result["steps"]) == (50, 10_000)
    assert result["mean_return"] > -300
    assert "next_observation" in dataset.info["features"]
    assert "agent_info.torque" in dataset.info["features"]
    last_torques = {float(episode.actions[-1, 0]) for episode in dataset}
    assert len(last_torques) > 25


def test_exact(tmp_path: Path) -> None:
    """Three workers give five episodes each, in worker order."""
    run_sample("exact", tmp_path / "out")
    episodes = rollout_cli.load(tmp_path / "out").episodes
    assert episodes["worker"].to_pylist() == [0] * 5 + [1] * 5 + [2] * 5
    assert max(episodes["length"].to_pylist()) <= 100


def test_custom_env(tmp_path: Path) -> None:
    """The environment is found below the working folder, gets its argument, and its Dict becomes columns."""
    run_sample("custom_env", tmp_path / "out")
    batch = whole(rollout_cli.load(tmp_path / "out"))
    assert len(batch.lengths) == 200
    assert batch.observations["agent"].max() == 5
    assert max(batch.lengths) == 60
    assert np.array_equal(batch.env_infos["distance"] == 0, batch.rewards == 1.0)


def test_image_env(tmp_path: Path) -> None:
    """Images come back as they were."""
    run_sample("image_env", tmp_path / "out")
    batch = whole(rollout_cli.load(tmp_path / "out"))
    assert batch.observations.shape[1:] == (32, 32, 3)
    assert (batch.observations[:, :-1].max(axis=(1, 2, 3)) == 255).all()


def test_rl2(tmp_path: Path) -> None:
    """Each trial has one task, which the policy has learnt by its second episode."""
    run_sample("rl2", tmp_path / "out")
    dataset = rollout_cli.load(tmp_path / "out")
    tasks = whole(dataset).episode_infos["task"].reshape(20, 4)
    assert (tasks == tasks[:, :1]).all()
    assert set(tasks[:, 0].tolist()) == {0, 1, 2}
    assert (dataset.episodes["return"].to_numpy().reshape(20, 4)[:, 1:] == 3.0).all()


def test_arguments_of_the_worker_class(tmp_path: Path) -> None:
    """They reach the workers from the command line too, over those of the file, and are recorded."""
    run_sample("rl2", tmp_path / "out", "--worker-args", "episodes_per_trial=2")
    dataset = rollout_cli.load(tmp_path / "out")
    tasks = whole(dataset).episode_infos["task"].reshape(40, 2)
    assert (tasks == tasks[:, :1]).all()
    assert (tasks[0::2] != tasks[1::2]).any()
    assert {"episodes_per_trial": 2} == dataset.info["collector"]["worker_args"]


def whole(dataset: Dataset) -> Any:
    return dataset.to_episode_batch()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: str(path.stem))
def test_the_command_is_in_the_file(path: Path, tmp_path: Path) -> None:
    """A file that is used with the other command says which is right."""
    command = "exact" if 'command = "collect"' in path.read_text() else "collect"
    ran = run_command(command, "--config", str(path), "--output", str(tmp_path / "out"))
    assert ran.code == 2
    assert f"not for `rollout {command}`" in ran.stderr
    assert not (tmp_path / "out").exists()
