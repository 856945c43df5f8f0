"""Each sample configuration runs as its own comment says, and gives the dataset that it is there to show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_cli
from tests.cli.calling import Caller
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.processes import ROOT, called

Run = Callable[[str, Path], Any]
RECIPES = ("random", "medium", "expert", "medium_expert", "mixed")
SAMPLES = sorted((ROOT / "sample_configs").glob("*.toml"))


@pytest.fixture
def run_sample(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in the file's comment, from the folder above, with its dataset elsewhere."""
    monkeypatch.chdir(ROOT)

    def run(name: str, output: Path) -> Any:
        text = (ROOT / "sample_configs" / f"{name}.toml").read_text()
        stated = re.search(r"^#   rollout (.+)$", text, re.MULTILINE)
        assert stated, f"{name} does not say how it is run"
        words = stated[1].split()
        assert ["--config", f"sample_configs/{name}.toml"] == words[-2:]
        return json.loads(Caller(capsys)(*words, "--output", output, "--json").stdout)

    return run


def batch(output: Path) -> Any:
    return rollout_cli.load(output).to_episode_batch()


def test_all_are_tested() -> None:
    """No sample is without its test below; that of `jax` needs JAX: tests/gallery/test_functional_commands.py."""
    others = [
        "cartpole_smoke",
        "custom_env",
        "exact",
        "image_env",
        "jax",
        "offline_rl_pendulum",
        "policy_process",
    ]
    assert {*others, *(f"recipe_{name}" for name in RECIPES)} == {path.stem for path in SAMPLES}


def test_cartpole_smoke(run_sample: Run, tmp_path: Path) -> None:
    """The lengths sum to the steps asked for, and would not without the last episode."""
    result = run_sample("cartpole_smoke", tmp_path / "out")
    lengths = rollout_cli.load(tmp_path / "out").episodes["length"].to_numpy()
    assert lengths.sum() == result["steps"] >= 2000 > lengths[:-1].sum()


def test_policy_process(run_sample: Run, tmp_path: Path) -> None:
    """It says that its policy ran in one process, and the steps are those of the policy in each worker."""
    result = run_sample("policy_process", tmp_path / "out")
    assert source_of(tmp_path / "out")["collector"]["policy_process"] is True
    plain = ("--policy", "sample_configs.cartpole_policies:Expert", "--output", tmp_path / "plain")
    called("collect", "--timesteps", "2000", "--seed", "0", "--sampler", "local", "--quiet", *plain)
    assert_same_data(tmp_path / "plain", tmp_path / "out")
    assert result["steps"] >= 2000


def test_offline_rl_pendulum(run_sample: Run, tmp_path: Path) -> None:
    """Transitions have their next observations, the controller is good, and it explores differently each episode."""
    result = run_sample("offline_rl_pendulum", tmp_path / "out")
    dataset = rollout_cli.load(tmp_path / "out")
    assert (50, 10_000) == (result["episodes"], result["steps"])
    assert result["mean_return"] > -300
    assert {"next_observation", "agent_info.torque"} <= dataset.info["features"].keys()
    assert len({float(episode.actions[-1, 0]) for episode in dataset}) > 25


def test_exact(run_sample: Run, tmp_path: Path) -> None:
    """Three workers give five episodes each, in worker order."""
    run_sample("exact", tmp_path / "out")
    episodes = rollout_cli.load(tmp_path / "out").episodes
    assert [0] * 5 + [1] * 5 + [2] * 5 == episodes["worker"].to_pylist()
    assert max(episodes["length"].to_pylist()) <= 100


def test_custom_env(run_sample: Run, tmp_path: Path) -> None:
    """The environment is found below the working folder, gets its argument; its Dict becomes columns, with states."""
    run_sample("custom_env", tmp_path / "out")
    found = batch(tmp_path / "out")
    assert (200, 5, 60) == (len(found.lengths), found.observations["agent"].max(), max(found.lengths))
    assert np.array_equal(found.env_infos["distance"] == 0, found.rewards == 1.0)
    goals = found.observations["goal"]
    assert np.array_equal(found.env_infos["state"][:, 2:], goals)


def test_image_env(run_sample: Run, tmp_path: Path) -> None:
    """Images come back as they were."""
    run_sample("image_env", tmp_path / "out")
    found = batch(tmp_path / "out")
    assert (32, 32, 3) == found.observations.shape[1:]
    assert (found.observations[:, :-1].max(axis=(1, 2, 3)) == 255).all()


def test_recipes(run_sample: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Their returns are of the levels of their names, and each mixture has all of its components."""
    mean = {name: run_sample(f"recipe_{name}", tmp_path / name)["mean_return"] for name in RECIPES}
    assert 0.2 < mean["medium"] / mean["expert"] < 0.45, mean
    assert mean["random"] < 0.1 * mean["expert"]
    for name, count in (("medium_expert", 2), ("mixed", 3)):
        episodes = batch(tmp_path / name)
        assert count == len(np.unique(episodes.agent_infos["component"])), name
    Caller(capsys)("merge", tmp_path / "medium", tmp_path / "expert", "--output", tmp_path / "both")
    assert len(batch(tmp_path / "medium").lengths) < len(batch(tmp_path / "both").lengths)


def test_the_smoke_workflow(rollout: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of its steps pass, in their order and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "sample_configs" / "smoke.yml").read_text()
    commands = re.findall(r"^ +- run: rollout (.+)$", text, re.MULTILINE)
    assert ["check", "collect", "verify"] == [command.split()[0] for command in commands]
    for command in commands:
        rollout(*command.split())


def test_the_command_is_in_the_file(rollout: Caller, tmp_path: Path) -> None:
    """A file that is used with the other command says which one it is for."""
    for path in SAMPLES:
        command = "exact" if 'command = "collect"' in path.read_text() else "collect"
        ran = rollout(command, "--config", path, "--output", tmp_path / "out", code=2)
        assert "[config-command]" in ran.stderr
    assert not (tmp_path / "out").exists()
