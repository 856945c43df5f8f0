"""tianshou's Collector, with its VectorReplayBuffer as the record, saved as HDF5."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv

from benchmarks.peers.driver import ENV_ID, Array, Task, main

BEST = 16


class _Chooser(Policy):
    """The benchmark's policy as tianshou calls one."""

    def __init__(self, task: Task, action_space: Any) -> None:
        super().__init__(action_space=action_space)
        self._choose = task.chooser()

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        del state
        observations: Array = batch.obs
        return Batch(act=self._choose(observations))


def run(task: Task) -> int:
    """Collect steps and save the buffer."""
    envs = DummyVectorEnv([functools.partial(gymnasium.make, ENV_ID)] * task.envs(BEST))
    n_envs = task.envs(BEST)
    steps = -(-task.steps // n_envs) * n_envs
    buffer = VectorReplayBuffer(steps, n_envs)
    collector: Any = Collector(_Chooser(task, envs.action_space[0]), envs, buffer)
    collector.reset()
    taken = int(collector.collect(n_step=steps).n_collected_steps)
    buffer.save_hdf5(str(task.output / "buffer.hdf5"))
    return taken


if __name__ == "__main__":
    main("tianshou", {"collector": run})
