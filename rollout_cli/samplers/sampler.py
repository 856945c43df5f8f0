"""Sampler: what the samplers share.

A sampler runs plans (`plan.py`) and hands the episodes on in order. Its calls share one numbering of episodes, so that
no two calls ever use the same seeds.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, Self

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import InternalError, UsageError
from rollout_cli.samplers.plan import EpisodesPerWorker, MinTimesteps, Order, Plan, PlanState
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.samplers.updates import Update, UpdateLog
from rollout_cli.workers import DefaultWorker, WorkerFactory
from rollout_cli.workers.factory import WorkerClass
from rollout_cli.workers.setting_up import WorkerSetup

_log = logging.getLogger("rollout_cli")


class Sampler(abc.ABC):
    """Samples episodes with several workers.

    Args:
        agents: A policy for all workers, or a list with one a worker: a SPEC, or whatever `adapt_policy` knows.
        envs: An environment (or EnvSource) for all workers, or a list with one a worker. Each worker gets its own copy.
        worker_factory: Builds the workers; in its place the following may be given.
        max_episode_length: Steps after which an episode is truncated; None for no limit.
        seed: The root seed; drawn where it is None.
        n_workers: How many workers; by default one a usable core.
        worker_class: The class of the workers.
        worker_args: Further keyword arguments of that class.
        is_tf_worker: Whether a TensorFlow session is open in each worker.
        worker_setup: Makes a context manager that is entered in each worker before its policy is unpickled.
        supervision: What to do about workers that die and episodes that fail.

    A WorkerFactory as the first argument selects the order (worker_factory, agents, envs).

    Attributes:
        next_number: The number of the next call's first episode; it never goes back.
        total_env_steps: Steps of all episodes handed on so far.
        skipped: By number, why an episode was left out.
        tell: Tells of faults that were got over; a line in the log unless it is replaced.
        dropped_episodes: Episodes of the last call that ended and were not handed on, since it was stopped before one
            with a lower number had ended.
    """

    def __init__(
        self,
        agents: Any,
        envs: Any,
        third: Any = None,
        *,
        worker_factory: WorkerFactory | None = None,
        max_episode_length: float | None = None,
        seed: int | None = None,
        n_workers: int | None = None,
        worker_class: WorkerClass = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
        is_tf_worker: bool = False,
        worker_setup: WorkerSetup | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        if isinstance(agents, WorkerFactory):
            worker_factory, agents, envs = agents, envs, third
        if worker_factory is not None and (is_tf_worker or worker_setup is not None):
            hint = "give them to WorkerFactory"
            raise UsageError("is_tf_worker and worker_setup stand beside a worker_factory, which has them", hint=hint)
        self._factory = worker_factory or WorkerFactory(
            max_episode_length=max_episode_length,
            n_workers=n_workers,
            seed=seed,
            worker_class=worker_class,
            worker_args=worker_args,
            is_tf_worker=is_tf_worker,
            worker_setup=worker_setup,
        )
        self._updates = UpdateLog(self._factory, agents, envs)
        self._supervision = supervision or Supervision()
        self._env_spec: EnvSpec | None = None
        self._call = 0
        self._grace: float | None = None  # Set when a stop is requested.
        self.facts: dict[str, Any] = {}
        self.skipped: dict[int, str] = {}
        self.tell: Callable[[str], None] = _log.warning
        self.next_number = 0
        self.total_env_steps = self.dropped_episodes = 0

    @classmethod
    def from_worker_factory(cls, worker_factory: WorkerFactory, agents: Any, envs: Any) -> Self:
        """Return a sampler whose workers `worker_factory` builds."""
        return cls(agents, envs, worker_factory=worker_factory)

    @property
    def n_workers(self) -> int:
        """Return how many workers there are."""
        return self._factory.n_workers

    @property
    def numbers_at_once(self) -> int:
        """Return in blocks of how many episode numbers a worker gets its work."""
        return self._factory.numbers_at_once

    @property
    def seed(self) -> int:
        """Return the root seed."""
        return self._factory.seed

    @property
    def env_spec(self) -> EnvSpec:
        """Return spaces and limit of the environment, known once a worker has built it.

        Raises:
            InternalError: If no worker has.
        """
        if self._env_spec is None:
            raise InternalError("no worker has built the environment yet", hint="call wait_until_started first")
        return self._env_spec

    # -- sampling --------------------------------------------------------------------------------------------------

    def stream(
        self,
        plan: Plan,
        *,
        agent_update: Any = None,
        env_update: Any = None,
        order: Order = "index",
        base: int | None = None,
    ) -> Generator[Chunk, None, None]:
        """Run a plan; yield chunks in order as they come.

        Within a lane (all episodes, or one worker's under `EpisodesPerWorker`) episodes come in the order of their
        numbers; an episode of many bytes comes in parts. Closing the generator ends the run.

        Args:
            plan: Which episodes.
            agent_update: A policy or parameters for all workers, or a list with one a worker; None changes nothing.
            env_update: An environment or EnvUpdate for all, or a list with one a worker; None changes nothing.
            order: `arrival` hands episodes on as they end, which is not reproducible and favours short ones.
            base: The episode number of offset 0, to run known numbers again; by default `next_number`.

        Raises:
            UsageError: If the workers give parts of episodes.
            RolloutError: What went wrong in a worker, after everything finished before it was yielded.
        """
        self._factory.require_whole_episodes("a stream of whole episodes")
        updates = self._note_updates(agent_update, env_update)
        state = begin_plan(
            plan, n_workers=self.n_workers, by_worker=self._updates.by_worker, block=self.numbers_at_once, order=order
        )
        self._call += 1
        self.dropped_episodes = 0
        call = self._call
        try:
            with closing(self._run(state, self.next_number if base is None else base, updates, order)) as chunks:
                for chunk in chunks:
                    self.next_number = max(self.next_number, int(chunk.numbers[-1]) + 1)
                    self.total_env_steps += chunk.n_steps
                    yield chunk
                    if call != self._call:
                        raise UsageError(
                            "this stream was overtaken by a later call of its sampler", hint="finish or close it first"
                        )
        finally:
            self._grace = None

    def obtain_samples(self, itr: int, num_samples: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """Return the shortest run of episodes from `next_number` on with at least `num_samples` steps.

        Args:
            itr: The caller's iteration; only for the caller's own records.
            num_samples: Steps wanted, at least 1.
            agent_update: As in `stream`.
            env_update: As in `stream`.
        """
        del itr
        return self._batch(self.stream(MinTimesteps(num_samples), agent_update=agent_update, env_update=env_update))

    def obtain_exact_episodes(self, n_eps_per_worker: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """Return exactly `n_eps_per_worker` episodes of each worker, in the order of the workers.

        Args:
            n_eps_per_worker: Episodes of each worker, at least 1.
            agent_update: As in `stream`.
            env_update: As in `stream`.
        """
        self._factory.require_whole_episodes("obtain_exact_episodes")
        plan = EpisodesPerWorker(n_eps_per_worker)
        return self._batch(self.stream(plan, agent_update=agent_update, env_update=env_update))

    def _batch(self, chunks: Iterator[Chunk]) -> EpisodeBatch:
        # Lanes interleave; sorting is stable, so the parts of one episode stay in their order. The run comes before the
        # env_spec, which is known only once a worker has started.
        ordered = sorted(chunks, key=lambda chunk: int(chunk.numbers[0]))
        return EpisodeBatch.from_chunks(self.env_spec, ordered)

    def request_stop(self, *, grace: float = 0.0) -> None:
        """Let the stream that runs, or else the next one, end early with what is finished.

        It only sets a flag and wakes the sampler, so a signal's handler may call it.

        Args:
            grace: Seconds that are left to running episodes below the highest that ended, since these hold it up.
        """
        self._grace = grace

    @abc.abstractmethod
    def _run(self, state: PlanState, base: int, updates: list[Update], order: Order) -> Generator[Chunk, None, None]:
        """Run one plan, yielding chunks in order."""

    # -- workers ---------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def start_worker(self) -> None:
        """Start the workers now rather than at the first call; does not wait for them."""

    @abc.abstractmethod
    def wait_until_started(self) -> EnvSpec:
        """Start the workers, wait until one has built its environment and policy, and return its `env_spec`.

        Raises:
            RolloutError: If one of them could not be built.
        """

    @abc.abstractmethod
    def shutdown_worker(self) -> None:
        """End the workers; a later call starts new ones."""

    def __enter__(self) -> Self:
        """Return the sampler; leaving the block ends its workers."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.shutdown_worker()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs; its workers are started anew, where this one's updates have brought them."""
        return {**self.__dict__, "tell": _log.warning, **self._process_state()}

    @abc.abstractmethod
    def _process_state(self) -> dict[str, Any]:
        """Return the attributes that belong to this process, as a sampler without workers has them."""

    def _stride(self, state: PlanState) -> int:
        """Return the step from one of a worker's numbers to the next."""
        return self.n_workers if self._updates.by_worker and state.n_lanes == 1 else 1

    def _learn(self, env_spec: EnvSpec, facts: dict[str, Any]) -> None:
        """Take what a worker told of its environment."""
        if self._env_spec is None:
            self._env_spec, self.facts = env_spec, facts

    def _note_reason(self, not_reproducible: str | None) -> None:
        """Take why a worker's episodes cannot be reproduced, which it may see only when they run."""
        if not_reproducible:
            self.facts.setdefault("not_reproducible", not_reproducible)

    def _note_updates(self, agent_update: Any, env_update: Any) -> list[Update]:
        if env_update is not None:
            self._env_spec = None  # The new environment may have other spaces.
        return self._updates.note(agent_update, env_update)

    def _note_skipped(self, number: int, reason: str) -> None:
        """Take that an episode is left out."""
        self.skipped[number] = reason
        self.next_number = max(self.next_number, number + 1)
