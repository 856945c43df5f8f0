"""MultiprocessingSampler: every worker in a process of its own, streaming, so that nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InterruptedRunError
from rollout_cli.escaping import printable
from rollout_cli.samplers.call import Call, Hooks
from rollout_cli.samplers.leasing import FixedLeases, LeaseSizer, ThroughputLeases
from rollout_cli.samplers.messages import Failed, Start, Started
from rollout_cli.samplers.plan import Order, PlanState
from rollout_cli.samplers.reorder import episode_buffer
from rollout_cli.samplers.reports import unpack_error
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.sampler_machine import SamplerMachine
from rollout_cli.samplers.starting import StartMethod
from rollout_cli.samplers.supervision import Died, Supervisor
from rollout_cli.samplers.updates import Update
from rollout_cli.samplers.worker_pool import WorkerPool


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
        self._supervisor = Supervisor(self._supervision, self.seed)

    # -- workers ---------------------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """Start the worker processes and let them build; does not wait for them."""
        if self._pool is not None:
            return
        payloads = [self._payload(worker) for worker in range(self.n_workers)]
        titles = [f"rollout-worker[{number}] {printable(label)}" for number, label in enumerate(self._updates.labels)]
        self._pool = WorkerPool(payloads, titles, self._start_method, self._supervision)
        self._supervisor = Supervisor(self._supervision, self.seed)
        self._version += 1
        for worker in range(self.n_workers):
            self._begin(worker)

    def _payload(self, worker: int) -> bytes:
        payload: bytes = cloudpickle.dumps((self._factory, *self._updates.histories[worker].updates[0]))
        return payload

    def _begin(self, worker: int) -> None:
        """Let a new process build what it was given, and apply what followed; its last answer is of this version."""
        *before, last = (None, None), *self._updates.histories[worker].updates[1:]
        for agent, env in before:
            self._the_pool().send(worker, Start(self._version - 1, agent, env))
        self._the_pool().send(worker, Start(self._version, *last))

    def _catch_up(self, worker: int, first: Start) -> None:
        """Bring a new worker to where the others are: after what builds it, each further update by a `Start`."""
        pool = self._the_pool()
        pool.send(worker, first)
        for agent, env in self._updates.histories[worker].updates[1:]:
            pool.send(worker, Start(first.version, agent, env))

    def _restart(self, worker: int, start: Start) -> None:
        """Start a worker's process again; what it answers before `start` is of an older version, and so discarded."""
        self._the_pool().restart(worker, self._payload(worker))
        self._catch_up(worker, Start(start.version - 1))
        self._the_pool().send(worker, start)

    def _rebuild(self, worker: int, start: Start) -> None:
        """Let a worker build everything anew in its process."""
        agent, env = self._updates.histories[worker].updates[0]
        self._catch_up(worker, Start(start.version - 1, agent, env, anew=True))
        self._the_pool().send(worker, start)

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
        """Take what workers tell while they start; what they told before of earlier updates and episodes is past."""
        for event in events:
            match event:
                case Started(version=self._version):
                    self._learn(event.env_spec, event.facts)
                case Failed(numbers=[_, *_]):
                    # It has ignored its `Start`, for an episode of an earlier call has left it in any state.
                    self._rebuild(event.worker, Start(self._version))
                case Failed(version=self._version):
                    raise unpack_error(event.error)
                case Died():
                    self._start_again(event)

    def _start_again(self, death: Died) -> None:
        verdict = self._supervisor.died(death, (), starting=True)
        if verdict.error is not None:
            raise verdict.error
        self.tell(verdict.notice)
        self._the_pool().restart(death.worker, self._payload(death.worker))
        self._begin(death.worker)

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

    def _run(self, state: PlanState, base: int, updates: list[Update], order: Order) -> Generator[Chunk, None, None]:
        if self._pool is None:
            self.start_worker()
            updates = [(None, None)] * self.n_workers  # They are in the histories, which new workers are built from.
        self._version += 1
        sizer = self._sizer()
        self._supervisor.begin_call()
        machine = SamplerMachine(
            state,
            base=base,
            version=self._version,
            n_workers=self.n_workers,
            sizer=sizer,
            supervisor=self._supervisor,
            stride=self._stride(state),
        )
        hooks = Hooks(
            learn=self._learn,
            note_reason=self._note_reason,
            restart=self._restart,
            rebuild=self._rebuild,
            note_skipped=self._note_skipped,
            tell=self.tell,
        )
        call = Call(machine, episode_buffer(state, base, order=order), self._the_pool(), hooks)
        try:
            with self._torn_down_on_error():
                yield from call.run(updates, grace=lambda: self._grace)
                self.dropped_episodes = call.dropped
        finally:
            # A caller may have enough after the episodes that come before a failure: it is then told of none.
            if call.has_failed:
                self.shutdown_worker()

    def _sizer(self) -> LeaseSizer:
        if self._lease_size:
            return FixedLeases(self._lease_size)
        return ThroughputLeases(n_workers=self.n_workers, block=self.numbers_at_once)
