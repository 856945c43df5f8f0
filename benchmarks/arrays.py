"""Episodes as arrays, equal in every process: the data of the reading cases, which each tool stores in its format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """Episodes of equal length; they are generated in batches of `group` episodes."""

    steps: int
    length: int
    group: int
    shape: tuple[int, ...]
    dtype: str


KINDS = {
    "cartpole": Kind(10**6, 22, 2000, (4,), "f4"),
    "pong": Kind(20_000, 250, 1, (210, 160, 3), "u1"),
    "cartpole-7": Kind(10**7, 200, 500, (4,), "f4"),
    "cartpole-8": Kind(10**8, 200, 500, (4,), "f4"),
}


def cache() -> Path:
    """Return the folder with the data of the reading cases."""
    given = os.environ.get("ROLLOUT_BENCHMARKS_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "rollout-peers") / "reading"


def groups(kind: Kind) -> Iterator[tuple[Array, Array, Array]]:
    """Yield observations (n, length + 1, *shape), actions (n, length) and rewards (n, length) of n episodes."""
    rng = np.random.default_rng(0)
    for _ in range(-(-kind.steps // (kind.length * kind.group))):
        count, rows = kind.group, kind.length + 1
        if kind.dtype == "f4":
            observations = rng.standard_normal((count, rows, *kind.shape)).astype(np.float32)
        else:
            # A plain background and a moving square: compressible like game frames, unlike noise.
            observations = np.full((count, rows, *kind.shape), 87, np.uint8)
            for frame, (top, left) in zip(observations[0], rng.integers(0, 120, (rows, 2)), strict=True):
                frame[top : top + 16, left : left + 16] = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        yield observations, rng.integers(2, size=(count, kind.length)), rng.random((count, kind.length))


def flat(kind: Kind) -> dict[str, Array]:
    """Return all transitions, one per row, with their episode numbers."""
    parts = list(groups(kind))
    observations = np.concatenate([observations for observations, _, _ in parts])
    episodes = np.repeat(np.arange(len(observations)), kind.length)
    ends = np.tile(np.arange(kind.length) == kind.length - 1, len(observations))
    return {
        "observations": observations[:, :-1].reshape(-1, *kind.shape),
        "actions": np.concatenate([actions for _, actions, _ in parts]).reshape(-1),
        "rewards": np.concatenate([rewards for *_, rewards in parts]).reshape(-1),
        "next_observations": observations[:, 1:].reshape(-1, *kind.shape),
        "terminated": ends,
        "truncated": np.zeros(len(ends), bool),
        "episodes": episodes,
    }
