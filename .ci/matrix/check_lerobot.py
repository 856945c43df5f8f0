"""Check an export to LeRobot: `check_lerobot.py DATASET EXPORTED`, with lerobot installed."""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # Where anything is missing it would ask the hub.

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import rollout_cli


def leaves(name, tree):
    if isinstance(tree, dict | tuple):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from leaves(f"{name}.{key}", tree[key])
    else:
        yield name, tree


def same(name, expected, actual):
    if isinstance(expected, str):
        assert actual == expected, name
        return
    actual = actual.numpy()
    if loaded.meta.features[name]["dtype"] == "image":
        pixels = np.rint(actual * 255).astype(np.uint8)  # Channels first, 0 to 1.
        np.testing.assert_array_equal(pixels.transpose(1, 2, 0), np.atleast_3d(expected), err_msg=name)
    else:
        dtype = {"f": np.float32, "b": np.bool_}.get(expected.dtype.kind, np.int64)
        shape = () if expected.shape == (1,) else expected.shape
        np.testing.assert_array_equal(actual.reshape(shape), expected.reshape(shape).astype(dtype), err_msg=name)
        assert actual.dtype == dtype, name


dataset, exported = sys.argv[1:]
episodes = list(rollout_cli.load(dataset))
loaded = LeRobotDataset("user/name", root=exported)
assert loaded.num_episodes == len(episodes)
assert len(loaded) == sum(map(len, episodes))
index = 0
for number, episode in enumerate(episodes):
    columns = dict(leaves("observation", episode.observations)) | dict(leaves("action", episode.actions))
    if "observation" in columns:
        values = columns.pop("observation")
        columns["observation.image" if "observation.image" in loaded.features else "observation.state"] = values
    for step in range(len(episode)):
        row = loaded[index]
        for name, values in columns.items():
            same(name, values[step], row[name])
        assert row["next.reward"].numpy() == np.float32(episode.rewards[step])
        ended = step == len(episode) - 1
        for name in ("terminated", "truncated"):
            assert bool(row[f"next.{name}"]) == (ended and getattr(episode, name)), name
        assert bool(row["next.done"]) == ended
        assert (int(row["episode_index"]), int(row["frame_index"])) == (number, step)
        index += 1
some = LeRobotDataset("user/name", root=exported, episodes=[0, 2])
assert len(some) == len(episodes[0]) + len(episodes[2])
key = "action" if "action" in loaded.features else next(name for name in loaded.features if name.startswith("action"))
windows = LeRobotDataset("user/name", root=exported, delta_timestamps={key: [0, 1 / loaded.fps]})
assert f"{key}_is_pad" in windows[0]
assert loaded.meta.stats["next.reward"]["mean"].shape == (1,)
print(json.dumps({"equal": True, "cast": "floats to float32, integers to int64, images to float32 from 0 to 1"}))
