"""Models of d3rlpy: `--policy FILE` acts as `algo.predict` does, and nothing in the file runs.

d3rlpy pins gymnasium, so `.ci/matrix/libraries` runs this module in an environment of its own.
"""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.source import policy_source
from tests.gallery.records import check_record
from tests.helpers.datasets import source_of
from tests.helpers.errors import raises
from tests.helpers.processes import called

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
ENVS = {"TD3": PENDULUM, "BCQ": PENDULUM, "DQN": CARTPOLE, "DiscreteBC": CARTPOLE}


@pytest.fixture(scope="module")
def d3rlpy() -> Iterator[Any]:
    """Give the library, whose warnings are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield __import__("d3rlpy")


@pytest.fixture(scope="module")
def models(d3rlpy: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Train a small model of each algorithm for a few steps, and save it in both ways; return them and the folder."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    d3rlpy.seed(0)
    trained: dict[str, Any] = {"folder": folder}
    for name, env_id in ENVS.items():
        space: Any = gymnasium.make(env_id).observation_space
        is_box = env_id == PENDULUM
        scalers: dict[str, Any] = {"observation_scaler": d3rlpy.preprocessing.StandardObservationScaler()}
        if is_box:
            scalers["action_scaler"] = d3rlpy.preprocessing.MinMaxActionScaler()
        ends = np.zeros(200, np.float32)
        ends[49::50] = 1
        observations = rng.normal(scale=1.0 if is_box else 0.1, size=(200, *space.shape)).astype(np.float32)
        right = observations[:, :1] > 0
        actions = rng.uniform(-2, 2, (200, 1)) if is_box else right ^ (rng.random((200, 1)) < 0.2)
        dataset = d3rlpy.dataset.MDPDataset(
            observations,
            actions.astype(np.float32 if is_box else np.int64),
            (actions == right)[:, 0].astype(np.float32),
            ends,
        )
        rate = {} if is_box else {"learning_rate": 1e-3}
        algorithm = getattr(d3rlpy.algos, f"{name}Config")(batch_size=32, **rate, **scalers).create(
            device="cpu:0"
        )
        quiet = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
        n_steps = 8 if is_box else 100
        algorithm.fit(dataset, n_steps=n_steps, n_steps_per_epoch=n_steps, save_interval=100, **quiet)
        algorithm.save(folder / f"{name}.d3")
        trained[name] = algorithm
    trained["TD3"].save_policy(str(folder / "TD3.pt"))
    return trained


def words_of(models: dict[str, Any], name: str, *options: str) -> tuple[str | Path, ...]:
    """Return the words that collect with the model of this name, or in this file."""
    file, env = models["folder"] / (name if "." in name else f"{name}.d3"), ENVS[name.partition(".")[0]]
    return (
        "collect", "--policy", file, "--env", env, "--max-episode-length", "30", "--seed", "3", *options
    )  # fmt: skip


@pytest.mark.parametrize("rows", ["1", "3"])
@pytest.mark.parametrize("name", ["TD3", "TD3.pt", "DQN", "DiscreteBC"])
def test_actions_are_those_of_predict(models: dict[str, Any], tmp_path: Path, name: str, rows: str) -> None:
    """On the same observations, with one and several rows, of both kinds of files."""
    options = (
        "--envs-per-worker",
        rows,
        "--episodes",
        "4",
        "--sampler",
        "local",
        "--quiet",
        "--deterministic",
    )
    called(*words_of(models, name, *options), "--output", tmp_path / "out")
    batch = rollout_cli.load(tmp_path / "out").to_episode_batch()
    expected = models[name.partition(".")[0]].predict(batch.observations)
    np.testing.assert_allclose(batch.actions, expected, atol=1e-6, rtol=0)
    record = source_of(tmp_path / "out")["policy"]
    assert ("torchscript" if name == "TD3.pt" else "d3rlpy") == record["scheme"]


@pytest.mark.timeout(300)  # Each worker loads torch and d3rlpy.
@pytest.mark.parametrize("name", ["TD3", "DQN", "BCQ"])
def test_the_record(models: dict[str, Any], tmp_path: Path, name: str) -> None:
    """Also of an algorithm that draws as it predicts, whose rows act one at a time."""
    words = words_of(models, name, "--envs-per-worker", "2")
    path, data = Path(words[2]), Path(words[2]).read_bytes()
    changed = pickle.dumps({**pickle.loads(data), "version": "0"})
    try:
        check_record(words, tmp_path, lambda: path.write_bytes(changed))
    finally:
        path.write_bytes(data)


class Hostile:
    """Makes a folder when it is loaded."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("ran",))


