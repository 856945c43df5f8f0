"""robomimic's own writer and reader: its files, and our exports, are imported with the values that it reads."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec
from tests.exporters.cases import BOX, MemoryDataset, batch_of, export_to, place_of

# Of its image networks alone, which are not used here: its builds on the package index fit no torch without CUDA.
sys.modules |= dict.fromkeys(
    ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"), MagicMock()
)

from robomimic.algo import RolloutPolicy, algo_factory  # noqa: E402
from robomimic.config import config_factory  # noqa: E402
from robomimic.envs.env_base import EnvBase, EnvType  # noqa: E402
from robomimic.scripts.run_trained_agent import run_trained_agent  # noqa: E402
from robomimic.scripts.split_train_val import split_train_val_from_hdf5  # noqa: E402
from robomimic.utils import file_utils, obs_utils  # noqa: E402
from robomimic.utils.dataset import SequenceDataset  # noqa: E402

N_EPISODES = 12
"""More than ten: demo_10 comes after demo_9."""


class World(EnvBase):
    """An environment with two vectors; every third episode ends by itself.

    robomimic 0.3.0 scales the images that it writes twice, so only our export has a camera.
    """

    name = "World"
    type = EnvType.GYM_TYPE
    rollout_exceptions = ()

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._episode = -1
        self._steps = 0

    def get_observation(self) -> dict[str, Any]:
        return {"arm": self._rng.normal(size=4), "gripper": self._rng.normal(size=2)}

    def reset(self) -> dict[str, Any]:
        self._episode += 1
        self._steps = 0
        return self.get_observation()

    def reset_to(self, state: Any) -> dict[str, Any]:
        return self.get_observation()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        self._steps += 1
        is_over = self._episode % 3 == 0 and self._steps == 2 + self._episode // 3
        return self.get_observation(), float(action[0]), is_over, {}

    def get_state(self) -> dict[str, Any]:
        return {"states": np.zeros(1)}

    def is_success(self) -> dict[str, bool]:
        return {"task": False}

    def serialize(self) -> dict[str, Any]:
        return {"env_name": self.name, "type": self.type, "env_kwargs": {}}


World.__abstractmethods__ = frozenset()  # The rest of the interface, which its program does not call.


def policy() -> RolloutPolicy:
    """Return its behavior cloning of the vector, with random weights."""
    config = config_factory("bc")
    obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": ["arm", "gripper"], "rgb": ["camera"]}})
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = ["arm"]
    return RolloutPolicy(algo_factory("bc", config, {"arm": [4]}, 2, torch.device("cpu")))


def assert_read_alike(path: Path, folder: Path) -> None:
    """Import a file, and compare each row with that of its reader."""
    summary = rollout_cli.import_dataset(path, folder)
    assert ("robomimic", N_EPISODES) == (summary.format, summary.episodes)
    assert [] == rollout_cli.verify(folder).faults
    dataset = rollout_cli.load(folder)
    names = [*dataset[0].observations]
    read = SequenceDataset(
        hdf5_path=str(path),
        obs_keys=names,
        dataset_keys=("actions", "rewards", "dones"),
        load_next_obs=True,
    )
    rows = iter(range(len(read)))
    for episode in dataset:
        for step in range(len(episode)):
            row = read[next(rows)]
            is_last = step == len(episode) - 1
            for name in names:
                seen = episode.observations[name]
                following = episode.last_observation[name] if is_last else seen[step + 1]
                np.testing.assert_array_equal(row["obs"][name][0], seen[step])
                np.testing.assert_array_equal(row["next_obs"][name][0], following)
                assert row["obs"][name].dtype == seen.dtype
            np.testing.assert_array_equal(row["actions"][0], episode.actions[step].astype(np.float32))
            assert row["rewards"][0] == episode.rewards[step]
            assert bool(row["dones"][0]) == (is_last and episode.terminated)
    assert next(rows, None) is None


def test_a_file_that_it_wrote_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program that runs a trained agent, and with its split, which is a group of its own."""
    monkeypatch.setattr(file_utils, "policy_from_checkpoint", lambda **_: (policy(), {}))
    monkeypatch.setattr(file_utils, "env_from_checkpoint", lambda **_: (World(), {}))
    path = tmp_path / "agent.hdf5"
    arguments = Namespace(
        agent="agent.pth",
        n_rollouts=N_EPISODES,
        horizon=7,
        env=None,
        render=False,
        video_path=None,
        video_skip=5,
        camera_names=[],
        dataset_path=str(path),
        dataset_obs=True,
        seed=0,
    )
    run_trained_agent(arguments)
    split_train_val_from_hdf5(str(path), val_ratio=0.25)
    assert_read_alike(path, tmp_path / "back")
    ends = [episode.terminated for episode in rollout_cli.load(tmp_path / "back")]
    assert [number % 3 == 0 for number in range(N_EPISODES)] == ends


def test_our_export_is_imported(tmp_path: Path) -> None:
    observations = spaces.Dict({"arm": BOX, "camera": spaces.Box(0, 255, (8, 6, 3), np.uint8)})
    batch = batch_of(EnvSpec(observations, BOX), [3, 1, 5, 2] * 3)
    export_to(tmp_path, MemoryDataset(batch), "robomimic")
    assert_read_alike(place_of("robomimic", tmp_path), tmp_path / "back")
