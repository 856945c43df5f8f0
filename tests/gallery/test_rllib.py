"""RLModules of RLlib: `--policy FOLDER` acts as RLlib itself does, and nothing in the folder runs.

RLlib pins gymnasium, so `.ci/matrix/libraries` runs this module in an environment of its own.
"""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
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
ENVS = {"PPO": CARTPOLE, "LSTM": PENDULUM, "DQN": CARTPOLE, "Gaussian": PENDULUM, "SAC": PENDULUM}
SCALED = dict.fromkeys((name for name, env_id in ENVS.items() if env_id == PENDULUM), "?scale=true")
"""A module alone does not say so."""


def spec_of(env_id: str) -> EnvSpec:
    env = gymnasium.make(env_id)
    return EnvSpec(env.observation_space, env.action_space)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Let the library warn of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def modules(quiet: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save a small module of each kind, as its algorithm makes it, and return the folders."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    folder = tmp_path_factory.mktemp("modules")
    torch.manual_seed(0)
    configs = {"DQN": DQNConfig, "SAC": SACConfig}
    for name, env_id in ENVS.items():
        options: dict[str, Any] = {"use_lstm": True, "lstm_cell_size": 8} if name == "LSTM" else {}
        config = configs.get(name, PPOConfig)().environment(env_id)
        config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8], **options))
        module = config.get_rl_module_spec(env=gymnasium.make(env_id)).build()
        module.save_to_path(str(folder / name))
    return {name: folder / name for name in ENVS}


@pytest.fixture(scope="module")
def checkpoint(quiet: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a small algorithm for an iteration, and return the folder of its checkpoint."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = PPOConfig().environment(PENDULUM).env_runners(num_env_runners=0).debugging(seed=0)
    config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8]))
    algorithm = config.build_algo()
    try:
        algorithm.train()
        return Path(algorithm.save_to_path(str(tmp_path_factory.mktemp("checkpoint"))))
    finally:
        algorithm.stop()
        ray.shutdown()


def own_actions(folder: Path, observations: Any, env_id: str) -> Any:
    """Return the deterministic actions of RLlib's own classes for an episode's observations."""
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.utils.spaces.space_utils import unsquash_action

    module: Any = RLModule.from_checkpoint(str(folder))
    state = {key: value[None] for key, value in module.get_initial_state().items()}
    if not state:
        output = module.forward_inference({"obs": torch.from_numpy(observations)})
    else:
        outputs = []
        for observation in torch.from_numpy(observations):
            output = module.forward_inference({"obs": observation[None, None], "state_in": state})
            state = output["state_out"]
            outputs.append(output["action_dist_inputs"][:, 0])
        output = {"action_dist_inputs": torch.cat(outputs)}
    if "actions" not in output:
        distribution = module.get_inference_action_dist_cls().from_logits(output["action_dist_inputs"])
        output = {"actions": distribution.to_deterministic().sample()}
    actions = output["actions"].detach().numpy()
    return unsquash_action(actions, spec_of(env_id).action_space) if env_id == PENDULUM else actions


def words_of(spec: str, env_id: str, *options: str) -> tuple[str, ...]:
    return (
        "collect", "--policy", spec, "--env", env_id, "--max-episode-length", "30", "--seed", "3", *options
    )  # fmt: skip


def check_actions(spec: str, module: Path, env_id: str, rows: str, folder: Path) -> Any:
    options = (
        "--envs-per-worker",
        rows,
        "--episodes",
        "3",
        "--sampler",
        "local",
        "--quiet",
        "--deterministic",
    )
    called(*words_of(spec, env_id, *options), "--output", folder / "out")
    batch = rollout_cli.load(folder / "out").to_episode_batch()
    for episode in batch.split():
        expected = own_actions(module, episode.observations, env_id)
        np.testing.assert_allclose(episode.actions, expected, atol=1e-5, rtol=0)
    if rows != "1":
        # Observations that are far apart, in one batch.
        policy = policy_source(spec).load(spec_of(env_id), deterministic=True)
        if not policy.row_by_row:
            shape = (40, *batch.observations.shape[1:])
            observations = np.random.default_rng(0).normal(scale=5, size=shape).astype(np.float32)
            actions, expected = policy.get_actions(observations)[0], own_actions(module, observations, env_id)
            np.testing.assert_allclose(actions, expected, atol=1e-5, rtol=0)
            assert len({*actions.flatten().tolist()}) > 1
    return source_of(folder / "out")["policy"]


@pytest.mark.parametrize("rows", ["1", "3"])
@pytest.mark.parametrize("name", ENVS)
def test_actions_are_those_of_the_module(
    modules: dict[str, Path], tmp_path: Path, name: str, rows: str
) -> None:
    """For each kind, with one and several rows; the record names the version that saved it."""
    import ray

    spec = f"{modules[name]}{SCALED.get(name, '')}"
    record = check_actions(spec, modules[name], ENVS[name], rows, tmp_path)
    assert ("rllib", ray.__version__) == (record["scheme"], record["saved_by"]["ray"])


