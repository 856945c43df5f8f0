"""Worker, the interface that samplers and scripts use, and Engine, the protocol that runs its episodes.

The verbs are garage's. A sampler uses other methods: it assigns episode numbers and takes finished episodes
as chunks.
"""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NoReturn, Protocol

import gymnasium

from rollout_cli.envs.describe import describe_env, stack_warnings
from rollout_cli.envs.updates import close_env
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import UsageError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.workers.context import InContext
from rollout_cli.workers.policy_holder import PolicyHolder
from rollout_cli.workers.row_queues import RowQueues
from rollout_cli.workers.values import NO_NUMBER, OnInvalidAction, WorkerReport

Env = gymnasium.Env[Any, Any]

VERBS = ("start_episode", "step_episode", "collect_episode", "rollout")
"""The methods that garage's workers override."""

OVERRIDABLE = ("reset_env", "reset_agent", "step_env", "predecessors")
"""The methods that a subclass overrides instead of `VERBS`."""

OWN_EPISODES = 1 << 24
"""Distance between the first episode numbers of two workers that run episodes by the verbs."""

HOLD_SECONDS = 0.25
"""Maximum time for which a finished episode waits for lower numbers of its worker to end."""

_clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Setting:
    """The arguments of an engine."""

    root: int  # The root seed.
    worker: Worker  # For its hooks, crash box, rules and number.
    policy: AdaptedPolicy
    rule: OnInvalidAction
    seeders: Sequence[EpisodeSeeder]  # One per row, and one for the generators that all rows share.
    queue: RowQueues  # The waiting numbers, shared with the worker.
    limit: float  # Steps after which the run truncates an episode.


class Engine(Protocol):
    """Runs episodes in rows, and keeps the finished ones until they are taken.

    The caller of `begin`, `step` or `run` passes every exception that they raise to `fail`.
    """

    one_at_a_time: bool  # True if one episode runs at a time.
    row_bytes: int  # Bytes of a step, without its infos and strings.
    scope: Literal["any", "n_envs"]  # `n_envs` if an episode depends on the number of rows.
    where: str  # The user's function that is called, which `fail` names.

    @property
    def finished_rows(self) -> int:
        """Number of steps in finished episodes."""

    @property
    def not_reproducible(self) -> str | None:
        """The reason that episodes cannot be reproduced, or None if no reason is known."""

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """The numbers of the running episodes."""

    @property
    def casts(self) -> list[str]:
        """Warnings about observations that lost digits."""

    def use_policy(self, policy: AdaptedPolicy) -> None:
        """Run the next episodes with `policy`: new parameters, or another policy of the same form.

        No episode may be running. The environments are unchanged and are not searched for generators again.
        """

    def begin(self) -> None:
        """Start waiting numbers, each in its row: in all free rows, or one if one episode runs at a time."""

    def step(self) -> bool:
        """Step all rows (or the one row that runs, with `one_at_a_time`); return True if an episode ended."""

    def run(self, deadline: float, enough: float) -> None:
        """Run until the workers' clock passes `deadline`, `enough` rows are finished, or no number is left.

        Takes at least one step.
        """

    def fail(self, error: BaseException) -> None:
        """Discard all running episodes, and raise the UserCodeError that names the episode and step.

        Return normally if no user code caused the error.
        """

    def take(self, below: float, ended_before: float) -> list[Chunk]:
        """Remove episodes below a number or that ended before a time, and return them in order as chunks."""

    def forget(self, above: int) -> None:
        """Discard the running episodes with numbers higher than `above`."""


