"""LeRobot: `LeRobotDataset` of the folder, a row at a time, some episodes, and rows with time shifts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # Where anything is missing it asks the hub, and does not name the fault.

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from values import episodes, leaves, run, same

CASTS = {"f": np.float32, "b": np.bool_}


def check(dataset: Path, exported: Path) -> str:
    expected = episodes(dataset)
    loaded = LeRobotDataset("user/name", root=exported)
    assert (loaded.num_episodes, len(loaded)) == (len(expected), sum(each.length for each in expected))
    at, cast = 0, "floats to float32, integers to int64"
    for number, ours in enumerate(expected):
        columns = {f"observation.{path}".strip("."): leaf for path, leaf in leaves(ours.observations).items()}
        columns |= {f"action.{path}".strip("."): leaf for path, leaf in leaves(ours.actions).items()}
        if "observation" in columns:
            name = next(name for name in loaded.features if name.startswith("observation."))
            columns[name] = columns.pop("observation")
        if any(loaded.features[name]["dtype"] == "image" for name in columns):
            cast = "images to float32 from 0 to 1, channels first"
        for step in range(ours.length):
            row = loaded[at]
            at += 1
            for name, values in columns.items():
                equal(name, loaded.features[name], values[step], row[name])
            last = step == ours.length - 1
            same("next.reward", np.float32(ours.rewards[step]), row["next.reward"])
            same("next.done", last, row["next.done"])
            same("next.terminated", last and bool(ours.terminated), row["next.terminated"])
            same("next.truncated", last and bool(ours.truncated), row["next.truncated"])
            same("places", [number, step], [row["episode_index"], row["frame_index"]])
    assert (
        len(LeRobotDataset("user/name", root=exported, episodes=[0, 2]))
        == expected[0].length + expected[2].length
    )
    action = next(name for name in loaded.features if name.startswith("action"))
    shifted = LeRobotDataset("user/name", root=exported, delta_timestamps={action: [0, 1 / loaded.fps]})
    assert shifted[expected[0].length - 1][f"{action}_is_pad"].tolist() == [False, True]
    return cast


def equal(name: str, feature: dict[str, Any], expected: Any, actual: Any) -> None:
    if feature["dtype"] == "string":
        same(name, expected, actual)
    elif feature["dtype"] == "image":
        pixels = np.rint(actual.numpy() * 255).astype(np.uint8).transpose(1, 2, 0)
        same(name, np.atleast_3d(expected), pixels)
    else:
        values = expected.astype(CASTS.get(expected.dtype.kind, np.int64))
        same(name, values[0] if values.shape == (1,) else values, actual.numpy())
        assert actual.numpy().dtype == values.dtype, name


run(check, "lerobot", "datasets")
