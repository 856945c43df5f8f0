"""d3rlpy's own reader: `ReplayBuffer.load`, its picker of transitions, and a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from values import action_start, episodes, run, same


def vectors(values: Any) -> Any:
    """Return numbers (T,) as vectors of one, as d3rlpy has them."""
    return values[:, None] if values.ndim == 1 else values


def check(dataset: Path, exported: Path) -> str:
    from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer

    with exported.open("rb") as file:
        buffer = ReplayBuffer.load(file, InfiniteBuffer())
    expected = episodes(dataset)
    assert len(buffer.episodes) == len(expected)
    assert buffer.transition_count == sum(each.length for each in expected)
    for ours, theirs in zip(expected, buffer.episodes, strict=True):
        assert theirs.transition_count == ours.length
        assert theirs.terminated == ours.terminated
        rows = [buffer.transition_picker(theirs, at) for at in range(ours.length)]
        is_tuple = isinstance(ours.observations, dict)
        for key, mine in (ours.observations if is_tuple else {"": ours.observations}).items():
            for at, row in enumerate(rows):
                now, later = (
                    each[int(key)] if is_tuple else each for each in (row.observation, row.next_observation)
                )
                same(f"observations.{key} {at}", vectors(mine)[at], now)
                # d3rlpy has zeros after a terminal step, whatever the dataset holds.
                same(f"next {key} {at}", vectors(mine)[at + 1] if not row.terminal else 0 * later, later)
        actions = vectors(ours.actions - action_start(dataset))
        same("actions", actions, np.array([row.action for row in rows]))
        same("rewards", ours.rewards.astype(np.float32), np.concatenate([row.reward for row in rows]))
        ends = np.arange(ours.length) == ours.length - 1
        same("terminated", ends & ours.terminated, np.array([row.terminal for row in rows], bool))
    batch = buffer.sample_transition_batch(16)
    assert batch.rewards.dtype == batch.actions.dtype == np.float32
    seen = batch.observations if isinstance(batch.observations, list | tuple) else [batch.observations]
    assert all(each.dtype in (np.float32, np.uint8) for each in seen)
    return "float32 batches"


run(check, "d3rlpy")
