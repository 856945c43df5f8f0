"""Runs that get over deaths and failures: the dataset is what it would have been, or says what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.collect import collect
from rollout_cli.config import CollectConfig
from rollout_cli.config.kinds import EpisodeRange
from rollout_cli.dataset import load
from rollout_cli.errors import ConfigError, EnvError, UserCodeError, WorkerError
from rollout_cli.progress import NullProgress
from tests.support.runs import data_hashes, run

SEED = 5


class Told(NullProgress):
    """Keeps warnings and counts failures."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.failures = 0

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def update(self, *, episodes: int, steps: int, return_sum: float, failures: int = 0) -> None:
        self.failures += failures


def collected(output: Path, told: NullProgress | None = None, **options: Any) -> dict[str, Any]:
    """Run with the sample environment that fails; return info.json."""
    config: dict[str, Any] = {
        "env": "tests.support.faults:FaultyEnv",
        "seed": SEED,
        "workers": 2,
        "timesteps": 600,
    } | options
    collect(CollectConfig(output=output, **config), progress=told)
    info: dict[str, Any] = json.loads((output / "meta" / "info.json").read_text())
    return info


@pytest.mark.parametrize("fault", ["segfault", "raise", "hang"])
def test_what_was_got_over_leaves_no_trace(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A death, a failure and a hang, each once, give the bytes of a run in which nothing happened."""
    expected = run(tmp_path / "well", env="tests.support.faults:FaultyEnv", seed=SEED, workers=1, timesteps=600)
    signs = tmp_path / "signs"
    signs.mkdir()
    told = Told()
    # By environment variables, for a dataset has its environment's keyword arguments; spawned workers see them.
    for name, value in {"FAULT": fault, "EVERY": "40", "SIGNS": str(signs)}.items():
        monkeypatch.setenv(f"FAULTY_ENV_{name}", value)
    options: dict[str, Any] = {"step_timeout": 1.0} if fault == "hang" else {"on_env_error": "retry"}
    info = collected(tmp_path / "ill", told, start_method="spawn", max_worker_restarts=100, **options)
    assert list(signs.iterdir())
    assert told.failures >= 1
    assert data_hashes(expected.path) == data_hashes(tmp_path / "ill")
    assert "skipped" not in info


@pytest.mark.parametrize("sampler", ["multiprocessing", "local"])
def test_info_json_lists_what_was_skipped(tmp_path: Path, sampler: str) -> None:
    """The numbers that are missing, each with its reason, the same over every sampler."""
    told = Told()
    info = collected(
        tmp_path / "d", told, env_kwargs={"fault": "raise", "every": 10}, on_env_error="skip", sampler=sampler
    )
    skipped = [episode["episode_number"] for episode in info["skipped"]["episodes"]]
    assert len(skipped) == info["skipped"]["count"] >= 3
    assert all("the simulator is broken" in episode["reason"] for episode in info["skipped"]["episodes"])
    assert info["skipped"]["note"]

    numbers = load(tmp_path / "d").episodes["episode_number"].to_pylist()
    assert sorted({*range(numbers[-1] + 1)} - {*numbers}) == [number for number in skipped if number < numbers[-1]]
    assert told.failures == len(told.warnings) >= len(skipped)


def test_a_run_of_skipped_episodes_alone_is_an_error(tmp_path: Path) -> None:
    """No dataset is left of it."""
    three = {"timesteps": None, "episodes": EpisodeRange(0, 3)}
    kwargs = {"fault": "raise", "every": 1}
    with pytest.raises(
        UserCodeError, match=r"all episodes were skipped, 3 of them; episode 0: .*the simulator is broken"
    ):
        collected(tmp_path / "d", None, env_kwargs=kwargs, on_env_error="skip", **three)
    assert not (tmp_path / "d").exists()


def test_a_death_too_many_keeps_what_was_finished(tmp_path: Path) -> None:
    """What ended before, in order, is in the dataset."""
    with pytest.raises(WorkerError, match="while it ran episode") as caught:
        collected(tmp_path / "d", env_kwargs={"fault": "os._exit", "every": 40}, max_worker_restarts=0, workers=1)
    assert caught.value.exit_code == 4
    assert "finished episodes" in caught.value.hint or "no episode was finished" in caught.value.hint


@pytest.mark.parametrize("name", ["step_timeout", "episode_timeout"])
def test_limits_need_processes(tmp_path: Path, name: str) -> None:
    """A step in the caller's own process could not be ended."""
    with pytest.raises(ConfigError, match="needs worker processes"):
        collected(tmp_path, None, sampler="local", **{name: 1.0})


def test_an_error_fails_the_run_by_default(tmp_path: Path) -> None:
    """Nothing is got over that nobody asked to get over."""
    with pytest.raises(EnvError, match="the simulator is broken"):
        collected(tmp_path / "d", env_kwargs={"fault": "raise", "every": 40})
