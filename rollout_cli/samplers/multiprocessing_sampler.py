"""MultiprocessingSampler: every worker in a process of its own, streaming, so that nobody waits for anybody."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InterruptedRunError, RolloutError, WorkerError
from rollout_cli.escaping import printable
from rollout_cli.samplers import sampler_machine as sm
from rollout_cli.samplers.leasing import FixedLeases, LeaseSizer, ThroughputLeases
from rollout_cli.samplers.messages import Failed, Start, Started
from rollout_cli.samplers.plan import Order, PlanState
from rollout_cli.samplers.reorder import EpisodeBuffer, episode_buffer
from rollout_cli.samplers.reports import unpack_error
from rollout_cli.samplers.sampler import Sampler, Updates
from rollout_cli.samplers.starting import StartMethod
from rollout_cli.samplers.worker_pool import WorkerPool

_clock = time.monotonic


class MultiprocessingSampler(Sampler):
    """Samples with worker processes that avoid waiting as much as possible.

    The sampler leases episode numbers to workers ahead of their need, hands each finished episode on in the order of
    the numbers, and waits for pipes and process deaths at once. A worker never blocks on sending.

    Args:
        args: As in `Sampler`.
        start_method: `forkserver`, `spawn`, or `fork` (only where the process has no threads).
        lease_size: Numbers leased at a time; by default as many as a worker runs in 0.2 s.
        kwargs: As in `Sampler`.

    Raises:
        UsageError: If the workers give parts of episodes.
    """

    def __init__(
        self, *args: Any, start_method: StartMethod = "forkserver", lease_size: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._factory.require_whole_episodes("MultiprocessingSampler")
        self._start_method: StartMethod = start_method
        self._lease_size = lease_size
        self._pool: WorkerPool | None = None
        self._version = 0

    # -- workers ---------------------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """Start the worker processes and let them build; does not wait for them."""
        if self._pool is not None:
            return
        payloads = [cloudpickle.dumps((self._factory, *history.updates[0])) for history in self._histories]
        titles = [f"rollout-worker[{number}] {printable(label)}" for number, label in enumerate(self._labels)]
        self._pool = WorkerPool(payloads, titles, self._start_method)
        self._version += 1
        for worker, history in enumerate(self._histories):
            # The first `Start` builds what the process was given; each further update has one of its own.
            for agent, env in [(None, None), *history.updates[1:]]:
                self._pool.send(worker, Start(self._version, agent, env))

    def wait_until_started(self) -> EnvSpec:
        """Start the workers, wait until one has built its environment and policy, and return its `env_spec`."""
        if self._env_spec is None:
            self.start_worker()
            with self._torn_down_on_error():
                while self._env_spec is None:
                    self._learn_from(self._the_pool().wait())
                    if self._grace is not None:
                        raise InterruptedRunError("the run was ended before a worker had started")
        return self.env_spec

    def _learn_from(self, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, Started):
                self._learn(event.env_spec, event.facts)
            elif isinstance(event, Failed | sm.Died):
                raise _as_error(event)

    def request_stop(self, *, grace: float = 0.0) -> None:
        """Let the stream that runs, or else the next one, end early with what is finished."""
        super().request_stop(grace=grace)
        if self._pool is not None:
            self._pool.wake()

    def shutdown_worker(self) -> None:
        """End the worker processes, and whatever their environments started."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _process_state(self) -> dict[str, Any]:
        return {"_pool": None, "_env_spec": None}

    def _the_pool(self) -> WorkerPool:
        assert self._pool is not None
        return self._pool

    @contextmanager
    def _torn_down_on_error(self) -> Iterator[None]:
        """After an error, no worker is in a state that a later call could rely on."""
        try:
            yield
        except GeneratorExit:
            raise  # The caller has enough; the workers were told to stop.
        except BaseException:
            self.shutdown_worker()
            raise

    # -- one call --------------------------------------------------------------------------------------------------

    def _run(self, state: PlanState, base: int, updates: Updates, order: Order) -> Generator[Chunk, None, None]:
        if self._pool is None:
            self.start_worker()
            updates = [(None, None)] * self.n_workers  # They are in the histories, which new workers are built from.
        self._version += 1
        sizer = self._sizer()
        machine = sm.SamplerMachine(
            state,
            base=base,
            version=self._version,
            n_workers=self.n_workers,
            sizer=sizer,
            stride=self._stride(state),
        )
        buffer = episode_buffer(state, base, order=order)
        call = _Call(machine, buffer, self._the_pool(), learn=self._learn, note=self._note_reason)
        with self._torn_down_on_error():
            yield from call.run(updates, grace=lambda: self._grace)
            self.dropped_episodes = call.dropped

    def _sizer(self) -> LeaseSizer:
        if self._lease_size:
            return FixedLeases(self._lease_size)
        return ThroughputLeases(n_workers=self.n_workers, block=self.numbers_at_once)


