"""Taken: what a worker in the sampler's own process has finished since its turn began."""

from __future__ import annotations

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.errors import RolloutError
from rollout_cli.samplers.local_order import Turns
from rollout_cli.workers import NumberedWorker, WorkerFactory


class Taken:
    """Settles episodes with the plan, and takes them from their worker.

    Args:
        factory: Whose checks they must pass.
        worker: Who runs them.
    """

    def __init__(self, factory: WorkerFactory, worker: NumberedWorker) -> None:
        self._factory, self._worker = factory, worker
        self._chunks: list[Chunk] = []
        self._n_rows = 0
        self._n_settled = len(worker.finished_numbers)

    @property
    def rows(self) -> int:
        """Return how many steps have been finished."""
        return self._n_rows + self._worker.finished_rows

    def settle_at_once(self, turns: Turns) -> None:
        """Settle what was finished since the last time; the checks come when it is taken."""
        first, worker = self._n_settled, self._worker
        self._n_settled = len(worker.finished_numbers)
        turns.settle(sorted(zip(worker.finished_numbers[first:], worker.finished_lengths[first:], strict=True)))

    def settle_checked(self, turns: Turns) -> RolloutError | None:
        """Take and settle what was finished and is sound; what is not stays open.

        Returns:
            What is wrong with the first episode that is not sound; None where all are.
        """
        chunk, bad = self._factory.take(self._worker)
        if chunk is not None:
            self._chunks.append(chunk)
            self._n_rows += chunk.n_steps
            turns.settle(list(zip(chunk.numbers.tolist(), chunk.lengths.tolist(), strict=True)))
        return bad

    def take(self) -> tuple[Chunk | None, RolloutError | None]:
        """Return all that was taken, None for nothing, and what is wrong with the first episode that is not sound."""
        chunk, bad = self._factory.take(self._worker)
        chunks = self._chunks if chunk is None else [*self._chunks, chunk]
        return concatenate(chunks) if chunks else None, bad
