"""`lerobot:FOLDER` acts as LeRobot itself does, in environments that nobody here wrote; nothing in a folder runs.

LeRobot 0.6 needs Python 3.12, so `.ci/matrix/libraries` runs this module in an environment of its own.
"""

from __future__ import annotations

import copy
import importlib
import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.utils import FreezeAfterEpisodeEnd, preprocess_observation
from lerobot.policies import get_policy_class, make_pre_post_processors
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.scripts.lerobot_eval import rollout as lerobot_rollout

import rollout_cli
from rollout_cli.seeding.seeds import derive_seed, env_seed
from tests.gallery.records import check_record
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.processes import called

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # Its imports take ten seconds.

SEED = 5
PUSHT = ("--env", "gym_pusht/PushT-v0", "--seed", str(SEED), "--quiet", "--max-episode-length", "40")
STATES = (*PUSHT, "--env-kwargs", "obs_type=environment_state_agent_pos")
PIXELS = (*PUSHT, "--env-kwargs", "obs_type=pixels_agent_pos")
ALOHA = ("--env", "gym_aloha/AlohaTransferCube-v0", "--env-kwargs", "obs_type=pixels_agent_pos")
NAMED = ("--wrapper", "tests.gallery.named:Named")
PENDULUM = ("--env", "Pendulum-v1", *NAMED, "--seed", str(SEED), "--quiet", "--max-episode-length", "40")
ENVS = {
    "act": STATES,
    "diffusion": STATES,
    "images": PIXELS,
    "aloha": (*ALOHA, "--seed", str(SEED), "--quiet", "--max-episode-length", "5"),
    # PushT adds up areas in the order of memory addresses: the last bit of its rewards differs between processes.
    "act_pendulum": PENDULUM,
    "diffusion_pendulum": PENDULUM,
}
SMALL: dict[str, Any] = {
    "chunk_size": 8, "n_action_steps": 4, "dim_model": 32, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1,
    "n_decoder_layers": 1, "use_vae": False, "pretrained_backbone_weights": None, "device": "cpu",
}  # fmt: skip


def state(*shape: int) -> PolicyFeature:
    return PolicyFeature(FeatureType.STATE, shape)


INPUTS: dict[str, dict[str, PolicyFeature]] = {
    "act": {
        "observation.state": state(2),
        "observation.environment_state": PolicyFeature(FeatureType.ENV, (16,)),
    },
    "images": {
        "observation.state": state(2),
        "observation.image": PolicyFeature(FeatureType.VISUAL, (3, 96, 96)),
    },
    "pendulum": {
        "observation.state": state(3),
        "observation.environment_state": PolicyFeature(FeatureType.ENV, (3,)),
    },
    "aloha": {
        "observation.state": state(14),
        "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 480, 640)),
    },
}


def config_of(name: str) -> Any:
    key = "pendulum" if name.endswith("pendulum") else name.replace("diffusion", "act")
    n_actions = {"aloha": 14, "pendulum": 1}.get(key, 2)
    features = {
        "input_features": INPUTS[key],
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (n_actions,))},
    }
    if name.startswith("diffusion"):
        return DiffusionConfig(
            **features, horizon=8, n_action_steps=4, n_obs_steps=2, down_dims=(16, 32), num_train_timesteps=4,
            diffusion_step_embed_dim=16, device="cpu",
        )  # fmt: skip
    return ACTConfig(**features, **SMALL)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small policies with random weights, saved by LeRobot; the folder has one folder each."""
    folder = tmp_path_factory.mktemp("policies")
    for name in ENVS:
        torch.manual_seed(0)
        config = config_of(name)
        policy = get_policy_class(config.type)(config)
        stats = {
            key: numbers(feature) for key, feature in (config.input_features | config.output_features).items()
        }
        for part in (policy, *make_pre_post_processors(config, dataset_stats=stats)):
            part.save_pretrained(folder / name)
    return folder


def numbers(feature: PolicyFeature) -> dict[str, Any]:
    """Return statistics for actions and states of some hundred, as in PushT, and for images in [0, 1]."""
    shape = (3, 1, 1) if feature.type is FeatureType.VISUAL else feature.shape
    scale = 256.0 if shape in {(2,), (16,)} else 1.0
    values = {"mean": 0.5 * scale, "std": 0.4 * scale, "min": 0.0, "max": scale}
    return {name: torch.full(shape, value) for name, value in values.items()}


def lerobots_own(folder: Path) -> tuple[Any, Any, Any]:
    config = config_of(folder.name)
    policy = get_policy_class(config.type).from_pretrained(folder, config=config)
    return policy, *make_pre_post_processors(config, pretrained_path=folder)


def row(value: Any, index: int) -> Any:
    if isinstance(value, Mapping):
        return {name: row(part, index) for name, part in value.items()}
    return np.array(value[index])[None]


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("rows", ["1", "4"])
def test_actions_are_lerobots(policies: Path, tmp_path: Path, name: str, rows: str) -> None:
    """On the recorded observations, bit for bit; the seed of an episode is that of torch's generator."""
    words = ("--policy", policies / name, *ENVS[name], "--envs-per-worker", rows, "--episodes", "5")
    called("collect", *words, "--sampler", "local", "--output", tmp_path / "out")
    policy, before, after = lerobots_own(policies / name)
    torch.set_num_threads(1)  # As workers: the last bits of a convolution depend on it.
    for episode in rollout_cli.load(tmp_path / "out"):
        policy.reset()
        torch.manual_seed(derive_seed(SEED, episode.number, "policy"))
        for step in range(len(episode.rewards)):
            batch = {**preprocess_observation(row(episode.observations, step)), "task": [""]}
            with torch.inference_mode():
                action = after(policy.select_action(before(batch)))
            np.testing.assert_array_equal(action[0].numpy(), episode.actions[step])


