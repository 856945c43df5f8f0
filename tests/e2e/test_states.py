"""`--store-state`: the same states for any workers, after a resume, and restored by `rollout render`."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import rollout_cli
from rollout_cli.errors import ArgumentError, EnvError
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.values import EpisodeRules
from tests.helpers.datasets import assert_same_data
from tests.helpers.envs import StateEnv
from tests.helpers.errors import raises
from tests.helpers.processes import called

ENV = ("--env", "tests.helpers.envs:StateEnv", "--seed", "3", "--quiet", "--store-state")
LOCAL = ("--sampler", "local", "--workers", "1")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    called("collect", *ENV, "--episodes", "5", *LOCAL, "--output", tmp_path / "data")
    return tmp_path / "data"


def frames_of(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_states(dataset: Path, tmp_path: Path) -> None:
    """An episode of T steps has T + 1 states, and states are copies."""
    for episode in rollout_cli.load(dataset):
        states = np.concatenate([episode.episode_infos["state"], episode.env_infos["state"]])
        assert [[0], *([step] for step in range(1, 7))] == states[:, 1:].tolist()
        assert [*episode.observations[:, 0], *episode.last_observation] == states[:, 0].tolist()
        assert [True] * 6 == episode.env_infos["moved"].tolist()
    assert [] == rollout_cli.verify(dataset).faults
    assert "identical" in called("replay", "--trust", dataset, "--all").stdout


@pytest.mark.parametrize(
    "way", [("--workers", "3"), (*LOCAL, "--envs-per-worker", "3"), (*LOCAL, "--fresh-env"), ()]
)
def test_the_same_bytes(dataset: Path, tmp_path: Path, way: tuple[str, ...]) -> None:
    """For any workers and rows, fresh environments, and after a resume, which needs no option."""
    other = tmp_path / "other"
    if way:
        called("collect", *ENV, "--episodes", "5", *way, "--output", other)
    else:
        called("collect", *ENV, "--episodes", "2", *LOCAL, "--output", other)
        called("collect", "--resume", "--episodes", "5", *LOCAL, "--quiet", "--output", other)
    assert_same_data(dataset, other)


def test_a_wrapped_environment(tmp_path: Path) -> None:
    """The innermost environment has the state."""
    wrapped = (*ENV, "--wrapper", "ClipReward?max_reward=1", "--max-episode-length", "4")
    called("collect", *wrapped, "--episodes", "2", *LOCAL, "--output", tmp_path / "data")
    assert (8, 2) == rollout_cli.load(tmp_path / "data").to_episode_batch().env_infos["state"].shape


def test_render(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames are those of the run, even if the actions lead elsewhere on this machine."""
    words: tuple[str | Path, ...] = ("render", "--trust", dataset, "--episode", "2", "--json", "--output")
    again = json.loads(called(*words, tmp_path / "again", "--again").stdout)
    assert ("recorded actions, run again", None) == (again["origin"], again["difference"])
    monkeypatch.setenv("STATE_ENV_DRIFT", "0.5")
    document = json.loads(called(*words, tmp_path / "states").stdout)
    assert ("stored states", 7, None) == tuple(document[key] for key in ("origin", "frames", "difference"))
    assert frames_of(tmp_path / "again") == frames_of(tmp_path / "states")
    assert json.loads(called(*words, tmp_path / "drifted", "--again").stdout)["difference"]
    assert frames_of(tmp_path / "again") != frames_of(tmp_path / "drifted")
    shown = called("render", "--trust", dataset, "--output", tmp_path / "plain").stdout
    assert "stored states" in shown
    assert "replayed" not in shown


def test_render_without_states(tmp_path: Path) -> None:
    """A dataset without the option, or whose states were dropped, replays the actions."""
    options: dict[str, tuple[str, ...]] = {"plain": ENV[:-1], "dropped": (*ENV, "--drop-info", "state")}
    for name, words in options.items():
        called("collect", *words, "--episodes", "1", *LOCAL, "--output", tmp_path / name)
        ran = called("render", "--trust", tmp_path / name, "--json", "--output", tmp_path / f"{name}-film")
        assert "recorded actions, run again" == json.loads(ran.stdout)["origin"]


def test_robomimic(dataset: Path, tmp_path: Path) -> None:
    """Its files have the state before each step: `reset_to` starts an episode from the first."""
    called("export", dataset, "--to", "robomimic", "--output", tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as file:
        for index, episode in enumerate(rollout_cli.load(dataset)):
            states = file[f"data/demo_{index}/states"][()]
            assert [*range(6)] == states[:, 1].tolist()
            assert episode.observations[:, 0].tolist() == states[:, 0].tolist()


@pytest.mark.parametrize("way", [LOCAL, ("--workers", "2")])
def test_an_environment_without_a_state(tmp_path: Path, way: tuple[str, ...]) -> None:
    ran = called("collect", "--store-state", "--episodes", "3", *way, "--output", tmp_path / "data", code=3)
    assert all(
        part in ran.stderr for part in ("the environment CartPoleEnv", "[env-no-state]", "--store-state")
    )
    assert 1 == ran.stderr.count("error:")
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("result", [(np.zeros(1), 0.0, True, {}), (np.zeros(1), 0.0, True, False, None), 5])
def test_a_malformed_step(monkeypatch: pytest.MonkeyPatch, result: object) -> None:
    """The error is the same as without the option."""
    monkeypatch.setattr(StateEnv, "step", lambda self, action: result)
    errors = []
    for rules in (EpisodeRules(), EpisodeRules(store_state=True)):
        worker = DefaultWorker.in_context(WorkerContext(rules), seed=0, max_episode_length=5, worker_number=0)
        worker.update_agent(lambda _: 0)
        worker.update_env(StateEnv())
        with pytest.raises(EnvError) as caught:
            worker.rollout()
        errors.append((caught.value.code, str(caught.value)))
    assert errors[0] == errors[1]


def test_native_environments_are_excluded(tmp_path: Path) -> None:
    words = ("collect", "--store-state", "--episodes", "3", "--vectorization", "native")
    assert "[options-exclude-each-other]" in called(*words, cwd=tmp_path, code=2).stderr
    with raises(ArgumentError, code="factory-argument"):
        WorkerFactory(
            worker_class=VecWorker,
            worker_args={"vectorization": "native"},
            rules=EpisodeRules(store_state=True),
        )
