"""Sampler: runs plans over a pool of workers, and hands the episodes on in order.

What a call does, restarts, updates for new workers, order and recovery are here, once; a subclass gives the pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.errors import InternalError, InterruptedRunError, UsageError
from rollout_cli.progress import shown
from rollout_cli.samplers.leases import Leases, LeaseSize
from rollout_cli.samplers.messages import Reported, Started, Update, as_raised
from rollout_cli.samplers.plan import EpisodesPerWorker, MinTimesteps, Plan, PlanState
from rollout_cli.samplers.pool import Pool
from rollout_cli.samplers.reorder import ReorderBuffer
from rollout_cli.samplers.sampler_machine import SamplerMachine
from rollout_cli.samplers.supervision import Supervision, Supervisor
from rollout_cli.samplers.updates import UpdateLog
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.worker import WorkerReport

_log = logging.getLogger("rollout_cli")
_clock = time.monotonic

Result = TypeVar("Result")


class Sampler:
    """Samples episodes with several workers.

    A subclass gives a pool by `_make_pool`. A sampler of another kind overrides the documents' methods instead, all of
    them: `__init__`, `start_worker`, `obtain_samples`, `obtain_exact_episodes`, `shutdown_worker`.

    Args:
        agents: A policy for all workers, or a list with one a worker: a SPEC, or whatever `adapt_policy` takes.
        envs: An environment (or EnvSource) for all workers, or a list with one a worker. Each worker gets its own copy.
        worker_factory: Builds the workers.
        supervision: What to do about workers that die and episodes that fail.
        options: In place of a factory its arguments, as `WorkerFactory` takes them: `max_episode_length`, `seed`,
            `n_workers`, `worker_class`, `worker_args`, `is_tf_worker`, `worker_setup` and more.

    A WorkerFactory as the first argument selects garage's order (worker_factory, agents, envs).

    Attributes:
        seed: The root seed.
        n_workers: How many workers there may be.
        n_started: How many of them were started: the lowest ones.
        next_number: The number of the next call's first episode; it never goes back.
        total_env_steps: Steps of all episodes handed on so far.
        skipped: By number, why an episode was left out.
        dropped_episodes: Episodes of the last call that ended and were not handed on, since it was stopped before one
            with a lower number had ended.
        report: What only workers know of the environment and the policy, all of them together; None before the first
            one has started.
        warn: Called with one line for each fault that did not end a call; writes to the log unless it is replaced.
    """

    _lease_size: LeaseSize = LeaseSize()
    _is_parallel: ClassVar[bool] = True  # Otherwise one worker runs everything that anybody may run.

    def __init__(
        self,
        agents: Any,
        envs: Any,
        third: Any = None,
        *,
        worker_factory: WorkerFactory | None = None,
        supervision: Supervision | None = None,
        **options: Any,
    ) -> None:
        if isinstance(agents, WorkerFactory):
            worker_factory, agents, envs = agents, envs, third
        given = {name: value for name, value in options.items() if value is not None}
        if worker_factory is not None and given:
            raise UsageError(f"worker_factory decides about {', '.join(given)}", hint="give either, not both")
        self._factory = worker_factory or WorkerFactory(**given)
        self.n_workers, self.seed = self._factory.n_workers, self._factory.seed
        self._updates = UpdateLog(self._factory, agents, envs)
        self._supervision = supervision or Supervision()
        self._supervisor = Supervisor(self._supervision, self.seed)
        self._pool: Pool | None = None
        self._starting: SamplerMachine | None = None  # A call without episodes, in which the workers start.
        self._env_spec: EnvSpec | None = None
        self._generation = 0
        self._ends_at: float | None = None  # Set when a stop is requested.
        self.report: WorkerReport | None = None
        self.skipped: dict[int, str] = {}
        self.warn: Callable[[str], None] = _log.warning
        self.n_started = self.next_number = self.total_env_steps = self.dropped_episodes = 0

    @classmethod
    def from_worker_factory(cls, worker_factory: WorkerFactory, agents: Any, envs: Any) -> Self:
        """Return a sampler whose workers `worker_factory` builds."""
        return cls(agents, envs, worker_factory=worker_factory)

    @property
    def restarts(self) -> int:
        """Return how many workers were started again."""
        return self._supervisor.restarts

    @property
    def env_spec(self) -> EnvSpec:
        """Return spaces and limit of the environment, known once a worker has built it."""
        if self._env_spec is None:
            raise InternalError("no worker has built the environment yet", hint="call wait_until_started first")
        return self._env_spec

    # -- sampling --------------------------------------------------------------------------------------------------

    def stream(self, plan: Plan, *, agent_update: Any = None, env_update: Any = None) -> Generator[Chunk, None, None]:
        """Run a plan; yield chunks in order as they come: those of `stream_refs`, loaded."""
        with closing(self.stream_refs(plan, agent_update=agent_update, env_update=env_update)) as chunks:
            for chunk in chunks:
                yield chunk.load()

    def stream_refs(
        self, plan: Plan, *, agent_update: Any = None, env_update: Any = None
    ) -> Generator[AnyChunk, None, None]:
        """Run a plan; yield chunks in order as they come, or references where they lie on other machines.

        Within a partition (all episodes, or one worker's under `EpisodesPerWorker`) episodes come in the order of their
        numbers; an episode of many bytes comes in parts. Closing the generator ends the run.

        Args:
            plan: Which episodes.
            agent_update: A policy or parameters for all workers, or a list with one a worker; None changes nothing.
            env_update: An environment or EnvUpdate for all, or a list with one a worker; None changes nothing.

        Raises:
            RolloutError: What went wrong in a worker, after everything finished before it was yielded.
            UsageError: If a later call of the sampler began meanwhile.
        """
        updates = self._updates.note(agent_update, env_update)
        if agent_update is not None or env_update is not None:
            self.report = None  # The new ones read other files.
        if env_update is not None:
            self._env_spec = None  # The new environment may have other spaces.
        call = self._begin(plan, updates)
        with self._shut_down_on_error(call):
            try:
                yield from self._chunks(call)
            finally:
                self._end(call)

    def _chunks(self, call: SamplerMachine) -> Iterator[AnyChunk]:
        """Yield a call's chunks in order until it is over."""
        while True:
            for chunk in call.buffer.ready():
                self.next_number = max(self.next_number, int(chunk.numbers[-1]) + 1)
                self.total_env_steps += chunk.n_steps
                yield chunk
                if call.generation != self._generation:
                    hint = "finish or close it first"
                    raise UsageError("this stream was overtaken by a later call of its sampler", hint=hint)
            if call.failure is not None:
                raise as_raised(call.failure)
            if self._ends_at is not None and not call.stopping:
                call.stop()
            if call.plan.done or call.stopped or (self._ends_at is not None and _clock() >= self._ends_at):
                return
            self._take(call)

    def obtain_samples(
        self, itr: int, num_samples: int, agent_update: Any, env_update: Any = None, *, progress: bool = False
    ) -> EpisodeBatch:
        """Return the shortest run of episodes from `next_number` on with at least `num_samples` (1 or more) steps.

        `itr`, the caller's iteration, changes nothing; updates are as in `stream`. With `progress`, stderr shows a bar.
        """
        del itr
        plan = MinTimesteps(num_samples, self.next_number)
        return self._batch(plan, agent_update, env_update, progress and {"total_steps": num_samples})

    def obtain_exact_episodes(
        self, n_eps_per_worker: int, agent_update: Any, env_update: Any = None, *, progress: bool = False
    ) -> EpisodeBatch:
        """Return `n_eps_per_worker` (at least 1) episodes of each worker, in order; the rest as in `obtain_samples`."""
        plan = EpisodesPerWorker(n_eps_per_worker, self.next_number)
        return self._batch(
            plan, agent_update, env_update, progress and {"total_episodes": n_eps_per_worker * self.n_workers}
        )

    def obtain_exact_trajectories(
        self, n_traj_per_worker: int, agent_update: Any, env_update: Any = None
    ) -> EpisodeBatch:
        """Return what `obtain_exact_episodes` does, whose older name this is."""
        return self.obtain_exact_episodes(n_traj_per_worker, agent_update, env_update)

    def _batch(
        self, plan: Plan, agent_update: Any, env_update: Any, totals: dict[str, int] | Literal[False]
    ) -> EpisodeBatch:
        chunks: Iterator[Chunk] = self.stream(plan, agent_update=agent_update, env_update=env_update)
        if totals:
            chunks = shown(chunks, label=self._updates.labels[0], **totals)
        # Partitions interleave; sorting is stable, so the parts of one episode stay in their order.
        if ordered := sorted(chunks, key=lambda chunk: int(chunk.numbers[0])):
            return EpisodeBatch.from_chunks(self.env_spec, ordered)
        raise InterruptedRunError("the call was stopped before an episode had ended")

    def execute(self, function: Callable[..., Result], *args: Any, anywhere: bool = False) -> Result:  # noqa: ARG002
        """Return what a function returns that may run where the chunks lie; here it runs in this process.

        `anywhere` says that it needs no folder of this machine.
        """
        return function(*args)

    def request_stop(self, *, grace: float = 0.0) -> None:
        """Let the stream that runs, or else the next one, end early with what is finished; for signal handlers too.

        Args:
            grace: Seconds that are left to running episodes below the highest that ended, since these hold it up.
        """
        self._ends_at = _clock() + grace
        if self._pool is not None:
            self._pool.wake()

    # -- workers ---------------------------------------------------------------------------------------------------

    def _make_pool(self) -> Pool:
        """Return a pool of `n_workers` workers, none of them started."""
        hint = "use LocalSampler, MultiprocessingSampler or RaySampler, or override the methods of the documents"
        raise UsageError(f"{type(self).__name__} has no workers of its own", hint=hint)

    def start_worker(self) -> None:
        """Start the workers now rather than at the first call; does not wait for them."""
        if self._pool is None:
            self._starting = self._begin(None)

    def wait_until_started(self) -> EnvSpec:
        """Start the workers, wait until one has built its environment and policy, and return its `env_spec`.

        Raises:
            RolloutError: If one of them could not be built.
        """
        if self._env_spec is None:
            call = self._starting or self._begin(None)
            with self._shut_down_on_error(call):
                while call.started is None:
                    self._take(call)
                    if call.failure is not None:
                        raise as_raised(call.failure)
                    if self._ends_at is not None:
                        raise InterruptedRunError("the run was ended before a worker had started")
        return self.env_spec

    def shutdown_worker(self) -> None:
        """End the workers, and whatever their environments started; a later call starts new ones."""
        pool, self._pool, self._starting = self._pool, None, None
        if pool is not None:
            pool.close()

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers; none where they run in this process, or do not run."""
        return [] if self._pool is None else self._pool.pids()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown_worker()

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the workers; a copy starts its own, where this one's updates have brought them."""
        own = {"warn": _log.warning, "_pool": None, "_starting": None, "_env_spec": None}
        return self.__dict__ | {name: value for name, value in own.items() if name in self.__dict__}

    # -- one call --------------------------------------------------------------------------------------------------

    def _begin(self, plan: Plan | None, updates: Sequence[Update] = ()) -> SamplerMachine:
        """Begin a call: new workers are started and get their whole history, the others the call's updates."""
        if self._pool is None:
            self._pool, self.n_started = self._make_pool(), 0
            self._supervisor = Supervisor(self._supervision, self.seed)
        self._supervisor.begin_call()
        self._generation += 1
        self._starting = None
        self.dropped_episodes = 0
        by_worker, block = self._updates.by_worker, self._factory.numbers_at_once
        state = PlanState(plan, n_workers=self.n_workers, by_worker=by_worker, block=block)
        # One that was started for an earlier call takes part in each later one, so that it misses no update.
        n_needed = self.n_workers if self._is_parallel or not state.is_shared else 1
        n_known, self.n_started = self.n_started, max(self.n_started, n_needed)
        call = SamplerMachine(
            generation=self._generation,
            pool=self._pool,
            plan=state,
            buffer=ReorderBuffer(state),
            leases=Leases(state, n_workers=self.n_started, size=self._lease_size, block=block, now=_clock()),
            updates=self._updates,
            supervisor=self._supervisor,
            warn=self.warn,
            first_number=self.next_number,
        )
        with self._shut_down_on_error(call):
            call.begin(n_known, updates)
        return call

    def _take(self, call: SamplerMachine) -> None:
        """Wait until something happens in the pool, and handle it."""
        call.top_up_idle()
        for event in call.pool.wait(None if self._ends_at is None else max(0.0, self._ends_at - _clock())):
            if isinstance(event, Started | Reported) and event.generation == call.generation:
                self.report = (self.report or replace(event.report, files=())).joined(event.report)
            call.handle(event, _clock())
        if self._env_spec is None and call.started is not None:  # All workers know the same.
            self._env_spec = call.started.env_spec

    def _end(self, call: SamplerMachine) -> None:
        """Let the workers stop, and forget what was not handed on."""
        for number, reason in sorted(call.skipped.items()):
            # Others that were skipped lay behind the end of what was handed on.
            if call.buffer.is_past(number):
                self.skipped[number] = reason
                self.next_number = max(self.next_number, number + 1)
        if call.generation == self._generation:
            self._ends_at = None
            self.dropped_episodes = call.buffer.n_waiting
            if call.failure is not None:
                # A caller may have enough after the episodes that come before a failure, and never see it.
                self.shutdown_worker()
            call.end()

    @contextmanager
    def _shut_down_on_error(self, call: SamplerMachine) -> Iterator[None]:
        """End the workers after an error, since no later call could rely on their state; not under a later call."""
        try:
            yield
        except BaseException as error:
            # With GeneratorExit the caller has enough, and the workers stop.
            if call.generation == self._generation and not isinstance(error, GeneratorExit):
                self.shutdown_worker()
            raise