@pytest.mark.parametrize("name", ["act_pendulum", "diffusion_pendulum"])
def test_the_record(policies: Path, tmp_path: Path, name: str) -> None:
    """The same bytes for workers and rows, and from a policy process; resume, replay; a changed file is refused."""
    folder = tmp_path / "policy"
    shutil.copytree(policies / name, folder)
    words = ("collect", "--policy", folder, *PENDULUM)
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    changed = bytearray(data)
    changed[-1] ^= 1
    check_record(words, tmp_path, lambda: weights.write_bytes(changed))
    weights.write_bytes(data)
    more = (("--envs-per-worker", "4", "--workers", "2"), ("--policy-process", "--workers", "2"))
    for number, options in enumerate(more):
        called(*words, *options, "--episodes", "6", "--output", tmp_path / str(number))
        assert_same_data(tmp_path / "three", tmp_path / str(number))
    assert "any" == source_of(tmp_path / "0")["reproducible"]["scope"]


def test_returns_are_those_of_lerobot_eval(
    policies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty episodes with the seeds that `rollout` gave to the environment, by LeRobot's own loop."""
    called("collect", "--policy", policies / "act", *STATES, "--episodes", "20", "--output", tmp_path / "out")
    dataset = rollout_cli.load(tmp_path / "out")
    importlib.import_module("gym_pusht")  # It registers its environments.
    make = partial(
        gymnasium.make, "gym_pusht/PushT-v0", obs_type="environment_state_agent_pos", max_episode_steps=40
    )
    policy, before, after = lerobots_own(policies / "act")
    own = []
    for number in range(20):
        env = gymnasium.vector.SyncVectorEnv([lambda: FreezeAfterEpisodeEnd(make())])
        monkeypatch.setattr(env, "call", lambda name: [40] if name == "_max_episode_steps" else [""])
        seeds = [env_seed(SEED, number)]
        result = lerobot_rollout(
            env, policy, lambda batch: batch, lambda action: action, before, after, seeds
        )
        length = int(np.flatnonzero(result["done"][0].numpy())[0]) + 1
        own.append(float(result["reward"][0, :length].sum()))
        env.close()
    assert pytest.approx(own, rel=1e-12) == [float(episode.rewards.sum()) for episode in dataset]


def test_n_action_steps(policies: Path, tmp_path: Path) -> None:
    """An option of the SPEC, which the record has."""
    words = (*STATES, "--episodes", "2", "--sampler", "local", "--output")
    called("collect", "--policy", f"{policies / 'act'}?n_action_steps=1", *words, tmp_path / "one")
    called("collect", "--policy", policies / "act", *words, tmp_path / "four")
    assert {"n_action_steps": 1} == source_of(tmp_path / "one")["policy"]["options"]
    first, other = (rollout_cli.load(tmp_path / name)[0].actions for name in ("one", "four"))
    assert (first[0] == other[0]).all()
    assert (first[1:4] != other[1:4]).any()


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("images", STATES, "policy-space"),
        ("aloha", PIXELS, "policy-space"),
        ("act", ("--env", "Pendulum-v1"), "policy-space"),
        ("diffusion", (*STATES, "--deterministic"), "policy-not-deterministic"),
    ],
)
def test_what_does_not_fit_is_named(
    policies: Path, tmp_path: Path, name: str, words: tuple[str, ...], code: str
) -> None:
    options = ("--episodes", "2", "--sampler", "local", "--output", tmp_path / "out")
    ran = called("collect", "--policy", policies / name, *words, *options, code=3)
    assert f"[{code}]" in ran.stderr
    if name == "images":
        assert "the policy needs observation.image (3, 96, 96)" in ran.stderr


def test_a_folder_runs_no_code(policies: Path, tmp_path: Path) -> None:
    """LeRobot would import a class that a processor names; damaged and older folders are refused in one line."""
    folder = tmp_path / "hostile"
    shutil.copytree(policies / "act", folder)
    file = folder / "policy_preprocessor.json"
    document = json.loads(file.read_text())
    hostile = copy.deepcopy(document)
    hostile["steps"].append(
        {"class": "subprocess.Popen", "config": {"args": ["touch", str(tmp_path / "ran")]}}
    )
    words = ("collect", "--policy", folder, *STATES, "--episodes", "1", "--output", tmp_path / "out")
    for content, code in ((hostile, "file-may-run-code"), ([], "policy-file-damaged"), (document, None)):
        file.write_text(json.dumps(content))
        if code is not None:
            assert f"[{code}]" in called(*words, code=3).stderr
    assert not (tmp_path / "ran").exists()
    file.unlink()
    assert "before 0.4" in called(*words, code=3).stderr
    (folder / "model.safetensors").unlink()
    assert "[policy-unknown]" in called(*words, code=3).stderr
