"""TorchRL's replay buffer over tensors in memory."""
# /// script
# dependencies = ["torch==2.13.0", "torchrl"]
# ///

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer, TensorStorage
from torchrl.data.replay_buffers.samplers import RandomSampler, SliceSampler

from benchmarks.arrays import KINDS, flat
from benchmarks.peers.driver import Clock, main, read

BATCH, WINDOW = 256, 20


def _buffer(name: str, sampler: Any, batch: int) -> Any:
    arrays = {key: torch.from_numpy(values) for key, values in flat(KINDS[name]).items()}
    following = {
        "observation": arrays["next_observations"],
        "reward": arrays["rewards"][:, None],
        "terminated": arrays["terminated"][:, None],
        "truncated": arrays["truncated"][:, None],
        "done": arrays["terminated"][:, None],
    }
    rows = TensorDict(
        {
            "observation": arrays["observations"],
            "action": arrays["actions"],
            "episode": arrays["episodes"],
            "next": TensorDict(following, [len(arrays["rewards"])]),
        },
        [len(arrays["rewards"])],
    )
    return TensorDictReplayBuffer(storage=TensorStorage(rows), sampler=sampler, batch_size=batch)


def _sample(buffer: Any, batches: int, steps: int, clock: Clock) -> int:
    buffer.sample()
    with clock:
        for _ in range(batches):
            buffer.sample()
    return batches * steps


def transitions(name: str, steps: int, clock: Clock) -> int:
    """Sample batches of transitions."""
    return _sample(_buffer(name, RandomSampler(), BATCH), steps // BATCH, BATCH, clock)


def windows(name: str, steps: int, clock: Clock) -> int:
    """Sample batches of slices of episodes, whose ends are found once."""
    sampler = SliceSampler(slice_len=WINDOW, traj_key="episode", cache_values=True)
    rows = BATCH * WINDOW
    return _sample(_buffer(name, sampler, rows), steps // rows, rows, clock)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    main("torchrl", {mode.__name__: partial(read, mode) for mode in (transitions, windows)})
