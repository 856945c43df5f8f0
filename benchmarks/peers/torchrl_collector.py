"""TorchRL's collectors, saved in its memory-mapped replay buffer storage."""
# /// script
# dependencies = ["torch==2.13.0", "torchrl", "gymnasium"]
# ///

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchrl.collectors import Collector, MultiSyncCollector, RandomPolicy
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv

from benchmarks.peers.driver import ENV_ID, Clock, main

FRAMES = 2000


def _make(n_envs: int) -> Any:
    return SerialEnv(n_envs, lambda: GymEnv(ENV_ID))


def _collect(start: Callable[[int], Any], steps: int, output: Path, clock: Clock) -> int:
    total = -(-steps // FRAMES) * FRAMES
    collector = start(total)
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(total, scratch_dir=output / "scratch"))
    taken = 0
    with clock:
        for batch in collector:
            flat = batch.reshape(-1)
            buffer.extend(flat)
            taken += len(flat)
    collector.shutdown()
    return taken


def run_single(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Collect from 40 environments in this process."""
    del policy
    env = _make(40)
    return _collect(
        lambda total: Collector(
            env, RandomPolicy(env.action_spec), frames_per_batch=FRAMES, total_frames=total
        ),
        steps,
        output,
        clock,
    )


def run_multi(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Collect from 10 environments in each of two processes."""
    del policy

    def start(total: int) -> Any:
        chosen = RandomPolicy(_make(10).action_spec)
        return MultiSyncCollector(
            [lambda: _make(10)] * 2, chosen, frames_per_batch=FRAMES, total_frames=total
        )

    return _collect(start, steps, output, clock)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    main("torchrl", {"single": run_single, "multi": run_multi})