class Worker(InContext, abc.ABC):
    """Runs one policy in one or more environments; built in the process where it runs, and never pickled.

    The legal order of the verbs: call `update_agent` and `update_env` at least once each. Then collect any
    number of episodes: `start_episode`, `step_episode` until it returns True, and `collect_episode`, or
    `rollout`, which calls these three. A sampler calls `assign`, `advance` and `take` instead. Both updates
    may be called again once all finished episodes are taken. If a new policy and a new environment fit only
    each other, call `forget_agent` before the two updates.

    The verbs number a worker's episodes from `worker_number * 2**24`: no two workers run the same episode.

    A subclass may override `worker_init` and the methods in `OVERRIDABLE`; samplers reject other overrides.

    Args:
        seed: The root seed of the run; every episode's seeds are derived from it and the episode number.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Index of this worker in the run, from 0.
        deterministic: Whether to use the policy's deterministic mode, if it has one.
        fresh_env: Whether to close and rebuild the environment for every episode.

    Example:
        >>> class Announced(rollout_cli.DefaultWorker):
        ...     def worker_init(self):
        ...         print(f"worker {self.worker_number}")
        >>> worker = Announced(seed=0, max_episode_length=5, worker_number=1)
        worker 1
    """

    _n_envs = 1  # Number of rows: the episodes that can run at once.

    def __init__(
        self,
        *,
        seed: int,
        max_episode_length: float | None,
        worker_number: int,
        deterministic: bool = False,
        fresh_env: bool = False,
    ) -> None:
        self.worker_number = worker_number
        self._seed = seed
        self._fresh_env = fresh_env
        self._limit = math.inf if max_episode_length is None else max_episode_length
        self._holder = PolicyHolder(seed, deterministic=deterministic)
        self._seeders = [EpisodeSeeder(seed) for _ in range(self._n_envs + 1)]
        self._queue = RowQueues(self._n_envs)
        self._next_number = worker_number * OWN_EPISODES
        self._envs: list[Any] = []  # One per row, or the vector environment.
        self._env_spec: EnvSpec | None = None
        self._engine: Engine | None = None
        self._engine_form: tuple[Any, ...] | None = None  # The form of the policy in the engine.
        self.worker_init()

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:  # noqa: ARG003
        """Return the number of episodes that a worker with these arguments runs at once: its block size."""
        return 1

    @classmethod
    def overridable(cls, worker_args: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG003
        """Return the names in `OVERRIDABLE` that a worker with these arguments calls."""
        return OVERRIDABLE

    # -- methods to override ---------------------------------------------------------------------------------

    def worker_init(self) -> None:
        """Prepare the process; called once, before the first update."""

    def reset_env(self, env: Env, number: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset the environment for episode `number`, with the run's reset options; return `(obs, info)`."""
        options = self.rules.options_of(number)
        if options is None:
            return env.reset(seed=seed)
        return env.reset(seed=seed, options=options)

    def reset_agent(self, agent: Any, number: int) -> None:  # noqa: ARG002
        """Reset the policy for episode `number`, after the environment; `agent` is the user's object."""
        assert self._holder.policy is not None
        self._holder.policy.reset()

    def step_env(self, env: Env, action: Any) -> Any:
        """Take one step of the environment; return the result of `env.step`, which is recorded."""
        return env.step(action)

    def predecessors(self, number: int) -> Sequence[int]:  # noqa: ARG002
        """Return the numbers of the episodes that episode `number` depends on, in order.

        If this worker has not just run them, it runs them first, without recording them.
        """
        return ()

    # -- updates ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def update_env(self, env_update: Any) -> None:
        """Use a new environment, or apply an EnvUpdate to the current one; None is a no-op.

        Raises:
            EnvTypeError: If the object is neither an environment nor an update (also a TypeError).
            EnvLoadError: If the environment cannot be built, or has a space that cannot be recorded.
        """

    def update_agent(self, agent_update: Any) -> None:
        """Use a new policy, or new parameters (dict, tuple or array) for the current one; None is a no-op.

        Raises:
            PolicyLoadError: If the policy cannot be loaded or recognized.
        """
        if agent_update is None:
            return
        self._forget()
        with self._holder.restored_on_error():
            self._holder.update(agent_update)
            self._make_ready()

    def forget_agent(self) -> None:
        """Drop the policy, so that the next environment need not fit it; `update_agent` must follow."""
        self._forget()
        self._holder.forget()

    @abc.abstractmethod
    def _new_engine(self, setting: Setting) -> Engine:
        """Return a new engine for the policy and the environments."""

    def _n_queues(self, policy: AdaptedPolicy) -> int:  # noqa: ARG002
        """Return 1 if any row may run any number, else the number of rows."""
        return self._n_envs

    def _use_spec(self, spec: EnvSpec) -> None:
        """Use the new environments, which have this spec, from now on."""
        if spec != self._env_spec:
            self._holder.policy = None
        self._env_spec = spec
        self._engine_form = None
        self._make_ready()

    def _make_ready(self) -> None:
        """Build an engine once both the policy and the environment are known, or keep a matching engine."""
        if not (self._env_spec and self._envs):
            return
        policy = self._holder.adapt(self._env_spec, self._envs)
        if policy is None:
            return
        if self.finished_rows:
            raise UsageError(
                "finished episodes were not collected", code="call-order", hint="call collect_episode first"
            )
        # Actions that are valid by construction need no check.
        rule = "warn" if policy.acts_within_space else self.rules.invalid_action
        n_queues = self._n_queues(policy)
        form = (type(policy), policy.methods, policy.row_by_row, policy.row_wise, n_queues, rule)
        if self._engine is not None and form == self._engine_form:
            self._engine.use_policy(policy)
            return
        self._queue = self._queue.resized(n_queues, self.number_stride)
        setting = Setting(self._seed, self, policy, rule, self._seeders, self._queue, self._limit)
        self._engine = self._new_engine(setting)
        self._engine_form = form

    # -- garage's verbs --------------------------------------------------------------------------------------

    def start_episode(self) -> None:
        """Start the assigned numbers, each in its row; if none is assigned, continue after the last number.

        If one episode runs at a time, start the lowest number only, and discard a running episode.
        """
        engine = self._ready()
        if engine.one_at_a_time:
            engine.forget(NO_NUMBER)
        if not self.has_work:
            self.assign([range(self._next_number, self._next_number + self._n_envs)])
        with reporting_failures(engine):
            engine.begin()

    def step_episode(self) -> bool:
        """Step every row, or only the running row if rows alternate; return True if an episode ended."""
        engine = self._ready()
        if not self.has_work:
            raise UsageError(
                "step_episode found no running episode", code="call-order", hint="call start_episode first"
            )
        with reporting_failures(engine):
            return engine.step()

    def collect_episode(self) -> EpisodeBatch:
        """Return the finished episodes that were not collected yet; UsageError if there is none."""
        if chunks := self.take(everything=True):
            return EpisodeBatch.from_chunks(self.env_spec, chunks)
        hint = "call step_episode until it returns True"
        raise UsageError("no episode has ended", code="call-order", hint=hint)

    def rollout(self) -> EpisodeBatch:
        """Run the assigned episodes, or else one per row, and return all: short episodes are not favored."""
        self.start_episode()
        while self.has_work:
            self.step_episode()
        return self.collect_episode()

    # -- for samplers ----------------------------------------------------------------------------------------

    @property
    def agent(self) -> Any:
        """The user's policy object; None before the first update."""
        return self._holder.users_own

    @property
    def env(self) -> Any:
        """The first row's environment, or the vector environment; None before the first update."""
        return self._envs[0] if self._envs else None

    @property
    def env_spec(self) -> EnvSpec:
        """The spaces and the step limit, which is the lower of the environment's and the run's."""
        if self._env_spec is None:
            raise UsageError("no environment is set", code="call-order", hint="call update_env first")
        return self._env_spec

    def start_call(self, *, number_stride: int, salt: tuple[int, ...]) -> None:
        """Drop all numbers and finished episodes, and use these values of the context until the next call."""
        self.retract(above=None)
        self._context = replace(self._context, number_stride=number_stride, salt=salt)

    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to run; each row runs its lowest first."""
        ranges = [lease for lease in numbers if lease]
        self._next_number = max([self._next_number, *(lease[-1] + 1 for lease in ranges)])
        self._queue.add(chain.from_iterable(ranges), self.number_stride)

    def prepare(self) -> None:
        """Compile the program of a JAX environment, unless it is compiled."""

    def advance(self, deadline: float, enough: float = math.inf) -> None:
        """Run at least a step, until `time.perf_counter()` passes `deadline`, `enough` rows are finished, or all end.

        Raises:
            UserCodeError: If the policy or the environment fails; `episodes` are the numbers it may concern.
        """
        engine = self._ready()
        if self.has_work:
            with reporting_failures(engine):
                engine.run(deadline, enough)

    def take(self, *, everything: bool = False) -> list[Chunk]:
        """Remove finished episodes and return them in the order of their numbers, as one or more chunks.

        Unless `everything` is true, an episode stays for up to a quarter of a second while a lower number of
        this worker still runs or waits, so that chunks have few gaps.
        """
        if self._engine is None:
            return []
        below = math.inf
        if not everything:
            below = min((*self._engine.running_numbers, *self._queue.lowest), default=math.inf)
        return self._engine.take(below, _clock() - HOLD_SECONDS)

    def retract(self, *, above: int | None) -> None:
        """Drop waiting and running numbers above `above`; with None, drop all, and finished episodes too."""
        last = NO_NUMBER if above is None else above
        self._queue.drop_above(last)
        self._forget(last)
        if above is None:
            self.take(everything=True)

    @property
    def has_work(self) -> bool:
        """Whether an episode runs or a number waits."""
        return bool(self._queue or self.running_numbers)

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """The numbers of the running episodes."""
        return () if self._engine is None else self._engine.running_numbers

    @property
    def finished_rows(self) -> int:
        """Number of rows (steps) that `take(everything=True)` would return."""
        return 0 if self._engine is None else self._engine.finished_rows

    @property
    def finished_bytes(self) -> int:
        """Approximate bytes that `take(everything=True)` would return."""
        return 0 if self._engine is None else self._engine.finished_rows * self._engine.row_bytes

    def report(self) -> WorkerReport:
        """Describe the policy and environment as loaded in this worker; the caller adds the files."""
        engine = self._ready()
        report = WorkerReport(
            env=describe_env(self.env),
            scope=engine.scope,
            not_reproducible=engine.not_reproducible,
            warnings=(*stack_warnings(self.env), *engine.casts),
        )
        return self._holder.completed(report)

    def shutdown(self) -> None:
        """Close the environments and discard running episodes; EnvError if closing fails."""
        self._forget()
        self._engine = None
        envs = self._envs
        self._envs = []
        for env in envs:
            close_env(env)

    def _forget(self, above: int = NO_NUMBER) -> None:
        """Discard the running episodes with numbers higher than `above`."""
        if self._engine is not None:
            self._engine.forget(above)

    def _ready(self) -> Engine:
        if self._engine is None:
            raise UsageError(
                "no policy or environment is set", code="call-order", hint="call update_agent and update_env"
            )
        return self._engine

    def __getstate__(self) -> NoReturn:
        raise UsageError(
            "a worker cannot be pickled", code="worker-pickled", hint="pickle its WorkerFactory instead"
        )


@contextmanager
def reporting_failures(engine: Engine) -> Iterator[None]:
    """Let the engine place the errors of user code."""
    try:
        yield
    except BaseException as error:
        engine.fail(error)
        raise
