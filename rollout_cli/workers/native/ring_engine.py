"""RingEngine, the base class of the engines that record in a RolloutBuffer."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.workers.checks import ENDLESS_HINT, RESET, BadValueError, blame, episode_place, rows_place
from rollout_cli.workers.native.buffer import Episodes, RolloutBuffer
from rollout_cli.workers.values import NO_NUMBER
from rollout_cli.workers.worker import Setting


class RingEngine:
    """Takes and discards the episodes of n rows that a buffer records.

    Args:
        setting: The worker, policy, queue and limit.
        buffer: The buffer, with one column for each of its rows.
        n_rows: Number of rows that run episodes, the first of the buffer's `width` rows.
        width: Number of rows of the buffer.
    """

    one_at_a_time = False
    # The number of rows may change episodes: by autoresets, or since XLA compiles another program, which may
    # round differently.
    scope: Literal["any", "n_envs"] = "n_envs"
    not_reproducible: str | None = None
    casts: ClassVar[list[str]] = []

    def __init__(self, setting: Setting, buffer: RolloutBuffer, n_rows: int, width: int) -> None:
        self._worker = setting.worker
        self._queue = setting.queue
        self._acting = f"policy.{setting.policy.methods[1]}"
        self._n_rows = n_rows
        self._buffer = buffer
        self.row_bytes = buffer.row_bytes
        self._running = Episodes.none(width)
        self.where = RESET

    def fail(self, error: BaseException) -> None:
        """Forget the running episodes, and raise the error that names the user's code and the episode."""
        running = self._running
        # If no episode runs, a reset failed before the next episode, which is the lowest waiting number.
        numbers = self.running_numbers or tuple(self._queue.lowest[:1])
        place = rows_place(self._worker.worker_number, numbers, self._n_rows)
        if isinstance(error, BadValueError) and error.row is not None:
            numbers = (int(running.number[error.row]),)
            seed = int(running.seed[error.row])
            n_steps = self._buffer.step - int(running.start[error.row])
            place = episode_place(self._worker.worker_number, numbers[0], seed, n_steps)
        self.forget(NO_NUMBER)
        blame(self.where, error, place, numbers)

    @property
    def finished_rows(self) -> int:
        """Number of rows of finished episodes that were not taken."""
        return self._buffer.finished_rows

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """Numbers of the running episodes."""
        numbers = self._running.number
        return tuple(numbers[numbers != NO_NUMBER].tolist())

    def take(self, below: float, ended_before: float) -> list[Chunk]:
        """Remove and return finished episodes with numbers below `below`, or that ended before this time."""
        return self._buffer.take(below, ended_before)

    def forget(self, above: int) -> None:
        """Drop running and finished episodes with numbers above `above`."""
        numbers = self._running.number
        mask = numbers > above
        self._buffer.forget(numbers[mask].tolist())
        numbers[mask] = NO_NUMBER
        self._worker.crash_box.note(numbers[: self._n_rows])

    def _make_room(self, n_steps: int) -> None:
        """Let the buffer make room for the next `n_steps` steps; BadValueError for an endless episode."""
        lengths = np.where(self._running.number != NO_NUMBER, self._buffer.step - self._running.start, 0)
        self._buffer.make_room(self._running, n_steps)
        most = self._worker.rules.most_steps(self.row_bytes)
        if self._worker.env_spec.max_episode_length is None and lengths.max() >= most:
            raise BadValueError(
                f"the episode reached {lengths.max():,} steps without a time limit",
                ENDLESS_HINT,
                code="episode-endless",
                row=int(lengths.argmax()),
            )
