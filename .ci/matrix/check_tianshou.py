"""Tianshou's `ReplayBuffer.from_data`, and a batch by index."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from values import episodes, run, same

FIELDS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")


def check(dataset: Path, exported: Path) -> str:
    from tianshou.data import ReplayBuffer

    with h5py.File(exported) as file:
        buffer = ReplayBuffer.from_data(*(file[name][()] for name in FIELDS))
    expected = episodes(dataset)
    batch = buffer[np.arange(len(buffer))]
    at_end = [np.arange(each.length) == each.length - 1 for each in expected]
    wanted = {
        "obs": np.concatenate([each.observations[:-1] for each in expected]),
        "act": np.concatenate([each.actions for each in expected]),
        "rew": np.concatenate([each.rewards for each in expected]),
        "terminated": np.concatenate(
            [end & each.terminated for end, each in zip(at_end, expected, strict=True)]
        ),
        "truncated": np.concatenate(
            [end & each.truncated for end, each in zip(at_end, expected, strict=True)]
        ),
        "done": np.concatenate(at_end),
        "obs_next": np.concatenate([each.observations[1:] for each in expected]),
    }
    for name, values in wanted.items():
        read = getattr(batch, name)
        same(name, values, read)
        assert values.dtype == read.dtype, name
    return ""


run(check, "tianshou")
