"""Sampler and its base PlanSampler: run plans over a pool of workers and yield the episodes in order.

They handle calls, restarts, updates for new workers, episode order and recovery; a subclass makes the pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Self, TypeVar

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.errors import (
    InternalError,
    InterruptedRunError,
    RolloutError,
    UsageError,
    UserCodeError,
)
from rollout_cli.progress import shown
from rollout_cli.samplers.facts import WorkerFacts
from rollout_cli.samplers.leases import LeaseSize, Pace
from rollout_cli.samplers.messages import Update, as_raised
from rollout_cli.samplers.nesting import refuse_in_worker
from rollout_cli.samplers.plan import EpisodesPerWorker, LengthEstimate, MinTimesteps, Plan
from rollout_cli.samplers.pool import Pool, SegmentRunner, Warn
from rollout_cli.samplers.reorder import MOST_BYTES
from rollout_cli.samplers.sampler_machine import Fail, Instruction, SamplerMachine, Send, StartWorker
from rollout_cli.samplers.stops import StopRequests
from rollout_cli.samplers.supervision import Supervision, Supervisor
from rollout_cli.samplers.updates import UpdateLog
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.values import WorkerReport

_log = logging.getLogger("rollout_cli")
_clock = time.monotonic

Fact = TypeVar("Fact")


class PlanSampler:
    """Runs plans over a pool of workers and streams their episodes; `Sampler` documents the arguments."""

    _lease_size: LeaseSize = LeaseSize()
    _buffer_bytes: int = MOST_BYTES  # Maximum bytes of episodes that wait for an earlier episode.
    _is_parallel: ClassVar[bool] = True  # If false, one worker runs every episode not tied to a worker.

    def __init__(
        self,
        agents: Any,
        envs: Any,
        garage_envs: Any = None,
        *,
        worker_factory: WorkerFactory | None = None,
        supervision: Supervision | None = None,
        warn: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        refuse_in_worker(type(self).__name__)
        if isinstance(agents, WorkerFactory):
            worker_factory = agents
            agents = envs
            envs = garage_envs
        options = {name: value for name, value in options.items() if value is not None}
        if worker_factory is not None and options:
            raise UsageError(
                f"got both worker_factory and {', '.join(options)}",
                code="factory-options",
                hint="pass worker_factory or these options, not both",
            )
        self._factory = worker_factory or WorkerFactory(**options)
        self.n_workers = self._factory.n_workers
        self.seed = self._factory.seed
        self._updates = UpdateLog(self._factory, agents, envs)
        self._supervision = supervision or Supervision()
        self._supervisor = Supervisor(self._supervision, self.seed)
        self._warn = warn or _log.warning
        self._pool: Pool | None = None
        self._starting: SamplerMachine | None = None  # A call without episodes, in which the workers start.
        self._failure: RolloutError | None = None  # Raised after the earlier episodes.
        self._stops = StopRequests()
        self._facts = WorkerFacts()
        self._lengths = LengthEstimate()
        self._paces: Sequence[Pace] = ()
        self.skipped: dict[int, str] = {}
        self._generation = self.n_started = self.next_number = 0
        self.total_env_steps = self.dropped_episodes = 0
        self.is_done = False

    @classmethod
    def from_worker_factory(cls, worker_factory: WorkerFactory, agents: Any, envs: Any) -> Self:
        """Return a sampler that builds its workers with `worker_factory`."""
        return cls(agents, envs, worker_factory=worker_factory)

    @property
    def restarts(self) -> int:
        """Return the number of worker restarts."""
        return self._supervisor.restarts

    @property
    def env_spec(self) -> EnvSpec:
        """Return the environment's spaces and time limit; UsageError if no worker has built it yet."""
        return _require(self._facts.env_spec)

    @property
    def report(self) -> WorkerReport:
        """Return the workers' joined reports on environment and policy; raises as `env_spec` does."""
        return _require(self._facts.report)

    @property
    def built_at(self) -> float:
        """Return the time when the first worker was built, in seconds since the epoch; 0 before that."""
        return self._facts.built_at

    # -- sampling ----------------------------------------------------------------------------------

    def stream(
        self, plan: Plan, *, agent_update: Any = None, env_update: Any = None
    ) -> Generator[Chunk, None, None]:
        """Run a plan; yield its episodes as chunks, in order, when they are ready.

        Within a partition (all episodes, or one worker's episodes under `EpisodesPerWorker`) episodes are
        yielded in the order of their numbers. Closing the generator ends the run.

        Args:
            plan: The episodes to run.
            agent_update: A policy or parameters for all workers, or a list with one per worker; None: no
                change.
            env_update: An environment or EnvUpdate for all, or a list with one per worker; None: no change.

        Raises:
            RolloutError: A worker's error, raised after the episodes before it were yielded.
            UsageError: If another call of the sampler started before this stream ended.
        """
        with closing(self.stream_refs(plan, agent_update=agent_update, env_update=env_update)) as chunks:
            for chunk in chunks:
                yield chunk.load()

    def stream_refs(
        self, plan: Plan, *, agent_update: Any = None, env_update: Any = None
    ) -> Generator[AnyChunk, None, None]:
        """Run a plan like `stream`; yield chunks, or references to chunks on other machines."""
        updates = self._updates.note(agent_update, env_update)
        if agent_update is not None or env_update is not None:
            self._starting = None
            self._facts.forget(spaces=env_update is not None)
        call = self._starting
        self._starting = None
        if call is None or call.plan is not plan:
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
                    raise UsageError(
                        "another call of the sampler started before this stream ended",
                        code="stream-overtaken",
                        hint="finish or close the stream before the next call",
                    )
            if self._failure is not None:
                raise as_raised(self._failure)
            if self._stops.has_started:
                self._execute(call.stop())
            if call.is_over or self._stops.is_over:
                return
            self._take(call)

    def segment_runner(self) -> SegmentRunner:
        """Return the SegmentRunner that writes segments close to the chunks of `stream_refs`."""
        return SegmentRunner()

    def request_stop(self, *, grace: float = 0.0, after: float = 0.0) -> None:
        """End the current stream, or else the next one, early; safe to call from a signal handler.

        Finished episodes are still yielded. If a stream has several requests, the earliest one counts.

        Args:
            grace: Seconds for running episodes to end if a finished episode waits for them.
            after: Seconds until the stream stops leasing numbers.
        """
        self._stops.add(grace=grace, after=after)

    # -- workers -----------------------------------------------------------------------------------

    def _make_pool(self) -> Pool:
        """Return a pool for `n_workers` workers that have not been started."""
        raise UsageError(
            f"{type(self).__name__} does not implement _make_pool",
            code="sampler-abstract",
            hint="use LocalSampler, MultiprocessingSampler or RaySampler, or override the documented methods",
        )

    def start_worker(self, plan: Plan | None = None) -> None:
        """Start the workers before the first call, without waiting for them; they already run its `plan`."""
        if self._pool is None:
            self._starting = self._begin(plan)

    def wait_until_started(self) -> EnvSpec:
        """Start the workers, wait until one has built its environment and policy, and return its `env_spec`.

        Raises:
            RolloutError: If a worker could not build its environment or policy.
        """
        if self._facts.env_spec is None:
            call = self._starting or self._begin(None)
            with self._shut_down_on_error(call):
                while self._facts.env_spec is None:
                    if self._failure is not None:
                        raise as_raised(self._failure)
                    if self._stops.has_started:
                        raise InterruptedRunError("the run was stopped before any worker started")
                    self._take(call)
        return self.env_spec

    def shutdown_worker(self) -> None:
        """End the workers and all processes of their environments; a later call starts new workers."""
        pool = self._pool
        self._pool = None
        self._starting = None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown_worker()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the workers; a copy starts new workers and applies all updates to them."""
        reset = {
            "_warn": _log.warning,
            "_pool": None,
            "_starting": None,
            "_failure": None,
            "_facts": WorkerFacts(),
        }
        return self.__dict__ | {name: value for name, value in reset.items() if name in self.__dict__}

    # -- one call ----------------------------------------------------------------------------------

    def _begin(self, plan: Plan | None, changes: Sequence[Update] = ()) -> SamplerMachine:
        """Start a call: new workers receive their complete history, the others only this call's changes."""
        if self._failure is not None:
            self.shutdown_worker()  # The last call was closed before its failure was raised.
        if self._pool is None:
            self._pool = self._make_pool()
            self.n_started = 0
            self._supervisor = Supervisor(self._supervision, self.seed)
        self._generation += 1
        self._lengths.fade()
        self._starting = self._failure = None
        self.dropped_episodes = 0
        self.skipped = {}
        call = SamplerMachine(
            self._generation,
            plan,
            self._updates,
            self._supervisor,
            self._facts,
            n_workers=self.n_workers,
            n_running=self.n_started,
            is_parallel=self._is_parallel,
            block=self._factory.numbers_at_once,
            lease_size=self._lease_size,
            most_bytes=self._buffer_bytes,
            first_number=self.next_number,
            lengths=self._lengths,
            paces=self._paces,
            now=_clock(),
        )
        self.n_started = call.n_workers
        self._paces = call.paces
        with self._shut_down_on_error(call):
            self._execute(call.begin(changes))
        return call

    def _take(self, call: SamplerMachine) -> None:
        """Wait for events of the pool and handle them."""
        self._execute(call.top_up())
        if self._pool is None:
            raise UsageError(
                "shutdown_worker was called during the stream",
                code="sampler-shut-down",
                hint="start a new stream",
            )
        for event in self._pool.wait():
            self._execute(call.handle(event, _clock()))

    def _execute(self, instructions: Sequence[Instruction]) -> None:
        """Carry out the call's instructions, unless the workers were shut down meanwhile."""
        if self._pool is not None:
            self._failure = _carry_out(instructions, self._pool, self._warn) or self._failure

    def _end(self, call: SamplerMachine) -> None:
        """Stop the workers, and discard episodes that were not yielded."""
        self.next_number = max(self.next_number, call.buffer.stop)
        if call.generation == self._generation:
            self._stops = StopRequests()
            self.dropped_episodes = call.buffer.n_waiting
            self.skipped = call.skipped
            self.is_done = call.is_done
            if self._failure is not None:
                # The caller may close the stream before the failure is raised.
                self.shutdown_worker()
            self._execute(call.end())

    @contextmanager
    def _shut_down_on_error(self, call: SamplerMachine) -> Iterator[None]:
        """End the workers after an error, since their state is unknown; keep them if another call has started."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, InternalError):
                error.add_note("\n".join(["the last events and instructions of the sampler:", *call.story]))
            # GeneratorExit: the caller closed the stream, so the workers only stop.
            if call.generation == self._generation and not isinstance(error, GeneratorExit):
                if isinstance(error, UserCodeError) and not error.episodes:
                    self._updates.failed()
                self.shutdown_worker()
            raise


class Sampler(PlanSampler):
    """Samples episodes with several workers.

    A subclass implements `_make_pool`. A sampler without a pool overrides the documented methods instead:
    `__init__`, `start_worker`, `obtain_samples`, `obtain_exact_episodes`, `shutdown_worker`.

    Args:
        agents: A policy for all workers, or a list with one per worker: a SPEC, or any object that
            `adapt_policy` accepts.
        envs: An environment (or EnvSource) for all workers, or a list with one per worker; each worker gets
            a copy.
        worker_factory: Builds the workers.
        supervision: Rules for workers that die and episodes that fail.
        warn: Called with one line for each fault that does not end a call; None logs the line.
        options: Arguments of `WorkerFactory`, instead of a factory: `max_episode_length`, `seed`,
            `n_workers`, `worker_class`, `worker_args`, `is_tf_worker`, `worker_setup` and more.

    A WorkerFactory as the first argument selects garage's order (worker_factory, agents, envs).

    Attributes:
        seed: The root seed.
        n_workers: Maximum number of workers.
        n_started: Number of workers that were started, from worker 0 up.
        next_number: Number of the next call's first episode; never decreases.
        total_env_steps: Steps of all episodes yielded so far.
        skipped: Reasons why episodes of the last call were skipped, by episode number.
        dropped_episodes: Number of episodes of the last call that ended but were not yielded, because an
            earlier episode had not ended.
        is_done: Whether the last call completed its plan.

    Raises:
        ArgumentError: If a list does not have one entry per worker (also a ValueError).
        UsageError: If there are both a factory and options.
        UserCodeError: If a policy or environment cannot be found or cannot be pickled.

    Example:
        >>> import gymnasium
        >>> sampler = rollout_cli.LocalSampler("random", gymnasium.make("CartPole-v1"), seed=0)
        >>> with sampler:  # Every sampler has these methods.
        ...     sum(chunk.n_steps for chunk in sampler.stream(rollout_cli.Episodes(0, 2)))
        55
    """

    def obtain_samples(
        self, itr: int, num_samples: int, agent_update: Any, env_update: Any = None, *, progress: bool = False
    ) -> EpisodeBatch:
        """Return the fewest episodes from `next_number` on that have at least `num_samples` (>= 1) steps.

        `itr`, the caller's iteration, is ignored; updates and errors are as in `stream`. `progress` shows a
        progress bar on stderr.
        """
        del itr
        plan = MinTimesteps(num_samples, self.next_number)
        return self._batch(plan, agent_update, env_update, progress=progress, total_steps=num_samples)

    def obtain_exact_episodes(
        self, n_eps_per_worker: int, agent_update: Any, env_update: Any = None, *, progress: bool = False
    ) -> EpisodeBatch:
        """Return `n_eps_per_worker` (>= 1) episodes of each worker, in order; otherwise as `obtain_samples`."""
        plan = EpisodesPerWorker(n_eps_per_worker, self.next_number)
        total = n_eps_per_worker * self.n_workers
        return self._batch(plan, agent_update, env_update, progress=progress, total_episodes=total)

    def obtain_exact_trajectories(
        self, n_traj_per_worker: int, agent_update: Any, env_update: Any = None
    ) -> EpisodeBatch:
        """Return the episodes of `obtain_exact_episodes`; this is garage's older name for it."""
        return self.obtain_exact_episodes(n_traj_per_worker, agent_update, env_update)

    def _batch(
        self, plan: Plan, agent_update: Any, env_update: Any, *, progress: bool, **totals: int
    ) -> EpisodeBatch:
        chunks: Iterator[Chunk] = self.stream(plan, agent_update=agent_update, env_update=env_update)
        if progress:
            chunks = shown(chunks, label=self._updates.labels[0], **totals)
        if ordered := sorted(chunks, key=lambda chunk: int(chunk.numbers[0])):  # Partitions interleave.
            return EpisodeBatch.from_chunks(self.env_spec, ordered)
        raise InterruptedRunError("the call was stopped before any episode ended", code="no-episode-ended")


def _require(fact: Fact | None) -> Fact:
    """Return a fact of a worker's report; raise UsageError if no worker has built its environment."""
    if fact is None:
        raise UsageError(
            "the sampler does not know the environment yet: no worker has built it",
            code="sampler-not-started",
            hint="call start_worker and wait_until_started first",
        )
    return fact


def _carry_out(
    instructions: Sequence[Instruction], pool: Pool, warn: Callable[[str], None]
) -> RolloutError | None:
    """Carry out a call's instructions; return the error that ends it, if any."""
    failure = None
    for instruction in instructions:
        match instruction:
            case StartWorker(worker):
                pool.start(worker)
            case Send(worker, command):
                pool.send(worker, command)
            case Warn(text):
                warn(text)
            case Fail(error):
                failure = error
    return failure
