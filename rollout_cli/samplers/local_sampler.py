"""LocalSampler: all workers in the caller's process, one after another; for debugging and small runs."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from rollout_cli.chunk import Chunk, for_transport
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvLoadError, PolicyLoadError
from rollout_cli.samplers.plan import Order, PlanState
from rollout_cli.samplers.reports import as_reported
from rollout_cli.samplers.sampler import Sampler, Updates
from rollout_cli.samplers.worker_process import load_pickled
from rollout_cli.seeding import BorrowedGenerators
from rollout_cli.workers import Worker

FLUSH_ROWS = 2048
STOP_SECONDS = 0.1
"""How often a running episode is looked up from, to see whether the run is to end."""


class LocalSampler(Sampler):
    """Samples in the caller's process, whose global random generators it leaves as they are.

    Workers are built when their first episode comes: with one policy and one environment for all, worker 0 runs
    everything that may be run by anyone. The arguments are those of `Sampler`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers: dict[int, Worker] = {}
        self._borrowed = BorrowedGenerators()

    def start_worker(self) -> None:
        """Build the first worker."""
        self.wait_until_started()

    def wait_until_started(self) -> EnvSpec:
        """Build the first worker and return its `env_spec`."""
        with self._borrowed:
            self._worker(0)
        return self.env_spec

    def shutdown_worker(self) -> None:
        """Close the workers' environments."""
        workers, self._workers = self._workers, {}
        with self._borrowed:
            for worker in workers.values():
                worker.shutdown()

    def _process_state(self) -> dict[str, Any]:
        return {"_workers": {}, "_borrowed": BorrowedGenerators(), "_env_spec": None}

    def _run(self, state: PlanState, base: int, updates: Updates, order: Order) -> Generator[Chunk, None, None]:
        del order  # One after another, episodes end in the order of their numbers.
        with self._borrowed:
            self._update(updates)
        whose = _Turns(state, self.n_workers, by_worker=self._by_worker)
        while not state.done and not self._stop_requested:
            error: Exception | None = None
            with self._borrowed:
                worker = self._worker(whose.worker)
                try:
                    self._run_some(worker, whose, base)
                except Exception as caught:  # noqa: BLE001  What was finished before is handed on first.
                    error = caught
                chunk = worker.take()
            if chunk is not None:
                yield from for_transport(chunk)
            if error is not None:
                worker.retract()
                raise as_reported(error)

    def _run_some(self, worker: Worker, whose: _Turns, base: int) -> None:
        """Run episodes of one worker until a chunk is worth handing on, or it is another's turn."""
        turn = whose.worker
        while whose.worker == turn and worker.finished_rows < FLUSH_ROWS and not whose.state.done:
            offset = whose.lease()
            before = worker.finished_rows
            worker.assign([base + offset])
            while worker.has_work:
                worker.advance(time.perf_counter() + STOP_SECONDS)
                if self._stop_requested:
                    worker.retract()
                    return
            whose.settle(turn, offset, worker.finished_rows - before)

    def _update(self, updates: Updates) -> None:
        """Apply one call's updates to the workers that are there; later ones get them from their histories."""
        for number, worker in self._workers.items():
            _apply(worker, *updates[number])
            self._learn(worker.env_spec, worker.facts())

    def _worker(self, number: int) -> Worker:
        if number not in self._workers:
            worker = self._factory(number)
            for update in self._histories[number].updates:
                _apply(worker, *update)
            self._workers[number] = worker
            self._learn(worker.env_spec, worker.facts())
        return self._workers[number]


def _apply(worker: Worker, agent: Any, env: Any) -> None:
    try:
        worker.update_env(load_pickled(env, EnvLoadError))
        worker.update_agent(load_pickled(agent, PolicyLoadError))
    except Exception as error:
        raise as_reported(error) from error


class _Turns:
    """Whose turn it is, so that episodes come in the order of their offsets."""

    def __init__(self, state: PlanState, n_workers: int, *, by_worker: bool) -> None:
        self.state = state
        self.worker = 0
        self._n_workers = n_workers
        self._by_worker = by_worker
        self._left_in_lane: int | None = None

    def lease(self) -> int:
        """Lease the next offset to the worker whose turn it is."""
        (offsets,) = self.state.lease(self.worker, 1)
        return offsets.start

    def settle(self, worker: int, offset: int, length: int) -> None:
        """Settle an offset, and pass the turn on where the next one is another worker's."""
        self.state.settle(worker, [offset], [length])
        if self.state.n_lanes > 1:
            self.worker += offset == self.state.last_of_lane(self.worker)
        elif self._by_worker:
            self.worker = (worker + 1) % self._n_workers
