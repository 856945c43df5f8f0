"""tianshou's replay buffer in memory."""
# /// script
# dependencies = ["torch==2.13.0", "tianshou"]
# ///

from __future__ import annotations

from functools import partial
from typing import Any

from tianshou.data import Batch, ReplayBuffer

from benchmarks.arrays import KINDS, flat
from benchmarks.peers.driver import Clock, main, read

BATCH, WINDOW = 256, 20


def _buffer(name: str, **options: Any) -> Any:
    arrays = flat(KINDS[name])
    buffer = ReplayBuffer(len(arrays["rewards"]), **options)
    rows = Batch(
        obs=arrays["observations"],
        act=arrays["actions"],
        rew=arrays["rewards"],
        terminated=arrays["terminated"],
        truncated=arrays["truncated"],
        done=arrays["terminated"],
        obs_next=arrays["next_observations"],
        info=Batch(),
    )
    buffer.set_batch(rows)
    buffer._size = len(rows)  # noqa: SLF001 - `set_batch` leaves it, and `add` takes a row at a time
    return buffer


def _sample(buffer: Any, batches: int, steps: int, clock: Clock) -> int:
    with clock:
        for _ in range(batches):
            buffer.sample(BATCH)
    return batches * steps


def transitions(name: str, steps: int, clock: Clock) -> int:
    """Sample batches of transitions."""
    return _sample(_buffer(name), steps // BATCH, BATCH, clock)


def windows(name: str, steps: int, clock: Clock) -> int:
    """Sample batches of transitions whose observations are those of the last steps, stacked."""
    return _sample(_buffer(name, stack_num=WINDOW), steps // BATCH // WINDOW, BATCH * WINDOW, clock)


if __name__ == "__main__":
    main("tianshou", {mode.__name__: partial(read, mode) for mode in (transitions, windows)})
