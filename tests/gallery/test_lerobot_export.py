"""An export is opened by LeRobot 0.6.1: values, a task for each episode, names of cameras, and quantiles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.datasets.compute_stats import get_feature_stats
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.video_utils import get_video_info
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.factory import make_pre_post_processors

import rollout_cli
from rollout_cli.exporters import videos
from rollout_cli.options.types import EpisodeRange

TASKS = ("pick up the cube", "open the drawer", "push the button")
QUANTILES = ("q01", "q10", "q50", "q90", "q99")
pytestmark = pytest.mark.filterwarnings("ignore")  # Of its own libraries.


class Robot(gymnasium.Env[Any, Any]):
    """Episodes of 6 to 9 steps, each with one of three tasks, a camera and the positions of two joints."""

    metadata = {"render_fps": 20}  # noqa: RUF012 - gymnasium's own form
    observation_space = spaces.Dict(
        {
            "pixels": spaces.Dict({"top": spaces.Box(0, 255, (24, 32, 3), np.uint8)}),
            "agent_pos": spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    task_description = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.task_description = TASKS[int(self.np_random.integers(3))]
        self._left = int(self.np_random.integers(6, 10))
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._observe(), float(self.np_random.normal()), self._left == 0, False, {}

    def _observe(self) -> Any:
        brightness, ramp = self.np_random.integers(0, 120, 2)
        rows, columns, channels = np.indices((24, 32, 3))
        pixels = (brightness + ramp * rows / 24 + columns + 30 * channels).astype(np.uint8)
        return {
            "pixels": {"top": pixels},
            "agent_pos": self.np_random.uniform(-1, 1, 2).astype(np.float32),
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the six episodes `d`, and `robot`, their export."""
    folder = tmp_path_factory.mktemp("lerobot")
    config = rollout_cli.CollectConfig(
        env=f"{__name__}:Robot",
        episodes=EpisodeRange(0, 6),
        seed=1,
        sampler="local",
        output=folder / "d",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        rollout_cli.collect(config)
        rollout_cli.export(rollout_cli.load(folder / "d"), "lerobot", folder / "robot")
        yield folder


def test_lerobot_reads_the_values_and_tasks(folder: Path) -> None:
    dataset = rollout_cli.load(folder / "d")
    read = LeRobotDataset("me/robot", root=folder / "robot")
    assert (20, 6, len(read)) == (read.fps, read.num_episodes, sum(map(len, dataset)))
    assert ["observation.images.top"] == read.meta.camera_keys
    own = [str(episode.episode_infos["task"][0]) for episode in dataset]
    assert 1 < len({*own})
    assert list(dict.fromkeys(own)) == read.meta.tasks.index.tolist()
    assert [[task] for task in own] == [list(tasks) for tasks in read.meta.episodes["tasks"]]
    at = 0
    for episode, task in zip(dataset, own, strict=True):
        for step in range(len(episode)):
            row = read[at]
            at += 1
            assert task == row["task"]
            top = np.rint(row["observation.images.top"].numpy() * 255).astype(np.uint8).transpose(1, 2, 0)
            np.testing.assert_array_equal(episode.observations["pixels"]["top"][step], top)
            np.testing.assert_array_equal(
                episode.observations["agent_pos"][step], row["observation.state"].numpy()
            )
            np.testing.assert_array_equal(episode.actions[step], row["action"].numpy())
            assert np.float32(episode.rewards[step]) == row["next.reward"]
            assert (step == len(episode) - 1) == row["next.terminated"]


def test_statistics_are_those_of_lerobot(folder: Path) -> None:
    """Its own quantiles come from a histogram, so they differ by a step between two values."""
    stored = json.loads((folder / "robot" / "meta" / "stats.json").read_text())
    batch = rollout_cli.load(folder / "d").to_episode_batch()
    values = {"action": batch.actions, "observation.state": batch.observations["agent_pos"]}
    for name, rows in values.items():
        theirs = get_feature_stats(rows, axis=0, keepdims=False)
        assert theirs.keys() == stored[name].keys()
        for kind in theirs:
            assert theirs[kind].shape == np.shape(stored[name][kind])
            np.testing.assert_allclose(theirs[kind], stored[name][kind], atol=0.1, err_msg=kind)
    for kind in ("mean", "std", "min", "max", *QUANTILES):
        assert (3, 1, 1) == np.shape(stored["observation.images.top"][kind])


def test_an_act_policy_normalizes_with_the_quantiles(folder: Path) -> None:
    read = LeRobotDataset("me/robot", root=folder / "robot", delta_timestamps={"action": [0, 1 / 20]})
    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (2,)),
            "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 24, 32)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        normalization_mapping=dict.fromkeys(("STATE", "ACTION", "VISUAL"), NormalizationMode.QUANTILES),
        chunk_size=2,
        n_action_steps=2,
        device="cpu",
    )
    before, _ = make_pre_post_processors(config, dataset_stats=read.meta.stats)
    batch = next(iter(torch.utils.data.DataLoader(read, batch_size=len(read))))
    original = {name: batch[name].numpy().copy() for name in config.input_features | config.output_features}
    normalized = before(batch)
    for name, values in original.items():
        low, high = (read.meta.stats[name][kind] for kind in ("q01", "q99"))
        expected = 2 * (values - low) / (high - low) - 1
        np.testing.assert_allclose(expected, normalized[name].numpy(), atol=1e-5, err_msg=name)
    inside = np.abs(normalized["observation.state"].numpy()) <= 1 + 1e-6
    assert 0.9 < inside.mean() < 1


@pytest.mark.parametrize("limit", ["none", "bytes", "seconds"])
def test_lerobot_reads_videos(
    folder: Path, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has its own frame, in one file or a file for each episode; colors are close to the stored ones."""
    if limit == "bytes":
        monkeypatch.setattr(videos, "_MOST_BYTES", 1)
    if limit == "seconds":
        monkeypatch.setattr(videos, "_MOST_SECONDS", 1 / 20)
    dataset = rollout_cli.load(folder / "d")
    summary = rollout_cli.export(dataset, "lerobot", tmp_path / "robot", video=True)
    assert "the exact values of pixels" in summary.losses
    files = sorted(path.name for path in (tmp_path / "robot").rglob("*.mp4"))
    assert files == [f"file-{number:03}.mp4" for number in range(1 if limit == "none" else 6)]
    read = LeRobotDataset("me/robot", root=tmp_path / "robot", video_backend="pyav")
    assert ["observation.images.top"] == read.meta.video_keys == read.meta.camera_keys
    starts = np.cumsum([0, *map(len, dataset)])[:-1] / 20 if limit == "none" else [0] * 6
    np.testing.assert_allclose(
        starts, read.meta.episodes["videos/observation.images.top/from_timestamp"], atol=1e-9
    )
    at = 0
    for episode in dataset:
        for pixels in episode.observations["pixels"]["top"]:
            seen = read[at]["observation.images.top"].numpy().transpose(1, 2, 0) * 255
            at += 1
            assert seen.shape == (24, 32, 3)
            # The pictures of an episode have different brightness, so that a wrong frame is far away.
            assert np.abs(seen - pixels).mean() < 8
    assert at == len(read)
    stored = get_video_info(tmp_path / "robot" / "videos" / "observation.images.top" / "chunk-000" / files[0])
    described = read.meta.features["observation.images.top"]["info"]
    assert described == {name: stored[name] for name in described}
    stats = [
        json.loads((place / "robot" / "meta" / "stats.json").read_text()) for place in (folder, tmp_path)
    ]
    assert stats[0] == stats[1]
