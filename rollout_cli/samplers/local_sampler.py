"""LocalSampler: all workers in the caller's process, one after another; for debugging and small runs."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack, suppress
from typing import Any

from rollout_cli.chunk import Chunk, for_transport
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import EnvLoadError, PolicyLoadError, RolloutError
from rollout_cli.samplers.local_order import LocalOrder, Turns
from rollout_cli.samplers.local_taken import Taken
from rollout_cli.samplers.messages import Failed
from rollout_cli.samplers.plan import MinTimesteps, Order, PlanState
from rollout_cli.samplers.reports import as_reported, failed_in, pack_error
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.supervision import Supervisor
from rollout_cli.samplers.updates import Update
from rollout_cli.samplers.worker_process import FLUSH_ROWS, load_pickled
from rollout_cli.seeding import BorrowedGenerators
from rollout_cli.workers import FragmentWorker, NumberedWorker

FLUSH_SECONDS = 0.1
"""Finished episodes are handed on at `FLUSH_ROWS` rows, or after so long."""

STOP_SECONDS = 0.1
"""How often a running episode is looked up from, to see whether the run is to end."""


class LocalSampler(Sampler):
    """Samples in the caller's process, whose global random generators it leaves as they are.

    Workers are built when their first episode comes: with one policy and one environment for all, worker 0 runs
    everything that may be run by anyone. The arguments are those of `Sampler`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers: dict[int, NumberedWorker] = {}
        self._borrowed = BorrowedGenerators()
        self._setup = ExitStack()
        self._turn = self._first_number = 0

    def start_worker(self) -> None:
        """Build the first worker."""
        self.wait_until_started()

    def wait_until_started(self) -> EnvSpec:
        """Build the first worker and return its `env_spec`."""
        with self._borrowed:
            self._worker(0)
        return self.env_spec

    def shutdown_worker(self) -> None:
        """Close the workers' environments, and leave their set-up."""
        workers, self._workers = self._workers, {}
        setup, self._setup = self._setup, ExitStack()
        with self._borrowed, setup:
            for worker in workers.values():
                worker.shutdown()

    def obtain_samples(self, itr: int, num_samples: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """Return the shortest run of episodes from `next_number` on with at least `num_samples` steps.

        With a FragmentWorker: what as many of its rollouts give as have at least `num_samples` steps, of all workers in
        turn where policies or environments differ by worker, else of one.

        Args:
            itr: The caller's iteration; only for the caller's own records.
            num_samples: Steps wanted, at least 1.
            agent_update: As in `stream`.
            env_update: As in `stream`.
        """
        if self._factory.whole_episodes:
            return super().obtain_samples(itr, num_samples, agent_update, env_update)
        plan = MinTimesteps(num_samples)
        self._update(self._note_updates(agent_update, env_update))
        batches: list[EpisodeBatch] = []
        while sum(map(_steps, batches)) < plan.timesteps:
            batches.append(self._roll_out(self._turn))
            self._turn = (self._turn + 1) % self.n_workers if self._updates.by_worker else 0
        batch = EpisodeBatch.concatenate(*batches)
        self.total_env_steps += _steps(batch)
        return batch

    def _roll_out(self, turn: int) -> EpisodeBatch:
        """Let a worker of fragments run once."""
        if not self._workers:
            self._first_number = self.next_number
        with self._borrowed:
            is_new = turn not in self._workers
            worker = self._worker(turn)
            assert isinstance(worker, FragmentWorker)
            if is_new:
                worker.number_stride = self.n_workers if self._updates.by_worker else 1
                worker.go_on_from(self._first_number)
            try:
                batch = worker.rollout()
            except Exception as error:
                worker.retract()
                raise as_reported(error) from error
        self.next_number = max(self.next_number, int(batch.numbers.max()) + 1)
        return batch

    def _process_state(self) -> dict[str, Any]:
        return {"_workers": {}, "_borrowed": BorrowedGenerators(), "_setup": ExitStack(), "_env_spec": None}

    def _run(self, state: PlanState, base: int, updates: list[Update], order: Order) -> Generator[Chunk, None, None]:
        del order  # One after another, episodes end in the order of their numbers.
        self._forget_last_call()
        self._update(updates)
        order_of = LocalOrder(state, base)
        turns = Turns(state, base, self.n_workers, by_worker=self._updates.by_worker, block=self.numbers_at_once)
        supervisor = Supervisor(self._supervision, self.seed)
        while not state.done and self._grace is None:
            with self._borrowed:
                worker = self._worker(turns.worker)
                worker.number_stride = self._stride(state)
                chunk, failure = self._run_some(worker, turns, supervisor)
                self._note_reason(worker.not_reproducible)
                fatal = None if failure is None else self._get_over(failure, worker, turns, supervisor)
            for number, reason in turns.skipped():
                order_of.skip(number)
                self._note_skipped(number, reason)
            if (wanted := order_of.next_part(chunk)) is not None:
                yield from for_transport(wanted)
            if fatal is not None:
                raise fatal

    def _run_some(
        self, worker: NumberedWorker, turns: Turns, supervisor: Supervisor
    ) -> tuple[Chunk | None, Exception | None]:
        """Run episodes of one worker until a chunk is worth handing on, it is another's turn, or something fails.

        Returns:
            What ended well, None for nothing, and what failed.
        """
        turn, taken = turns.worker, Taken(self._factory, worker)
        flush_at = time.perf_counter() + FLUSH_SECONDS
        # Where the run gets over a failure, what the checks find must be known before an episode counts: another one
        # may be run in its place. Elsewhere it ends the call, and many episodes are checked at once.
        settle = taken.settle_checked if self._supervision.on_env_error != "fail" else taken.settle_at_once
        failure: Exception | None = None
        while failure is None and turns.worker == turn and taken.rows < FLUSH_ROWS and not turns.state.done:
            worker.assign(turns.lease())
            try:
                self._run_out(worker)
            except Exception as caught:  # noqa: BLE001  What was finished before is handed on first.
                failure = caught
            bad = settle(turns)
            failure = failure or bad
            if failure is None:
                supervisor.progressed()
            if self._grace is not None or time.perf_counter() >= flush_at:
                break
        chunk, bad = taken.take()
        return chunk, failure or bad

    def _get_over(
        self, error: Exception, worker: NumberedWorker, turns: Turns, supervisor: Supervisor
    ) -> RolloutError | None:
        """Do what is to be done about a failure; return what ends the call."""
        worker.retract()
        numbers = failed_in(error, turns.open)
        if not numbers or self._supervision.on_env_error == "fail":
            return as_reported(error)
        verdict = supervisor.failed(Failed(worker.worker_number, 0, pack_error(error), numbers), turns.open)
        if verdict.error is not None:
            return verdict.error
        self.tell(verdict.notice)
        turns.go_on(skipped=verdict.skipped, reason=verdict.reason, alone=verdict.alone)
        del self._workers[worker.worker_number]
        # The failure was told; that what it left cannot be closed either is no news.
        with suppress(Exception):
            worker.shutdown()
        return None

    def _run_out(self, worker: NumberedWorker) -> None:
        """Run what was assigned; asked to stop, only what holds up episodes that ended, for the grace time."""
        ends_at = None
        while worker.has_work:
            worker.advance(time.perf_counter() + STOP_SECONDS)
            if self._grace is None:
                continue
            ends_at = ends_at or time.perf_counter() + self._grace
            ended = worker.finished_numbers if time.perf_counter() < ends_at else []
            worker.retract(above=max(ended, default=-1))

    def _forget_last_call(self) -> None:
        """Drop what an earlier call left behind that was interrupted (Ctrl-C) in the middle of an episode."""
        for worker in self._workers.values():
            worker.retract()
            worker.take()

    def _update(self, updates: list[Update]) -> None:
        """Apply one call's updates to the workers that are there; later ones get them from their histories."""
        try:
            with self._borrowed:
                for number, worker in self._workers.items():
                    _apply(worker, *updates[number])
                    self._learn(worker.env_spec, worker.facts())
        except BaseException:
            # Between the old policy and environment and the new ones, no worker is of any use to a later call.
            self.shutdown_worker()
            raise

    def _worker(self, number: int) -> NumberedWorker:
        if number not in self._workers:
            if not self._workers:
                # One for all workers: they share the process, and are closed together.
                self._setup.close()
                self._setup.enter_context(self._factory.setup())
            worker = self._factory(number)
            for update in self._updates.histories[number].updates:
                _apply(worker, *update)
            self._workers[number] = worker
            self._learn(worker.env_spec, worker.facts())
        return self._workers[number]


def _apply(worker: NumberedWorker, agent: Any, env: Any) -> None:
    try:
        worker.update_env(load_pickled(env, EnvLoadError))
        worker.update_agent(load_pickled(agent, PolicyLoadError))
    except Exception as error:
        raise as_reported(error) from error


def _steps(batch: EpisodeBatch) -> int:
    return len(batch.rewards)
