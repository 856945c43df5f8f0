"""TorchRL's collectors, saved in its memory-mapped replay buffer storage."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiSyncCollector, RandomPolicy
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv

from benchmarks.peers.driver import ENV_ID, Mode, Task, main
from benchmarks.policies import BALANCING


class _Linear(torch.nn.Module):
    """Balances the pole; actions are one-hot, as TorchRL has them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.from_numpy(BALANCING))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        right = (observation @ self.weights > 0).long()
        return torch.nn.functional.one_hot(right, 2)


def run_single(task: Task) -> int:
    """Collect in this process."""
    env = _maker(task.n_envs)()
    return _collect(task, Collector(env, _policy(task, env), **_sizes(task)))


def run_multi(task: Task) -> int:
    """Collect in processes of their own."""
    make = _maker(task.n_envs)
    makers = [make] * task.settings["processes"]
    return _collect(task, MultiSyncCollector(makers, _policy(task, make()), **_sizes(task)))


def _sizes(task: Task) -> dict[str, int]:
    frames = task.settings["frames"]
    return {"frames_per_batch": frames, "total_frames": -(-task.steps // frames) * frames}


def _maker(n_envs: int) -> Any:
    def make() -> Any:
        return GymEnv(ENV_ID) if n_envs == 1 else SerialEnv(n_envs, lambda: GymEnv(ENV_ID))

    return make


def _policy(task: Task, env: Any) -> Any:
    if task.policy == "random":
        return RandomPolicy(env.action_spec)
    return TensorDictModule(_Linear(), in_keys=["observation"], out_keys=["action"])


def _collect(task: Task, collector: Any) -> int:
    storage = LazyMemmapStorage(_sizes(task)["total_frames"], scratch_dir=task.output / "scratch")
    buffer = TensorDictReplayBuffer(storage=storage)
    taken = 0
    with task.clock:
        for batch in collector:
            flat = batch.reshape(-1)
            buffer.extend(flat)
            taken += len(flat)
    collector.shutdown()
    return taken


def read(folder: Path) -> dict[str, int]:
    """Count the rows."""
    saved: Any = TensorDict.load_memmap(folder / "scratch")
    columns = ("observation", "action", ("next", "reward"), ("next", "terminated"), ("next", "truncated"))
    return {str(column): len(saved.get(column)) for column in columns}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    single = [{"envs": 1, "frames": frames} for frames in (200, 2000, 10000)]
    serial = [{"envs": n, "frames": 2000} for n in (2, 8, 40)]
    multi = [{"processes": 2, "envs": n, "frames": frames} for n, frames in ((1, 2000), (1, 10000), (10, 2000))]
    main(
        "torchrl",
        {
            "single": Mode(run_single, {"envs": 40, "frames": 2000}, tried=[*single, *serial], read=read),
            "multi": Mode(run_multi, {"processes": 2, "envs": 10, "frames": 2000}, tried=multi, read=read),
        },
    )
