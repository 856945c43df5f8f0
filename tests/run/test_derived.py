"""Datasets that are made of those of runs: they are replayed, source by source, and not resumed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rollout_cli import CollectConfig, collect, convert_dataset, join_datasets, load, relabel_dataset
from rollout_cli.cli.app import run
from rollout_cli.dataset.reader import Episode
from rollout_cli.errors import UsageError
from rollout_cli.options.types import EpisodeRange
from rollout_cli.run.replay import replay
from tests.helpers.datasets import info_of
from tests.helpers.errors import raises
from tests.helpers.projects import project, write_module

__all__ = ["project"]


@pytest.fixture
def derived(tmp_path: Path) -> Path:
    """Every second episode of one run, and some of another one."""
    for seed in (1, 2):
        config = CollectConfig(
            env="tests.helpers.envs:FaultyEnv",
            episodes=EpisodeRange(0, 8),
            seed=seed,
            sampler="local",
            workers=1,
            output=tmp_path / str(seed),
        )
        collect(config)
    inputs = [load(tmp_path / "1")[::2], load(tmp_path / "2")[1:4:2]]
    join_datasets(inputs, tmp_path / "d")
    return tmp_path / "d"


def test_its_episodes_are_run_again(derived: Path) -> None:
    replayed, _ = replay(load(derived), range(6), policy=None, env_kwargs={}, trust=True)
    assert [None] * 6 == [episode.difference for episode in replayed]
    assert [0, 2, 4, 6, 1, 3] == [episode.facts["episode_number"] for episode in replayed]


def test_a_file_that_a_module_reads_is_read_for_all_runs(project: Path) -> None:
    """One process imports the module once; the second run's record names the file, too."""
    write_module(
        project,
        "mine",
        "import numpy as np\n\nSIDE = int(np.loadtxt('w.txt'))\n\ndef act(observation):\n    return SIDE",
    )
    for seed in (1, 2):
        sys.modules.pop("mine", None)
        (project / "w.txt").write_text(f"{seed - 1}")
        config: dict[str, Any] = {
            "episodes": EpisodeRange(0, 2),
            "sampler": "local",
            "output": project / f"{seed}",
        }
        collect(CollectConfig(env="CartPole-v1", policy="mine:act", seed=seed, **config))
    join_datasets([load(project / "1"), load(project / "2")], project / "d")
    for text in ("0", "1"):  # Of one of the runs it has changed.
        sys.modules.pop("mine", None)
        (project / "w.txt").write_text(text)
        _, notices = replay(load(project / "d"), range(4), policy=None, env_kwargs={}, trust=True)
        assert ["since the dataset was made: w.txt has changed"] == notices


def reward(episode: Episode) -> Any:
    return -episode.rewards


def test_what_was_rewritten_is_not_replayed(derived: Path, tmp_path: Path) -> None:
    """New rewards, and infos that were left out; the other values still are."""
    relabel_dataset(load(derived), tmp_path / "new", reward)
    convert_dataset(load(tmp_path / "new"), tmp_path / "less", drop_info=["steps"], next_observation=True)
    replayed, notices = replay(load(tmp_path / "less"), range(6), policy=None, env_kwargs={}, trust=True)
    assert [None] * 6 == [episode.difference for episode in replayed]
    assert "rewards are not compared, because they were relabeled" in notices


def test_what_one_of_two_lacks_is_replayed_of_the_other(tmp_path: Path, derived: Path) -> None:
    """An info that was left out of one dataset, and not of another one that was joined with it."""
    convert_dataset(load(tmp_path / "1"), tmp_path / "less", drop_info=["steps"])
    join_datasets([load(tmp_path / "less"), load(tmp_path / "2")], tmp_path / "both")
    replayed, _ = replay(load(tmp_path / "both"), [0, 8], policy=None, env_kwargs={}, trust=True)
    assert [None, None] == [episode.difference for episode in replayed]


def test_it_is_shown_and_verified(derived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [0, 0] == [run(["info", str(derived)]), run(["verify", str(derived)])]
    shown = capsys.readouterr().out
    assert "root seed of source 0" in shown
    assert "root seed of source 1" in shown


def test_it_is_not_resumed(derived: Path) -> None:
    """One clear error, and nothing changes."""
    before = info_of(derived)
    config = CollectConfig(episodes=EpisodeRange(0, 9), sampler="local", output=derived, resume=True)
    with raises(UsageError, "run-unknown"):
        collect(config)
    assert 2 == run(["collect", "--resume", "--episodes", "9", "--output", str(derived)])
    assert before == info_of(derived)
