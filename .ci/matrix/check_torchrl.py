"""TorchRL: the memory maps that tensordict loads, and slices of episodes from a replay buffer over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDict
from torchrl.data import SliceSampler, TensorDictReplayBuffer, TensorStorage
from values import episodes, leaves, run, same


def check(dataset: Path, exported: Path) -> str:
    loaded = TensorDict.load_memmap(exported)
    expected = episodes(dataset)
    start = 0
    for number, ours in enumerate(expected):
        theirs = loaded[start : start + ours.length]
        start += ours.length
        for what, values in (("observation", ours.observations), ("action", ours.actions)):
            for path, leaf in leaves(values).items():
                key = tuple(f"{what}.{path}".strip(".").split("."))
                equal(what, leaf[: ours.length], theirs[key])
                if what == "observation":
                    equal("next", leaf[1:], theirs["next", *key])
        equal("reward", ours.rewards.astype(np.float32)[:, None], theirs["next", "reward"])
        ends = (np.arange(ours.length) == ours.length - 1)[:, None]
        equal("terminated", ends & ours.terminated, theirs["next", "terminated"])
        equal("truncated", ends & ours.truncated, theirs["next", "truncated"])
        equal("done", ends, theirs["next", "done"])
        equal("episode", np.full(ours.length, number), theirs["episode"])
    assert start == len(loaded)
    slices = SliceSampler(slice_len=2, traj_key="episode", strict_length=False)
    buffer = TensorDictReplayBuffer(storage=TensorStorage(loaded), sampler=slices, batch_size=20)
    assert len(buffer.sample()) > 0
    return "rewards as float32"


def equal(what: str, expected: Any, actual: Any) -> None:
    same(what, expected, actual.numpy())
    assert actual.numpy().dtype == expected.dtype, what


run(check, "torchrl", "tensordict")