def test_a_hostile_file_runs_nothing(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither beside its tensors, nor among them."""
    monkeypatch.chdir(tmp_path)
    contents = pickle.loads((models["folder"] / "DQN.d3").read_bytes())
    tensors = io.BytesIO()
    torch.save({**torch.load(io.BytesIO(contents["torch"])), "x": Hostile()}, tensors)
    for changes in ({"version": Hostile()}, {"torch": tensors.getvalue()}):
        Path("model.d3").write_bytes(pickle.dumps({**contents, **changes}))
        with pytest.raises(PolicyLoadError):
            policy_source("model.d3").load(spec_of(CARTPOLE))
        assert not Path("ran").exists()


def spec_of(env_id: str) -> EnvSpec:
    env = gymnasium.make(env_id)
    return EnvSpec(env.observation_space, env.action_space)


@pytest.mark.parametrize("name", ["TD3", "TD3.pt", "DQN", "DiscreteBC"])
def test_a_batch_of_observations_that_are_far_apart(models: dict[str, Any], name: str) -> None:
    """All of its actions are those of `predict`, and not one for all."""
    path, spec = Path(words_of(models, name)[2]), spec_of(ENVS[name.partition(".")[0]])
    shape = (40, *(spec.observation_space.shape or ()))
    observations = np.random.default_rng(0).normal(scale=5, size=shape).astype(np.float32)
    actions, _ = policy_source(str(path)).load(spec).get_actions(observations)
    expected = models[name.partition(".")[0]].predict(observations)
    np.testing.assert_allclose(actions, expected, atol=1e-6, rtol=0)
    assert len({*actions.flatten().tolist()}) > 1


def test_actions_begin_at_the_start_of_their_space(models: dict[str, Any]) -> None:
    """d3rlpy counts them from 0."""
    observations = np.random.default_rng(0).normal(scale=0.1, size=(40, 4)).astype(np.float32)
    spec = EnvSpec(spec_of(CARTPOLE).observation_space, gymnasium.spaces.Discrete(2, start=5))
    actions, _ = policy_source(str(models["folder"] / "DQN.d3")).load(spec).get_actions(observations)
    assert (models["DQN"].predict(observations) + 5).tolist() == actions.tolist()


def test_what_is_refused(models: dict[str, Any], d3rlpy: Any, tmp_path: Path) -> None:
    """Other spaces, a greedy mode where there is none, and what acts on a return."""
    folder = models["folder"]
    with raises(PolicyLoadError, "policy-space", "[4]", "[3]"):
        policy_source(str(folder / "DQN.d3")).load(spec_of(PENDULUM))
    with raises(PolicyLoadError, "policy-not-deterministic", "BCQ"):
        policy_source(str(folder / "BCQ.d3")).load(spec_of(PENDULUM), deterministic=True)
    transformer = d3rlpy.algos.DiscreteDecisionTransformerConfig().create(device="cpu:0")
    transformer.create_impl((4,), 2)
    transformer.save(tmp_path / "transformer.d3")
    with raises(PolicyLoadError, "policy-unsupported", "DiscreteDecisionTransformer"):
        policy_source(str(tmp_path / "transformer.d3")).load(spec_of(CARTPOLE))


@pytest.mark.parametrize("env_id", [PENDULUM, CARTPOLE])
def test_a_buffer_that_it_dumps_is_imported(d3rlpy: Any, tmp_path: Path, env_id: str) -> None:
    """With the values that it holds; the last row of an episode that did not terminate is its last observation."""
    env: Any = gymnasium.make(env_id)
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(env=env)
    rng = np.random.default_rng(0)
    for number in range(4):
        observation, _ = env.reset(seed=number)
        has_ended = False
        while not has_ended:
            action = rng.uniform(-2, 2, 1).astype(np.float32) if env_id == PENDULUM else rng.integers(2)
            following, reward, terminated, truncated, _ = env.step(action)
            buffer.append(observation, action, float(reward))
            observation = following
            has_ended = terminated or truncated
        buffer.clip_episode(terminated)
    with (tmp_path / "buffer.h5").open("w+b") as file:
        buffer.dump(file)
    rollout_cli.import_dataset(tmp_path / "buffer.h5", tmp_path / "d", env=env_id)
    assert [] == rollout_cli.verify(tmp_path / "d").faults
    for theirs, ours in zip(buffer.episodes, rollout_cli.load(tmp_path / "d"), strict=True):
        length = len(theirs.rewards) - (not theirs.terminated)
        assert (length, bool(theirs.terminated)) == (len(ours.rewards), bool(ours.terminated))
        np.testing.assert_array_equal(theirs.observations[:length], ours.observations)
        np.testing.assert_array_equal(theirs.actions[:length].ravel(), ours.actions.ravel())
        np.testing.assert_array_equal(theirs.rewards[:length, 0], ours.rewards)
        last = np.full_like(ours.last_observation, np.nan) if theirs.terminated else theirs.observations[-1]
        np.testing.assert_array_equal(last, ours.last_observation)
