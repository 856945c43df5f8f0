"""Models of Stable-Baselines3: `--policy model.zip` acts as the library does, and nothing in the zip runs."""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import sys
import zipfile
from pathlib import Path
from textwrap import dedent
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch
from gymnasium.wrappers import TransformAction
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rollout_cli import load
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.source import policy_source
from tests.gallery.worlds import masked_line
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, rollout

SMALL: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "seed": 0}
ON_POLICY = {**SMALL, "n_steps": 32}
OFF_POLICY = {**SMALL, "learning_starts": 20, "buffer_size": 200}
MODELS: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "PPO": (stable_baselines3.PPO, "CartPole-v1", "MlpPolicy", {**ON_POLICY, "batch_size": 32}),
    "A2C": (stable_baselines3.A2C, "Pendulum-v1", "MlpPolicy", SMALL),
    "gSDE": (stable_baselines3.A2C, "Pendulum-v1", "MlpPolicy", {**SMALL, "use_sde": True}),
    "DQN": (stable_baselines3.DQN, "CartPole-v1", "MlpPolicy", OFF_POLICY),
    "SAC": (stable_baselines3.SAC, "Pendulum-v1", "MlpPolicy", OFF_POLICY),
    "TD3": (stable_baselines3.TD3, "Pendulum-v1", "MlpPolicy", OFF_POLICY),
    "DDPG": (stable_baselines3.DDPG, "Pendulum-v1", "MlpPolicy", OFF_POLICY),
    "TQC": (sb3_contrib.TQC, "Pendulum-v1", "MlpPolicy", OFF_POLICY),
    "CrossQ": (sb3_contrib.CrossQ, "Pendulum-v1", "MlpPolicy", OFF_POLICY),
    "QRDQN": (sb3_contrib.QRDQN, "CartPole-v1", "MlpPolicy", OFF_POLICY),
    "TRPO": (sb3_contrib.TRPO, "Pendulum-v1", "MlpPolicy", {**ON_POLICY, "batch_size": 32}),
    "ARS": (sb3_contrib.ARS, "Pendulum-v1", "LinearPolicy", {"n_delta": 2, "seed": 0}),
    "RecurrentPPO": (
        sb3_contrib.RecurrentPPO,
        "CartPole-v1",
        "MlpLstmPolicy",
        {"policy_kwargs": {"lstm_hidden_size": 8}, "n_steps": 32, "batch_size": 32, "seed": 0},
    ),
}
EXPLORES: dict[str, set[str]] = {
    "PPO": {"value", "log_prob"},
    "gSDE": {"value", "log_prob"},
    "DQN": {"explored"},
    "RecurrentPPO": set(),
}
"""Models that draw, and infos that they record."""
SECONDS = 300
HERE = ("--sampler", "local", "--workers", "1")
"""This process has loaded torch: each worker of another one takes seconds to do so."""


def saved(name: str, folder: Path) -> tuple[Any, Path, str]:
    algorithm, env, policy, options = MODELS[name]
    model = algorithm(policy, env, device="cpu", **copy.deepcopy(options))  # It edits what it is given.
    model.learn(64)
    model.save(folder / "model.zip")
    return model, folder / "model.zip", env


def spec_of(env: str) -> EnvSpec:
    made = gymnasium.make(env)
    return EnvSpec(made.observation_space, made.action_space)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", MODELS)
def test_it_acts_as_the_library_does(tmp_path: Path, name: str) -> None:
    """Deterministic actions equal those of the whole model, a row at a time and in batches."""
    model, path, env = saved(name, tmp_path)
    spec = spec_of(env)
    policy = policy_source(str(path)).load(spec, deterministic=True)
    observations = np.stack([spec.observation_space.sample() for _ in range(20)])
    observations = np.clip(observations, -3, 3).astype(np.float32)
    state = None
    policy.reset()
    for step, observation in enumerate(observations):
        expected, state = model.predict(
            observation, state=state, episode_start=np.array([step == 0]), deterministic=True
        )
        np.testing.assert_allclose(policy.get_action(observation)[0], expected, atol=1e-5 if state else 0)
    policy.reset(np.ones(20, bool))
    expected = model.predict(observations, deterministic=True)[0]
    np.testing.assert_allclose(policy.get_actions(observations)[0], expected, atol=1e-5)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", EXPLORES)
