"""Hugging Face: `datasets.load_dataset` of the folder, both configurations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Image, load_dataset
from values import episodes, leaves, run, same


def check(dataset: Path, exported: Path) -> str:
    expected = episodes(dataset)
    with tempfile.TemporaryDirectory() as cache:
        steps = load_dataset(str(exported), split="train", cache_dir=cache)
        ends = load_dataset(str(exported), "episodes", split="train", cache_dir=cache)
        columns = {name: column(steps, name) for name in steps.column_names}
        ends_columns = {name: column(ends, name) for name in ends.column_names}
    same("lengths", [each.length for each in expected], ends_columns["length"])
    start = 0
    for number, ours in enumerate(expected):
        rows = slice(start, start + ours.length)
        start = rows.stop
        for path, leaf in leaves(ours.observations).items():
            name = f"observation.{path}".strip(".")
            same(name, leaf[:-1], columns[name][rows])
            same(name, leaf[-1], ends_columns[f"last_{name}"][number])
        for path, leaf in leaves(ours.actions).items():
            name = f"action.{path}".strip(".")
            same(name, leaf, columns[name][rows])
        same("reward", ours.rewards, columns["reward"][rows])
        same("episode_id", np.full(ours.length, number), columns["episode_id"][rows])
        same("step", np.arange(ours.length), columns["step"][rows])
        for name in ("terminated", "truncated"):
            flag = bool(getattr(ours, name))
            same(name, (np.arange(ours.length) == ours.length - 1) & flag, columns[name][rows])
            same(name, flag, ends_columns[name][number])
    return ""


def column(dataset: Any, name: str) -> Any:
    if isinstance(dataset.features[name], Image):
        return np.array([np.asarray(image) for image in dataset[name]])
    return np.array(dataset[name][:])


run(check, "datasets")