@pytest.mark.parametrize("rows", ["1", "3"])
@pytest.mark.parametrize("name", ["PPO", "Gaussian", "SAC"])
def test_log_prob_is_that_of_the_draw(modules: dict[str, Path], tmp_path: Path, name: str, rows: str) -> None:
    """It is what RLlib's own distribution gives for the action; one that the bounds clip is another one."""
    from ray.rllib.core.rl_module.rl_module import RLModule

    spec = f"{modules[name]}{SCALED.get(name, '')}"
    options = ("--episodes", "3", "--sampler", "local", "--quiet", "--envs-per-worker", rows)
    called(*words_of(spec, ENVS[name], *options), "--output", tmp_path / "out")
    batch = rollout_cli.load(tmp_path / "out").to_episode_batch()
    is_scaled, module = name in SCALED, RLModule.from_checkpoint(str(modules[name]))
    actions, recorded = batch.actions / 2.0 if is_scaled else batch.actions, batch.agent_infos["log_prob"]
    output = module.forward_inference({"obs": torch.from_numpy(batch.observations)})
    distribution = module.get_inference_action_dist_cls().from_logits(output["action_dist_inputs"])
    expected = distribution.logp(torch.as_tensor(actions, dtype=None if not is_scaled else torch.float32))
    inside = np.abs(actions).reshape(len(actions), -1).max(axis=1) < 0.99 if is_scaled else recorded < 0
    assert inside.sum() > 10
    np.testing.assert_allclose(recorded[inside], expected.detach().numpy()[inside], atol=1e-3)
    assert len({*recorded.tolist()}) > 1


@pytest.mark.timeout(300)
def test_a_checkpoint_says_how_actions_are_scaled(checkpoint: Path, tmp_path: Path) -> None:
    """Named by itself, or by a folder in it."""
    module = checkpoint / "learner_group" / "learner" / "rl_module" / "default_policy"
    records = [
        check_actions(str(folder), module, PENDULUM, "1", tmp_path / str(place))
        for place, folder in enumerate((checkpoint, module, module.parent))
    ]
    assert 1 == len({record["sha256"] for record in records})
    shutil.copytree(module, tmp_path / "alone")
    with raises(PolicyLoadError, "policy-action-range"):
        policy_source(str(tmp_path / "alone")).load(spec_of(PENDULUM))


def test_connectors_of_a_checkpoint(modules: dict[str, Path], tmp_path: Path) -> None:
    """Those that RLlib adds are no more than the policy does itself; others are refused by name."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    config = PPOConfig().environment(CARTPOLE)
    for name, connectors in (("plain", []), ("filtered", [MeanStdFilter()])):
        config.env_runners(env_to_module_connector=lambda *_, used=connectors, **__: used)
        runner, env = tmp_path / name / "env_runner", gymnasium.make_vec(CARTPOLE, num_envs=1)
        for pipeline in ("env_to_module_connector", "module_to_env_connector"):
            made = getattr(config, f"build_{pipeline}")(env=env)
            (runner / pipeline).mkdir(parents=True)
            contents = {"class": type(made), "ctor_args_and_kwargs": made.get_ctor_args_and_kwargs()}
            (runner / pipeline / "class_and_ctor_args.pkl").write_bytes(cloudpickle.dumps(contents))
        shutil.copytree(modules["PPO"], tmp_path / name / "rl_module" / "default_policy")
    policy_source(f"rllib:{tmp_path / 'plain'}").load(spec_of(CARTPOLE))
    with raises(PolicyLoadError, "file-may-run-code", "MeanStdFilter"):
        policy_source(f"rllib:{tmp_path / 'filtered'}").load(spec_of(CARTPOLE))


@pytest.mark.timeout(300)  # Each worker loads torch and Ray.
@pytest.mark.parametrize("name", ["PPO", "LSTM", "Gaussian", "SAC"])
def test_the_record(modules: dict[str, Path], tmp_path: Path, name: str) -> None:
    """What it draws follows from the episode, whatever rows are beside it."""
    shutil.copytree(modules[name], tmp_path / "module")
    spec = f"{tmp_path / 'module'}{SCALED.get(name, '')}"
    state = tmp_path / "module" / "module_state.pkl"
    check_record(
        words_of(spec, ENVS[name], "--envs-per-worker", "2"),
        tmp_path,
        lambda: state.write_bytes(state.read_bytes() + b"\0"),
    )
    actions = rollout_cli.load(tmp_path / "one").to_episode_batch().actions
    observations = rollout_cli.load(tmp_path / "one").to_episode_batch().observations
    if name != "LSTM":
        assert (own_actions(modules[name], observations, ENVS[name]) != actions).any()


class Hostile:
    """Makes a folder when it is loaded."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("ran",))


def test_a_hostile_folder_runs_nothing(
    modules: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is trusted; then it may name a module class of the user's."""
    monkeypatch.chdir(tmp_path)
    for name in ("class_and_ctor_args.pkl", "module_state.pkl"):
        shutil.copytree(modules["PPO"], name)
        path = Path(name, name)
        path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), "x": Hostile()}))
        with raises(PolicyLoadError, "file-may-run-code", "posix.mkdir"):
            policy_source(name).load(spec_of(CARTPOLE))
        assert not Path("ran").exists()
    policy_source("class_and_ctor_args.pkl?trust=true").load(spec_of(CARTPOLE))
    assert Path("ran").exists()


def test_what_is_refused(modules: dict[str, Path], tmp_path: Path) -> None:
    """Other spaces, tensors that are missing, several modules, and none."""
    with raises(PolicyLoadError, "policy-space", "observation", "Box"):
        policy_source(str(modules["PPO"])).load(spec_of(PENDULUM))
    shutil.copytree(modules["PPO"], tmp_path / "less")
    path = tmp_path / "less" / "module_state.pkl"
    tensors = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(dict(list(tensors.items())[1:])))
    with raises(PolicyLoadError, "policy-file-damaged", next(iter(tensors))):
        policy_source(str(tmp_path / "less")).load(spec_of(CARTPOLE))
    for name in ("a", "b"):
        shutil.copytree(modules["PPO"], tmp_path / "several" / name)
    (tmp_path / "several" / "module_state.pkl").touch()
    for name in ("several", "less/absent"):
        with raises(PolicyLoadError, "policy-folder", name):
            policy_source(f"rllib:{tmp_path / name}")