def test_it_explores_from_the_episodes_own_seed(tmp_path: Path, name: str) -> None:
    """One worker here and two processes give the same bytes, and each episode is replayed from another folder."""
    _, path, env = saved(name, tmp_path)
    words = ("collect", "--policy", path, "--env", env, "--episodes", "6", "--max-episode-length", "40")
    more = ("--seed", "1", "--quiet")
    called(*words, *more, *HERE, "--output", tmp_path / "1")
    rollout(*words, *more, "--workers", "2", "--output", tmp_path / "2")
    assert_same_data(tmp_path / "1", tmp_path / "2")
    record = source_of(tmp_path / "1")
    assert "yes" == record["reproducible"]["status"], record["reproducible"]
    assert "sb3" == record["policy"]["scheme"]
    assert stable_baselines3.__version__ == record["policy"]["saved_by"]["stable-baselines3"]
    called("replay", tmp_path / "1", "--all", cwd=Path("/"))
    assert EXPLORES[name] <= set(load(tmp_path / "1")[0].agent_infos)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ran = called("replay", tmp_path / "1", "--all", code=None)
    assert ran.code != 0
    assert "model.zip" in ran.stderr


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", ["PPO", "A2C", "gSDE", "SAC", "RecurrentPPO"])
def test_what_it_draws_in_batches_is_each_rows_own(tmp_path: Path, name: str) -> None:
    """With several environments a worker, one here and two processes give the same bytes, and a resume goes on."""
    _, path, env = saved(name, tmp_path)
    words = ("collect", "--policy", path, "--env", env, "--episodes", "7", "--max-episode-length", "30")
    more = ("--envs-per-worker", "3", "--seed", "1", "--quiet")
    called(*words, *more, *HERE, "--output", tmp_path / "1")
    rollout(*words, *more, "--workers", "2", "--output", tmp_path / "2")
    assert_same_data(tmp_path / "1", tmp_path / "2")
    assert "yes" == source_of(tmp_path / "1")["reproducible"]["status"]
    called("collect", "--resume", *HERE, "--quiet", "--episodes", "10", "--output", tmp_path / "1")
    batch = load(tmp_path / "1").to_episode_batch()
    assert len({*map(str, batch.actions)}) > 1


SEEN = """
    import sys
    import gymnasium

    class Seen(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.had_torch = "torch" in sys.modules  # The policy is loaded when the environment is built.

        def reset(self, **kwargs):
            observation, info = self.env.reset(**kwargs)
            seen = {"had_torch": self.had_torch, "has_compiler": "torch._dynamo" in sys.modules}
            return observation, {**info, **seen}
"""


@pytest.mark.timeout(SECONDS)
def test_workers_share_one_import_of_torch(tmp_path: Path) -> None:
    """And none makes an optimizer, for which torch would import its compiler: that takes as long again."""
    _, path, _ = saved("PPO", tmp_path)
    (tmp_path / "seen.py").write_text(dedent(SEEN))
    words = (
        "--policy",
        f"mix:0.5*{path}+0.5*random",
        "--wrapper",
        "seen:Seen",
        "--workers",
        "2",
        "--seed",
        "0",
    )
    rollout("collect", *words, "--episodes", "8", "--quiet", "--output", "out", cwd=tmp_path)
    infos = load(tmp_path / "out").to_episode_batch().episode_infos
    assert infos["had_torch"].all()
    assert not infos["has_compiler"].any()


