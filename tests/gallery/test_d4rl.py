"""D4RL's own writer and reader: its files, and our exports, are imported with the values that it reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import rollout_cli
from tests.exporters.cases import SPECS, MemoryDataset, batch_of, export_to, place_of

# It asks for the old gym, of which its loader takes a base class and a color. Its environments are not imported.
vars(gymnasium.utils)["colorize"] = str
sys.modules |= {"gym": gymnasium, "gym.utils": gymnasium.utils, "gym.envs": None}  # type: ignore[dict-item]
os.environ["D4RL_SUPPRESS_IMPORT_ERROR"] = "1"

import d4rl  # noqa: E402
from d4rl.offline_env import OfflineEnv  # noqa: E402
from d4rl.utils.dataset_utils import DatasetWriter  # noqa: E402

SPEC = SPECS["box"]
LENGTHS = (4, 1, 6, 3)


def sequences(path: Path) -> list[dict[str, Any]]:
    """Return the episodes that its reader gives."""
    env = OfflineEnv()
    env.observation_space = SPEC.observation_space
    env.action_space = SPEC.action_space
    env._max_episode_steps = 1000
    return list(d4rl.sequence_dataset(env, env.get_dataset(h5path=str(path))))


def assert_read_alike(path: Path, folder: Path) -> None:
    """Import a file, and compare each episode with that of its reader, which leaves out steps after the last end."""
    summary = rollout_cli.import_dataset(path, folder)
    assert ("d4rl", len(LENGTHS)) == (summary.format, summary.episodes)
    assert [] == rollout_cli.verify(folder).faults
    dataset = rollout_cli.load(folder)
    read = sequences(path)
    assert len(read) >= len(LENGTHS) - 1
    for theirs, ours in zip(read, dataset, strict=False):
        for name in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(theirs[name], getattr(ours, name))
        assert bool(theirs["terminals"][-1]) == ours.terminated
        if "next_observations" in theirs:
            np.testing.assert_array_equal(theirs["next_observations"][-1], ours.last_observation)
        if "infos/goal" in theirs:
            np.testing.assert_array_equal(theirs["infos/goal"], ours.env_infos["goal"])


def test_a_file_that_it_wrote_is_imported(tmp_path: Path) -> None:
    """It has no timeouts, and the last episode goes on."""
    rng = np.random.default_rng(0)
    writer = DatasetWriter(goal=True)
    for number, length in enumerate(LENGTHS):
        for step in range(length):
            is_over = step == length - 1 and number < len(LENGTHS) - 1
            writer.append_data(rng.normal(size=4), rng.normal(size=2), step, is_over, goal=rng.normal(size=2))
    writer.write_dataset(tmp_path / "a.hdf5")
    assert_read_alike(tmp_path / "a.hdf5", tmp_path / "back")
    assert [*LENGTHS] == [len(episode) for episode in rollout_cli.load(tmp_path / "back")]


def test_our_export_is_imported(tmp_path: Path) -> None:
    export_to(tmp_path, MemoryDataset(batch_of(SPEC, LENGTHS)), "d4rl")
    assert_read_alike(place_of("d4rl", tmp_path), tmp_path / "back")
    assert len(LENGTHS) == len(sequences(place_of("d4rl", tmp_path)))