class _Call:
    """Carries out one machine's instructions."""

    def __init__(
        self,
        machine: sm.SamplerMachine,
        buffer: EpisodeBuffer,
        pool: WorkerPool,
        *,
        learn: Callable[[EnvSpec, dict[str, Any]], None],
        note: Callable[[str | None], None],
    ) -> None:
        self._machine, self._buffer, self._pool = machine, buffer, pool
        self._learn, self._note = learn, note
        self._failure: Failed | sm.Died | None = None
        self._ends_at = math.inf
        self._ended = self._handed_on = 0

    @property
    def dropped(self) -> int:
        """Return how many episodes ended and were not handed on, since one before them did not end."""
        return self._ended - self._handed_on

    def run(self, updates: Updates, *, grace: Callable[[], float | None]) -> Generator[Chunk, None, None]:
        """Yield chunks until the plan is done or stopped; what was finished before a failure comes before its error.

        Args:
            updates: The agent and env updates of each worker.
            grace: None, until the run is asked to end: then the seconds that are left to what holds others up.
        """
        try:
            self._carry_out(self._machine.begin(updates, _clock()))
            while True:
                for chunk in self._buffer.ready():
                    self._handed_on += _whole_episodes(chunk)
                    yield chunk
                if self._failure is not None:
                    raise _as_error(self._failure)
                seconds = grace()
                if seconds is not None and not self._machine.stopping:
                    self._ends_at = _clock() + seconds
                    self._carry_out(self._machine.stop())
                if self._machine.plan.done or self._machine.stopped or _clock() >= self._ends_at:
                    return
                self._take(self._pool.wait(None if seconds is None else self._ends_at - _clock()))
        finally:
            self._carry_out(self._machine.end())
            self._buffer.close()

    def _take(self, events: Iterable[Any]) -> None:
        was_full = self._machine.buffer_is_full
        self._machine.buffer_is_full = self._buffer.is_full
        if was_full and not self._machine.buffer_is_full:
            self._carry_out(self._machine.handle(sm.BufferDrained(), _clock()))
        for event in events:
            self._carry_out(self._machine.handle(event, _clock()))

    def _carry_out(self, instructions: sm.Instructions) -> None:
        for instruction in instructions:
            match instruction:
                case sm.SendTo(worker, message):
                    self._pool.send(worker, message)
                case sm.Keep(batch):
                    self._ended += len(batch.lengths) if batch.part is None else batch.part.is_last
                    self._note(batch.not_reproducible)
                    self._buffer.add(batch)
                case sm.Learn(started):
                    self._learn(started.env_spec, started.facts)
                case sm.Fail(event):
                    self._failure = self._failure or event


def _whole_episodes(chunk: Chunk) -> int:
    return chunk.n_episodes if chunk.part is None else int(chunk.part.is_last)


def _as_error(event: Failed | sm.Died) -> RolloutError:
    if isinstance(event, Failed):
        return unpack_error(event.error)
    return WorkerError(
        f"worker {event.worker} {event.reason}",
        hint="out of memory, or a crash in the environment's or policy's native code; --sampler local shows more",
    )
