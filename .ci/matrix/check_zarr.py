"""Zarr 2, by what Diffusion Policy's `ReplayBuffer.copy_from_path` does; that class is in no package.

It copies each array of `data` and `meta`, and asks that those of `data` are as long as the last of
`meta/episode_ends`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from values import episodes, leaves, run, same


def check(dataset: Path, exported: Path) -> str:
    expected = episodes(dataset)
    source, root = zarr.open(str(exported), mode="r"), zarr.group(zarr.MemoryStore())
    for group in ("data", "meta"):
        zarr.copy_store(source.store, root.store, source_path=group, dest_path=group)
    stops = np.cumsum([each.length for each in expected])
    same("episode_ends", stops, root["meta/episode_ends"][:])
    assert all(len(values) == root["meta/episode_ends"][-1] for _, values in root["data"].items())
    for number, (ours, stop) in enumerate(zip(expected, stops, strict=True)):
        rows = slice(stop - ours.length, stop)
        for path, leaf in leaves(ours.observations).items():
            name = f"obs.{path}".strip(".")
            equal(name, leaf[:-1], root[f"data/{name}"][rows])
            equal(name, leaf[-1], root[f"meta/last_{name}"][number])
        for path, leaf in leaves(ours.actions).items():
            name = f"action.{path}".strip(".")
            equal(name, leaf, root[f"data/{name}"][rows])
        equal("reward", ours.rewards, root["data/reward"][rows])
        ends = np.arange(ours.length) == ours.length - 1
        equal("terminated", ends & ours.terminated, root["data/terminated"][rows])
        equal("truncated", ends & ours.truncated, root["data/truncated"][rows])
    return ""


def equal(what: str, expected: Any, actual: Any) -> None:
    same(what, expected, actual)
    assert np.asarray(actual).dtype == expected.dtype, what


run(check, "zarr")
