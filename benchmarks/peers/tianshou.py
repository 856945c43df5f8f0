"""tianshou's Collector, with its VectorReplayBuffer as the record, saved as HDF5."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv

from benchmarks.peers.driver import ENV_ID, Array, Mode, Task, main

_FILE = "buffer.hdf5"


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
    n_envs = task.n_envs
    make = [functools.partial(gymnasium.make, ENV_ID)] * n_envs
    # With processes, there is one for each environment, and observations are in shared memory.
    envs: Any = ShmemVectorEnv(make) if task.settings.get("processes") else DummyVectorEnv(make)
    steps = -(-task.steps // n_envs) * n_envs
    buffer = VectorReplayBuffer(steps, n_envs)
    collector: Any = Collector(_Chooser(task, envs.action_space[0]), envs, buffer)
    collector.reset()
    with task.clock:
        taken = int(collector.collect(n_step=steps).n_collected_steps)
        buffer.save_hdf5(str(task.output / _FILE))
    envs.close()
    return taken


def read(folder: Path) -> dict[str, int]:
    """Count the rows."""
    buffer: Any = VectorReplayBuffer.load_hdf5(str(folder / _FILE))
    whole = buffer[: len(buffer)]
    return {name: len(whole[name]) for name in ("obs", "act", "rew", "terminated", "truncated")}


if __name__ == "__main__":
    tried = [*({"envs": n} for n in (1, 8, 16, 64, 256)), *({"envs": n, "processes": n} for n in (2, 8))]
    main("tianshou", {"collector": Mode(run, best={"envs": 256}, tried=tried, read=read)})
