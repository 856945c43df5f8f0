"""TorchRL's collectors, saved in its memory-mapped replay buffer storage."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiSyncCollector, RandomPolicy
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv

from benchmarks.peers.driver import ENV_ID, Task, main
from benchmarks.policies import BALANCING

BEST_SINGLE, BEST_MULTI = 1, 1
WORKERS = 2
FRAMES_PER_BATCH = 2000


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
    make = _maker(task.envs(BEST_SINGLE))
    env = make()
    return _collect(task, Collector(env, _policy(task, env), **_sizes(task)))


def run_multi(task: Task) -> int:
    """Collect in processes of their own."""
    make = _maker(task.envs(BEST_MULTI))
    return _collect(task, MultiSyncCollector([make] * WORKERS, _policy(task, make()), **_sizes(task)))


def _sizes(task: Task) -> dict[str, int]:
    batches = -(-task.steps // FRAMES_PER_BATCH)
    return {"frames_per_batch": FRAMES_PER_BATCH, "total_frames": batches * FRAMES_PER_BATCH}


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
    for batch in collector:
        flat = batch.reshape(-1)
        buffer.extend(flat)
        taken += len(flat)
    collector.shutdown()
    return taken


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    main("torchrl", {"single": run_single, "multi": run_multi})