@pytest.mark.timeout(SECONDS)
def test_log_prob_is_that_of_the_draw(tmp_path: Path) -> None:
    """The recorded value and log-probability are those of the library for the recorded step."""
    model, path, env = saved("PPO", tmp_path)
    words = ("--policy", path, "--env", env, "--episodes", "2", "--seed", "0", "-q")
    called("collect", *words, *HERE, "-o", tmp_path / "out")
    episode = load(tmp_path / "out")[0]
    observations, _ = model.policy.obs_to_tensor(episode.observations)
    values, log_prob, _ = model.policy.evaluate_actions(observations, torch.as_tensor(episode.actions))
    np.testing.assert_allclose(episode.agent_infos["log_prob"], log_prob.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(episode.agent_infos["value"], values.detach().numpy()[:, 0], atol=1e-5)


@pytest.mark.timeout(SECONDS)
def test_statistics_of_a_vecnormalize(tmp_path: Path) -> None:
    """A model that was trained with statistics needs them, sees normalised observations, and records raw ones."""
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    model = stable_baselines3.PPO("MlpPolicy", env, device="cpu", **ON_POLICY, batch_size=32)
    model.learn(64)
    model.save(tmp_path / "model.zip")
    env.save(str(tmp_path / "stats.pkl"))
    spec, path = spec_of("Pendulum-v1"), str(tmp_path / "model.zip")
    with raises(PolicyLoadError, "normalization-missing", "VecNormalize"):
        policy_source(path).load(spec)
    policy = policy_source(path, {"vecnormalize": str(tmp_path / "stats.pkl")}).load(spec, deterministic=True)
    observations = np.array([[1, 0, 3], [0.5, -0.5, -8]], np.float32)
    env.training = False
    expected = model.predict(env.normalize_obs(observations), deterministic=True)[0]
    np.testing.assert_array_equal(expected, policy.get_actions(observations)[0])
    words = ("--policy", path, "--policy-kwargs", f"vecnormalize={tmp_path / 'stats.pkl'}")
    more = ("--env", "Pendulum-v1", "--episodes", "2", "--seed", "0", "-q", *HERE)
    called("collect", *words, *more, "-o", tmp_path / "out")
    assert np.abs(load(tmp_path / "out")[0].observations[:, 2]).max() > 1
    env.obs_rms.mean = env.obs_rms.mean + 1
    env.save(str(tmp_path / "stats.pkl"))
    refused = called("collect", "--resume", "--episodes", "3", *HERE, "-o", tmp_path / "out", code=None)
    assert refused.code != 0
    assert "[resume-differs]" in refused.stderr


@pytest.mark.timeout(SECONDS)
def test_masks(tmp_path: Path) -> None:
    """A MaskablePPO gets the environment's masks, and takes no invalid action."""
    env = InvalidActionEnvDiscrete(dim=8, ep_length=20, n_invalid_actions=3)
    model = sb3_contrib.MaskablePPO("MlpPolicy", env, device="cpu", **ON_POLICY, batch_size=32)
    model.learn(64)
    model.save(tmp_path / "model.zip")
    words = (
        "--policy",
        tmp_path / "model.zip",
        "--env",
        "tests.gallery.worlds:invalid_actions",
        "--seed",
        "0",
    )
    called("collect", *words, *HERE, "--episodes", "4", "--quiet", "--output", tmp_path / "out")
    batch = load(tmp_path / "out").to_episode_batch()
    assert np.asarray(batch.env_infos["is_valid"]).all()


@pytest.mark.timeout(SECONDS)
def test_maskable_ppo_draws_and_records_as_ppo_does(tmp_path: Path) -> None:
    """Each row draws from its own episode's seed; value and log-probability are the library's under the masks."""
    model = sb3_contrib.MaskablePPO("MlpPolicy", masked_line(), device="cpu", **SMALL)
    model.save(tmp_path / "model.zip")
    words = ("collect", "--policy", tmp_path / "model.zip", "--env", "tests.gallery.worlds:masked_line")
    more = ("--episodes", "40", "--envs-per-worker", "3", "--seed", "1", "--quiet")
    called(*words, *more, *HERE, "--output", tmp_path / "1")
    rollout(*words, *more, "--workers", "2", "--output", tmp_path / "2")
    assert_same_data(tmp_path / "1", tmp_path / "2")
    assert "yes" == source_of(tmp_path / "1")["reproducible"]["status"]
    batch = load(tmp_path / "1").to_episode_batch()
    observations, _ = model.policy.obs_to_tensor(batch.observations)
    masks = np.hstack([batch.observations > 0, batch.observations < 9])
    assert not masks.all()
    actions = torch.as_tensor(batch.actions)
    values, log_prob, _ = model.policy.evaluate_actions(observations, actions, action_masks=masks)
    np.testing.assert_allclose(batch.agent_infos["log_prob"], log_prob.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(batch.agent_infos["value"], values.detach().numpy()[:, 0], atol=1e-5)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("epsilon", ["0.1", "0.5"])
def test_epsilon_around_a_model_that_explores_by_itself(tmp_path: Path, epsilon: str) -> None:
    """Each draws from a stream of its own, and `explored` is true wherever an action is not the greedy one."""
    model, path, env = saved("DQN", tmp_path)
    model.exploration_rate = 0.5
    model.save(path)
    words = ("--policy", path, "--env", env, "--epsilon", epsilon, "--timesteps", "2000", "--seed", "1", "-q")
    called("collect", *words, *HERE, "-o", tmp_path / "out")
    batch = load(tmp_path / "out").to_episode_batch()
    explored, share = batch.agent_infos["explored"], 1 - 0.5 * (1 - float(epsilon))
    greedy = model.predict(batch.observations, deterministic=True)[0]
    assert (batch.actions == greedy)[~explored].all()
    assert abs(explored.mean() - share) < 5 * np.sqrt(share * (1 - share) / len(explored))


@pytest.mark.timeout(SECONDS)
def test_actions_of_two_dimensions(tmp_path: Path) -> None:
    """They have the shape of the Box, and a row draws in a batch what it draws alone."""
    box = gymnasium.spaces.Box(-2, 2, (2, 3), np.float32)
    env = TransformAction(gymnasium.make("Pendulum-v1"), lambda action: action[0, :1], box)
    stable_baselines3.PPO("MlpPolicy", env, device="cpu", **SMALL).save(tmp_path / "model.zip")
    spec = EnvSpec(env.observation_space, box)
    policy = policy_source(str(tmp_path / "model.zip")).load(spec)
    assert policy.seed is not None
    assert policy.seed_rows is not None
    policy.seed_rows(np.ones(2, bool), np.array([5, 6], np.uint64))
    actions, _ = policy.get_actions(np.zeros((2, 3), np.float32))
    assert (2, 2, 3) == actions.shape
    policy.seed(6)
    action, _ = policy.get_action(np.zeros(3, np.float32))
    np.testing.assert_allclose(actions[1], action, atol=1e-6)


def changed(path: Path, name: str, value: Any) -> None:
    """Write a zip again with another pickle in its data."""
    with zipfile.ZipFile(path) as file:
        members = {member: file.read(member) for member in file.namelist()}
    data = json.loads(members["data"])
    data[name] = {":type:": "", ":serialized:": base64.b64encode(value).decode()}
    members["data"] = json.dumps(data).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for member, content in members.items():
            file.writestr(member, content)
    path.write_bytes(buffer.getvalue())


class Touch:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", ["policy_kwargs", "policy_class", "observation_space"])
def test_nothing_in_a_zip_runs(tmp_path: Path, name: str) -> None:
    """A pickle that would write a file is refused by what it names; with trust it does write it."""
    _, path, env = saved("PPO", tmp_path)
    mark = tmp_path / "ran"
    changed(path, name, pickle.dumps(Touch(mark)))
    with raises(PolicyLoadError, "file-may-run-code", "pathlib"):
        policy_source(str(path)).load(spec_of(env))
    assert not mark.exists()
    with pytest.raises(PolicyLoadError):
        policy_source(str(path), {"trust": True}).load(spec_of(env))
    assert mark.exists()


def test_a_name_behind_a_module_is_refused(tmp_path: Path) -> None:
    """`torch.nn.modules.module` also holds `torch`, and that holds `os`: neither dots nor imports are followed."""
    _, path, env = saved("PPO", tmp_path)
    for module, name in (
        ("torch.nn.modules.module", "torch.os.getenv"),
        ("torch.nn.modules.module", "torch"),
        ("numpy.f2py.__main__", "dtype"),
        ("numpy.testing", "scalar"),
        ("torch.nn.modules.__main__", "Linear"),
        ("stable_baselines3.common.save_util", "BasePolicy"),
    ):
        sys.modules.pop(module if "__main__" in module else "", None)
        texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
        changed(path, "policy_class", b"\x80\x04" + texts + b"\x93.")
        with raises(PolicyLoadError, "file-may-run-code", module, name):
            policy_source(str(path)).load(spec_of(env))
        assert "__main__" not in module or module not in sys.modules


@pytest.mark.timeout(SECONDS)
def test_other_spaces_and_own_extractors_are_refused(tmp_path: Path) -> None:
    """The line has both spaces, or the name of the user's class, which `trust` allows."""
    _, path, _ = saved("PPO", tmp_path)
    with raises(PolicyLoadError, "policy-space", "observation space", "(4,)", "(2,)"):
        policy_source(str(path)).load(spec_of("MountainCar-v0"))
    changed(path, "policy_kwargs", cloudpickle.dumps({"features_extractor_class": Touch}))
    with raises(PolicyLoadError, "file-may-run-code"):
        policy_source(str(path)).load(spec_of("CartPole-v1"))
