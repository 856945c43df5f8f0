"""Worker: what a sampler or a script asks of a worker, whatever engine runs its episodes.

The verbs are garage's. Beside them a sampler gives a worker numbers, and takes finished episodes as chunks.
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

from rollout_cli.envs.describe import describe_env, loaded_modules, stack_warnings
from rollout_cli.envs.updates import close_env
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import InternalError
from rollout_cli.policies.adapt import policy_class
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.workers.context import InContext
from rollout_cli.workers.policy_holder import PolicyHolder
from rollout_cli.workers.row_queues import RowQueues
from rollout_cli.workers.values import NO_NUMBER, OnInvalidAction, WorkerReport

Env = gymnasium.Env[Any, Any]

VERBS = ("start_episode", "step_episode", "collect_episode", "rollout")
"""What garage's workers override."""

OVERRIDABLE = ("reset_env", "reset_agent", "step_env", "predecessors")
"""The places to override in place of these."""

OWN_EPISODES = 1 << 24
"""How many numbers lie between those that two workers run by their own verbs."""

HOLD_SECONDS = 0.25
"""How long a finished episode waits at most for lower numbers of its worker to end."""

_clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine works with."""

    root: int
    worker: Worker  # Its hooks, its crash box, and what is its own.
    policy: AdaptedPolicy
    rule: OnInvalidAction
    seeders: Sequence[EpisodeSeeder]  # One for each row, and one for what all rows share.
    queue: RowQueues  # The numbers that wait; it is the worker's.
    limit: float  # Steps after which the run truncates an episode.


class Engine(Protocol):
    """Runs episodes in rows, and keeps those that have ended until they are taken.

    Whoever calls `begin`, `step` or `run` gives what these raise to `fail`.
    """

    in_turn: bool  # Whether one episode runs at a time.
    row_bytes: int  # Of a step, without its infos and texts.
    scope: Literal["any", "n_envs"]  # `n_envs` where an episode depends on how many rows there are.

    @property
    def finished_rows(self) -> int:
        """How many steps the episodes have that have ended."""

    @property
    def not_reproducible(self) -> str | None:
        """Why the episodes cannot be reproduced, where that is known."""

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """The numbers of the episodes that run."""

    @property
    def casts(self) -> list[str]:
        """Warnings about observations that have lost digits."""

    def use_policy(self, policy: AdaptedPolicy) -> None:
        """Run the next episodes with `policy`: new parameters, or another policy of the same form.

        No episode runs. The environments did not change, so they are not searched for generators again.
        """

    def begin(self) -> None:
        """Begin waiting numbers, each in its row: one where rows take turns, else in all free rows."""

    def step(self) -> bool:
        """Take one step of all rows, or of one where they take turns; return whether an episode ended."""

    def run(self, deadline: float, enough: float) -> None:
        """Run until the workers' clock passes `deadline`, `enough` rows have ended, or nothing is left.

        It takes at least one step.
        """

    def fail(self, error: BaseException) -> None:
        """Give up all episodes that run, and raise the UserCodeError that says whose step it was.

        Return where no code of the user's is at fault.
        """

    def take(self, below: float, ended_before: float) -> list[Chunk]:
        """Remove the episodes that ended below a number or before a time; in order, in one or more chunks."""

    def forget(self, above: int) -> None:
        """Give up the episodes that run, above the number `above`."""


class Worker(InContext, abc.ABC):
    """Runs one policy in one or more environments; built where it runs, and never pickled.

    The legal order of the verbs: `update_agent` and `update_env` at least once each; then any number of
    episodes, each by `start_episode`, `step_episode` until it returns True, and `collect_episode`; `rollout`
    does these three. A sampler calls `assign`, `advance` and `take` in place of these. Both updates may be
    called again once all finished episodes are taken. Where policy and environment both change, and each fits
    the other's new one alone, `forget_agent` comes before the two.

    A worker takes the numbers of its own episodes from `worker_number * 2**24` on, so that no two workers run
    the same.

    A subclass may override `worker_init`, and the places that `OVERRIDABLE` names. Samplers do not call the
    verbs, and refuse a class that overrides them.

    Args:
        seed: The root seed of the run; every episode's seeds come from it and the episode's number.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        deterministic: Whether a policy that has a deterministic mode uses it.
        fresh_env: Whether the environment is closed and built anew for each episode.
    """

    _n_envs = 1  # How many rows: episodes that it may run at once.

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
        self._envs: list[Any] = []  # One a row, or the vector environment.
        self._env_spec: EnvSpec | None = None
        self._engine: Engine | None = None
        self._engine_form: tuple[Any, ...] | None = None  # Of the policy that the engine was built for.
        self.worker_init()

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:  # noqa: ARG003
        """Return how many numbers a worker with these arguments runs at once: it wants blocks of so many."""
        return 1

    @classmethod
    def overridable(cls, worker_args: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG003
        """Return those of the places to override that a worker with these arguments calls."""
        return OVERRIDABLE

    # -- places to override ----------------------------------------------------------------------------------

    def worker_init(self) -> None:
        """Prepare the process; called once, before the first update."""

    def reset_env(self, env: Env, number: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset the environment for episode `number`, with the run's options; return observation and info."""
        options = self.rules.options_of(number)
        if options is None:
            return env.reset(seed=seed)
        return env.reset(seed=seed, options=options)

    def reset_agent(self, agent: Any, number: int) -> None:  # noqa: ARG002
        """Reset the policy for episode `number`, after the environment; `agent` is the user's own object."""
        assert self._holder.policy is not None
        self._holder.policy.reset()

    def step_env(self, env: Env, action: Any) -> Any:
        """Take one step of the environment; return what `env.step` does. It is recorded."""
        return env.step(action)

    def predecessors(self, number: int) -> Sequence[int]:  # noqa: ARG002
        """Return the episodes on which `number` builds, in their order.

        Where this worker has not just run them, it runs them right before it, and does not record them.
        """
        return ()

    # -- updates ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def update_env(self, env_update: Any) -> None:
        """Take a new environment, or an EnvUpdate to apply to the present one; None changes nothing.

        Raises:
            EnvTypeError: If it is none of these (a TypeError, too).
            EnvLoadError: If it cannot be built, or has a space that cannot be recorded.
        """

    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy, or parameters (dict, tuple or array) for the present one; None changes nothing.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        if agent_update is None:
            return
        self._forget()
        with self._holder.restored_on_error():
            self._holder.update(agent_update)
            self._make_ready()

    def forget_agent(self) -> None:
        """Let go of the policy, which the next environment need not fit; `update_agent` must follow."""
        self._forget()
        self._holder.forget()

    @abc.abstractmethod
    def _new_engine(self, setting: Setting) -> Engine:
        """Return the engine for the policy and the environments."""

    def _n_queues(self, policy: AdaptedPolicy) -> int:  # noqa: ARG002
        """Return 1 if any row may run any number, else the number of rows."""
        return self._n_envs

    def _use_spec(self, spec: EnvSpec) -> None:
        """Work in the environments, which have this spec, from now on."""
        if spec != self._env_spec:
            self._holder.policy = None
        self._env_spec = spec
        self._engine_form = None
        self._make_ready()

    def _make_ready(self) -> None:
        """Build an engine once both the policy and the environment are known, or keep one that fits."""
        if not (self._env_spec and self._envs):
            return
        policy = self._holder.adapt(self._env_spec, self._envs)
        if policy is None:
            return
        if self.finished_rows:
            raise InternalError(
                "an update came before the finished episodes were taken", hint="call collect_episode first"
            )
        # Actions that are valid by construction need no check.
        rule = "warn" if policy.trusted else self.rules.invalid_action
        n_queues = self._n_queues(policy)
        form = (type(policy), policy.methods, policy.row_by_row, policy.row_wise, n_queues, rule)
        if self._engine is not None and form == self._engine_form:
            self._engine.use_policy(policy)
            return
        self._queue = self._queue.resized(n_queues, self.number_stride)
        setting = Setting(self._seed, self, policy, rule, self._seeders, self._queue, self._limit)
        self._engine = self._new_engine(setting)
        self._engine_form = form

    # -- the documents' verbs --------------------------------------------------------------------------------

    def start_episode(self) -> None:
        """Begin assigned numbers, each in its row; where none is assigned, those after the last.

        Where rows take turns, and with one row, this is the lowest one, and an episode that runs is given up.
        """
        engine = self._ready()
        if engine.in_turn:
            engine.forget(NO_NUMBER)
        if not self.has_work:
            self.assign([range(self._next_number, self._next_number + self._n_envs)])
        with _reporting_failures(engine):
            engine.begin()

    def step_episode(self) -> bool:
        """Take one step in every row, or in the one whose turn it is; return whether an episode ended."""
        engine = self._ready()
        if not self.has_work:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        with _reporting_failures(engine):
            return engine.step()

    def collect_episode(self) -> EpisodeBatch:
        """Return the finished episodes that were not collected yet; InternalError where there are none."""
        if chunks := self.take(everything=True):
            return EpisodeBatch.from_chunks(self.env_spec, chunks)
        raise InternalError("collect_episode was called with no finished episode")

    def rollout(self) -> EpisodeBatch:
        """Run the assigned episodes, or else one of every row, and return them: no short one wins a race."""
        self.start_episode()
        while self.has_work:
            self.step_episode()
        return self.collect_episode()

    # -- a sampler's questions -------------------------------------------------------------------------------

    @property
    def agent(self) -> Any:
        """The policy, as the user made it; None before the first update."""
        return self._holder.users_own

    @property
    def env(self) -> Any:
        """The first row's environment, or the vector environment; None before the first update."""
        return self._envs[0] if self._envs else None

    @property
    def env_spec(self) -> EnvSpec:
        """Spaces of its environment, and the limit in force: the lower of the environment's and its own."""
        if self._env_spec is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._env_spec

    def start_call(self, *, number_stride: int, salt: tuple[int, ...]) -> None:
        """Drop all numbers and finished episodes; these values of the context hold until the next call."""
        self.retract(above=None)
        self._context = replace(self._context, number_stride=number_stride, salt=salt)

    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to run; each row runs its lowest first."""
        ranges = [lease for lease in numbers if lease]
        self._next_number = max([self._next_number, *(lease[-1] + 1 for lease in ranges)])
        self._queue.add(chain.from_iterable(ranges), self.number_stride)

    def advance(self, deadline: float, enough: float = math.inf) -> None:
        """Run assigned numbers, at least a step, until `time.perf_counter()` passes `deadline` or all ended.

        It returns earlier once `finished_rows` reaches `enough`.

        Raises:
            UserCodeError: If the policy or the environment fails, in one of the error's `episodes`.
        """
        engine = self._ready()
        if self.has_work:
            with _reporting_failures(engine):
                engine.run(deadline, enough)

    def take(self, *, everything: bool = False) -> list[Chunk]:
        """Remove finished episodes and return them in the order of their numbers, as one chunk or several.

        Where not `everything` is asked for, one that a lower number of this worker's holds up is kept back
        for up to a quarter of a second, so that a chunk has few gaps.
        """
        if self._engine is None:
            return []
        below = math.inf
        if not everything:
            below = min((*self._engine.running_numbers, *self._queue.lowest), default=math.inf)
        return self._engine.take(below, _clock() - HOLD_SECONDS)

    def retract(self, *, above: int | None) -> None:
        """Drop waiting and running numbers above `above`; for None, all of them, and the finished ones."""
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
        """The numbers of the episodes that run."""
        return () if self._engine is None else self._engine.running_numbers

    @property
    def finished_rows(self) -> int:
        """How many rows `take(everything=True)` would give."""
        return 0 if self._engine is None else self._engine.finished_rows

    @property
    def finished_bytes(self) -> int:
        """About how many bytes it would give."""
        return 0 if self._engine is None else self._engine.finished_rows * self._engine.row_bytes

    def report(self) -> WorkerReport:
        """Return what only a worker knows of the policy and environment; files are not its business."""
        engine = self._ready()
        return WorkerReport(
            env=describe_env(self.env),
            policy_class=policy_class(self._holder.policy),
            modules=loaded_modules(),
            scope=engine.scope,
            not_reproducible=engine.not_reproducible,
            warnings=(*stack_warnings(self.env), *engine.casts),
        )

    def shutdown(self) -> None:
        """Close the environments, and give up the episodes that run; EnvError if that fails."""
        self._forget()
        self._engine = None
        envs = self._envs
        self._envs = []
        for env in envs:
            close_env(env)

    def _forget(self, above: int = NO_NUMBER) -> None:
        """Give up the episodes that run, above a number."""
        if self._engine is not None:
            self._engine.forget(above)

    def _ready(self) -> Engine:
        if self._engine is None:
            raise InternalError(
                "the worker needs both a policy and an environment: update_agent and update_env"
            )
        return self._engine

    def __getstate__(self) -> NoReturn:
        raise InternalError(
            f"a {type(self).__name__} cannot be pickled",
            hint="pickle its WorkerFactory, and build the worker from it",
        )


@contextmanager
def _reporting_failures(engine: Engine) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        engine.fail(error)
        raise
