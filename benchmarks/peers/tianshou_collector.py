"""tianshou's Collector, with its VectorReplayBuffer as the record, saved as HDF5."""
# /// script
# dependencies = ["torch==2.13.0", "tianshou"]
# ///

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv

from benchmarks.peers.driver import ENV_ID, Clock, chooser, main

N_ENVS = 256


class _Chooser(Policy):
    """The benchmark's policy in tianshou's interface."""

    def __init__(self, policy: str, action_space: Any) -> None:
        super().__init__(action_space=action_space)
        self._choose = chooser(policy)

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        del state
        return Batch(act=self._choose(batch.obs))


def run(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Collect steps and save the buffer."""
    envs: Any = DummyVectorEnv([functools.partial(gymnasium.make, ENV_ID)] * N_ENVS)
    steps = -(-steps // N_ENVS) * N_ENVS
    buffer = VectorReplayBuffer(steps, N_ENVS)
    collector: Any = Collector(_Chooser(policy, envs.action_space[0]), envs, buffer)
    collector.reset()
    with clock:
        taken = int(collector.collect(n_step=steps).n_collected_steps)
        buffer.save_hdf5(str(output / "buffer.hdf5"))
    envs.close()
    return taken


if __name__ == "__main__":
    main("tianshou", {"collector": run})
