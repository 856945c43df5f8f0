"""A dataset that LeRobot's own writer made is imported with the values that its own reader gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import rollout_cli

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
    "observation.images.top": {
        "dtype": "image",
        "shape": (16, 16, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.images.wrist": {
        "dtype": "image",
        "shape": (3, 12, 8),
        "names": ["channels", "height", "width"],
    },
    "observation.grid": {"dtype": "float32", "shape": (2, 3), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.success": {"dtype": "bool", "shape": (1,), "names": None},
}
LENGTHS = (5, 3, 7, 4)


@pytest.mark.filterwarnings("ignore")  # Of its own libraries.
def test_a_dataset_that_it_wrote_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rng = np.random.default_rng(0)
    written = LeRobotDataset.create("me/robot", 10, FEATURES, root=tmp_path / "robot", use_videos=False)
    for number, length in enumerate(LENGTHS):
        for step in range(length):
            frame = {
                "observation.state": rng.normal(size=3).astype(np.float32),
                "observation.images.top": rng.integers(0, 256, (16, 16, 3), dtype=np.uint8),
                "observation.images.wrist": rng.integers(0, 256, (12, 8, 3), dtype=np.uint8),
                "observation.grid": rng.normal(size=(2, 3)).astype(np.float32),
                "action": rng.normal(size=2).astype(np.float32),
                "next.reward": np.array([step], np.float32),
                "next.success": np.array([step == length - 1]),
                "task": f"task {number % 2}",
            }
            written.add_frame(frame)
        written.save_episode()
    written.finalize()
    summary = rollout_cli.import_dataset(tmp_path / "robot", tmp_path / "d")
    assert ("lerobot", 4, sum(LENGTHS)) == (summary.format, summary.episodes, summary.steps)
    assert [] == rollout_cli.verify(tmp_path / "d").faults
    batch = rollout_cli.load(tmp_path / "d").to_episode_batch()
    read = LeRobotDataset("me/robot", root=tmp_path / "robot")
    rows = [read[place] for place in range(len(read))]
    seen = batch.observations
    assert ["grid", "images.top", "images.wrist", "state"] == [*seen]
    for name in ("state", "grid"):
        np.testing.assert_array_equal([row[f"observation.{name}"].numpy() for row in rows], seen[name])
    for name in ("images.top", "images.wrist"):
        theirs = np.array(
            [row[f"observation.{name}"].numpy() for row in rows]
        )  # Channels first, from 0 to 1.
        ours = seen[name].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(theirs, ours)
        assert not batch.last_observations[name].any()
    np.testing.assert_array_equal([row["action"].numpy() for row in rows], batch.actions)
    np.testing.assert_array_equal([float(row["next.reward"]) for row in rows], batch.rewards)
    np.testing.assert_array_equal([bool(row["next.success"]) for row in rows], batch.env_infos["success"])
    assert list(LENGTHS) == batch.lengths.tolist()
    assert [f"task {number % 2}" for number in range(4)] == batch.episode_infos["task"].tolist()
