"""VecWorker: one policy in several rows of a vector environment, with one batched policy call a step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, Literal, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from rollout_cli.envs.describe import AutoresetMode, env_spec_of, vector_name
from rollout_cli.envs.source import build_native, one_for_each
from rollout_cli.envs.updates import check_env, check_makes_new, close_env, updated_env
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.spaces import SpaceRows, space_leaves
from rollout_cli.errors import ArgumentError, EnvLoadError, InternalError, UserCodeError
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import SETUP, derive_seed, env_seed, seed_globals
from rollout_cli.workers.batches import flag_batch, infos_of_rows, leaf_batch, reward_batch
from rollout_cli.workers.checks import (
    ENDLESS_HINT,
    RESET,
    STEP,
    BadValueError,
    blame,
    episode_place,
    shown,
)
from rollout_cli.workers.default_worker import NOT_READY, DefaultWorker, check_same_spec
from rollout_cli.workers.rollout_buffer import RolloutBuffer, new_episodes
from rollout_cli.workers.row_numbers import RowNumbers
from rollout_cli.workers.row_policies import OnePolicy, PolicyEach
from rollout_cli.workers.rows import NativeRows, RowError, Rows, SyncRows, final_infos
from rollout_cli.workers.worker import NO_NUMBER, WorkerReport

Array = npt.NDArray[Any]

HOLD_SECONDS = 0.25
"""How long a finished episode waits at most for lower numbers of its worker to end."""

_clock = time.perf_counter


class VecWorker(DefaultWorker):
    """Runs one policy in `n_envs` rows at once. A row takes its own next number when its episode ends.

    Number i runs in row i % n_envs, under every policy. With rows that are reset from outside, an episode is a function
    of its number and `n_envs`; for policies whose rows do not influence each other it is the very episode that a
    DefaultWorker runs.

    A row begins its next number within a step, so a subclass overrides `step_episode` and, with `sync`, `reset_env` and
    `step_env`; samplers refuse one that overrides more of what `DefaultWorker` lists.

    Args:
        seed: The root seed of the run.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        n_envs: How many rows.
        vectorization: `sync` steps n_envs copies of the environment one after another; `native` steps the environment's
            own vector form, a vector entry point or a factory that is called with `num_envs`.
        deterministic: Whether a policy that has a deterministic mode uses it.
        fresh_env: Whether a row's environment is closed and built anew for each episode; for `sync` alone.

    Raises:
        ArgumentError: If `n_envs` or `vectorization` is none of these (a ValueError, too).
    """

    DEFAULT_N_ENVS: ClassVar[int] = 8

    def __init__(
        self,
        *,
        seed: int,
        max_episode_length: float | None,
        worker_number: int,
        n_envs: int = DEFAULT_N_ENVS,
        vectorization: Literal["sync", "native"] = "sync",
        deterministic: bool = False,
        fresh_env: bool = False,
    ) -> None:
        VecWorker.numbers_at_once({"n_envs": n_envs})
        if vectorization not in ("sync", "native"):
            raise ArgumentError(f"vectorization is {vectorization!r}, must be 'sync' or 'native'")
        if fresh_env and vectorization == "native":
            raise ArgumentError("fresh_env=True builds single environments anew, and vectorization='native' has none")
        self._n_envs, self._vectorization = n_envs, vectorization
        self._queue = RowNumbers(n_envs)
        self._buffer = RolloutBuffer({}, n_envs, worker_number)
        self._row_seeders = [EpisodeSeeder(seed) for _ in range(n_envs)]
        # The episodes that run. The worker writes to two of the fields, and reads them, at every step.
        self._running = new_episodes(n_envs)
        self._numbers, self._starts = self._running["number"], self._running["start"]
        self._resetting = np.empty(0, np.int64)
        """Rows that an environment of mode NEXT_STEP resets in the next step."""
        self._is_begun = False
        self._where = RESET
        super().__init__(
            seed=seed,
            max_episode_length=max_episode_length,
            worker_number=worker_number,
            deterministic=deterministic,
            fresh_env=fresh_env,
        )

    # Set once there is an environment, and once there is a policy, too.
    _rows: Rows
    _used_rows: set[int]  # In whose environments an episode began.
    _limit: float
    _row_specs: list[EnvSpec]
    _policies: OnePolicy
    _spaces: SpaceRows
    _observations: Any
    _leaves: list[Array]

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        n_envs = int(worker_args.get("n_envs", cls.DEFAULT_N_ENVS))
        if n_envs < 1:
            raise ArgumentError(f"n_envs is {n_envs}, must be at least 1")
        return n_envs

    @classmethod
    def places(cls, worker_args: dict[str, Any]) -> set[str]:
        return {"step_episode"} | ({"reset_env", "step_env"} if worker_args.get("vectorization") != "native" else set())

    # -- updates -----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Take new environments or apply updates: one for all rows, or for `sync` a list with one a row.

        Raises:
            EnvTypeError: If one is neither an environment nor an update (a TypeError, too).
            ArgumentError: If the list has another number of entries (a ValueError, too).
            EnvLoadError: If one cannot be built or recorded, has no vector form, has other spaces than the others, or
                if its episodes cannot be limited as the run asks.
        """
        if env_update is None:
            return
        is_native = self._vectorization == "native"
        kind: type[Any] = VectorEnv if is_native else gymnasium.Env
        hint = f"{'omit' if is_native else 'vector environments need'} vectorization='native'"
        for one in env_update if isinstance(env_update, list) and not is_native else [env_update]:
            check_env(one, kind, hint=hint, or_update=True)
        self._forget()
        seed_globals(self._seed, SETUP)
        rows: Rows = self._native_rows(env_update) if is_native else self._sync_rows(env_update)
        self._rows, self._env = rows, rows.envs[0] if rows.envs else rows.env
        waiting, self._queue = self._queue.numbers, RowNumbers(1 if rows.resets_itself else self._n_envs)
        self._queue.add(waiting, self.number_stride)
        self._limit = min(self._max_episode_length, rows.own_limit) if rows.envs else self._max_episode_length
        if rows.resets_itself and rows.own_limit > self._limit:
            limits = f"its rows itself after {rows.own_limit:g} steps: none can be cut at {self._limit:g} steps"
            hint = "give the limit to the environment, as in {env_kwargs=max_episode_steps=N}, or omit it"
            raise EnvLoadError(f"{vector_name(rows.env)} resets {limits}", hint=hint)
        specs = rows.specs(self._max_episode_length)
        self._take_spec(specs[0])
        if not self._holder.policies:  # Those that are kept may draw from the spaces that they were given.
            self._row_specs = specs
        self._make_ready()

    def _native_rows(self, env_update: Any) -> NativeRows:
        # Each start of each worker has a seed of its own: no two run the same episodes. It has 31 bits.
        seed = derive_seed(self._seed, SETUP, f"native env {self.worker_number} {self.salt}") >> 33
        env = updated_env(self._env, env_update, VectorEnv, lambda source: build_native(source, self._n_envs, seed))
        if env.num_envs != self._n_envs:
            hint = "give an EnvSource, or omit vectorization='native'"
            raise EnvLoadError(f"{env!r} is no gymnasium.vector.VectorEnv of {self._n_envs} rows", hint=hint)
        return NativeRows(env, self._seed)

    def _sync_rows(self, env_update: Any) -> SyncRows:
        before = self._rows.envs if self._env is not None else [None] * self._n_envs
        updates = one_for_each(env_update, self._n_envs)
        for update in updates if self._fresh_env else ():
            check_makes_new(update)
        self._env_update, self._used_rows = updates, set()
        envs = [updated_env(old, update, gymnasium.Env) for old, update in zip(before, updates, strict=True)]
        return SyncRows(envs, self._seed, self.reset_env, [self._stepper(env) for env in envs])

    def _make_ready(self) -> None:
        """Adapt the policy once both it and the spaces are known, and find the generators that both draw from."""
        if self._env_spec is None or self._env is None:
            return
        self._holder.adapt(self._row_specs, self._rows.envs)
        if not self._holder.policies:
            return
        self._is_begun = False
        self._spaces = SpaceRows(self._env_spec.observation_space)
        if not self.finished_rows:
            actions = space_leaves(self._env_spec.action_space)
            leaves = {"observation": self._spaces.leaves, "action": actions}
            self._buffer = RolloutBuffer(leaves, self._n_envs, self.worker_number)
        kind = PolicyEach if self._holder.policy.row_by_row else OnePolicy
        self._policies = kind(self._holder, self._env_spec, self._rows, self._seed, self.rules)
        self._policies.watch(self._seeder, self._row_seeders, self._row_specs)

    # -- episodes ----------------------------------------------------------------------------------------------------

    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to run; each row runs its lowest first."""
        self._queue.add(chain.from_iterable(numbers), self.number_stride)

    def start_episode(self) -> None:
        """Begin an episode in each free row that has a number; in every row, where none is assigned and none runs."""
        if not self.has_work:
            self.assign([range(self._next_own, self._next_own + self._n_envs)])
        with self._blaming():
            self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin the numbers that need not wait for their row's episode to end."""
        is_free = self._numbers == NO_NUMBER
        # Rows that reset themselves begin as they do so. Where none runs or is about to, all are reset at once.
        if not self._is_begun or (self._rows.resets_itself and is_free.all() and not len(self._resetting)):
            self._begin_rows(np.arange(self._n_envs), anew=True)
        elif not self._rows.resets_itself:
            free = [row for row in np.flatnonzero(is_free).tolist() if self._queue.has(row)]
            if free:
                self._begin_rows(np.array(free))

    def _begin_rows(self, rows: Array, infos: Any = None, *, anew: bool = False) -> None:
        """Begin the next number of each row (k,) that has one, with the next step; `anew` where these are all rows.

        `infos` are those of the step in which the environment reset these rows; None where it is to be reset here.
        """
        numbers, running, step = self._queue.take(rows), self._running, self._buffer.step
        running["number"][rows], running["seed"][rows] = numbers, -1
        running["start"][rows] = running["unsaved"][rows] = step
        running["began"][rows] = _clock()
        self.crash_box.note(self._numbers)
        runs = numbers != NO_NUMBER
        begun, its = rows[runs], numbers[runs]
        if self._fresh_env:
            self._renew_envs(begun.tolist())
        if len(begun):
            self._next_own = max(self._next_own, int(its.max()) + 1)
            self._where = "policy.seed"
            self._policies.seed(rows if anew else begun, numbers if anew else its, anew=anew)
        self._where = RESET
        if infos is None:
            before = self._observations if self._is_begun else None
            observations, infos, running["seed"][rows] = self._rows.reset(rows, self._numbers, before)
            self._resetting = np.empty(0, np.int64)
            self._see(observations)
        running["info"][rows] = infos_of_rows(infos, rows.tolist(), self._n_envs)
        if len(begun):
            self._where = "policy.reset"
            self._policies.reset(begun if self._is_begun else rows)
        if not self._is_begun:
            self._is_begun = True
            self._policies.watch(self._seeder, self._row_seeders, self._row_specs)

    def _renew_envs(self, rows: list[int]) -> None:
        """Build the environments of these rows anew, but for the rows that have run no episode yet."""
        envs = self._rows.envs
        for row in self._used_rows.intersection(rows):
            seed_globals(self._seed, SETUP)
            env = envs[row] = updated_env(envs[row], self._env_update[row], gymnasium.Env)
            check_same_spec(env_spec_of(env, self._max_episode_length), self.env_spec)
            self._rows.steps[row] = self._stepper(env)
            self._row_seeders[row].watch(env=env)
        self._used_rows.update(rows)
        self._env = envs[0]

    def step_episode(self) -> bool:
        """Take one step in every row; return whether an episode ended."""
        if not self.has_work:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        before = self.finished_rows
        with self._blaming():
            self._step_rows()
        return self.finished_rows > before

    def rollout(self) -> EpisodeBatch:
        """Run one episode in every row (or the assigned ones) to its end, and return them: no short one wins a race."""
        self.start_episode()
        while self.has_work:
            self.step_episode()
        return self.collect_episode()

    def advance(self, deadline: float) -> None:
        self.crash_box.step()
        by_verb = type(self).step_episode is not VecWorker.step_episode
        with self._blaming():
            if self._queue:
                self._begin_waiting()
            while self.has_work:
                if by_verb:
                    self._where = "step_episode"
                    self.step_episode()
                    self._expect(self._where != "step_episode", "step_episode")
                else:
                    self._step_rows()
                if _clock() >= deadline:
                    break

    def _step_rows(self) -> None:
        """Take one step in every row: observations are recorded before the policy sees them, actions before the env."""
        buffer, n_envs = self._buffer, self._n_envs
        buffer.begin_step(self._leaves)
        self._where = f"policy.{self._holder.policy.methods[1]}"
        given, actions, infos = self._policies.act(self._observations, self._numbers)
        buffer.put("action", actions)
        buffer.put_infos("agent", infos)
        self._where = STEP
        observations, rewards, terminated, truncated, infos = self._rows.step(given, self._numbers)
        buffer.put("reward", [reward_batch(rewards, n_envs)])
        self._see(observations)
        terminated = flag_batch("terminated", terminated, n_envs)
        self._finish_step(terminated, flag_batch("truncated", truncated, n_envs), infos)

    def _see(self, observations: Any) -> None:
        """Keep the observations, and their leaves, for the next step to record."""
        try:
            columns = self._spaces.columns(observations)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"the observations lack {error!r}: {shown(observations)}") from error
        pairs = zip(self._spaces.leaves, columns, strict=True)
        self._leaves = [leaf_batch("observations", leaf, values, self._n_envs) for leaf, values in pairs]
        # Not as they are: gymnasium joins texts to tuples.
        self._observations = self._spaces.tree(self._leaves)

    def _finish_step(self, terminated: Array, truncated: Array, infos: Any) -> None:
        """Record a step's infos, finish the episodes that ended, and begin those whose rows are reset."""
        buffer, mode, leaves, over = self._buffer, self._rows.mode, self._leaves, terminated | truncated
        if mode is AutoresetMode.SAME_STEP and over.any():
            final, last_infos, infos = final_infos(infos)
            buffer.put_infos("env", infos, ~over)
            buffer.put_infos("env", last_infos, over)
            leaves = self._final_leaves(final, over)
        else:
            buffer.put_infos("env", infos)
        if buffer.end_step():
            self._make_room()
        if mode is AutoresetMode.NEXT_STEP:
            over[self._resetting] = False  # The flags of a step that resets a row mean nothing.
        elif mode is AutoresetMode.DISABLED and not math.isinf(self._limit):
            truncated = truncated | ((buffer.step - self._starts >= self._limit) & (self._numbers != NO_NUMBER))
            over |= truncated
        ended = begun = np.flatnonzero(over)
        if (runs := ended[self._numbers[ended] != NO_NUMBER]).size:
            self._end(runs, terminated, truncated, leaves)
        if mode is AutoresetMode.NEXT_STEP:
            begun, self._resetting = self._resetting, ended
        if len(begun):
            self._begin_rows(begun, None if mode is AutoresetMode.DISABLED else infos)
        elif len(ended):
            self.crash_box.note(self._numbers)

    def _final_leaves(self, final: Any, over: Array) -> list[Array]:
        """Return the last observations, one array (n, *shape) a leaf, that mean something where `over`."""
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = np.cumsum(over) - 1
            stacked = self._spaces.stack([final[row] for row in np.flatnonzero(over).tolist()])
            return [leaf[rows] for leaf in self._spaces.columns(stacked)]
        pairs = zip(self._spaces.leaves, self._spaces.columns(final), strict=True)
        return [leaf_batch("final observations", leaf, values, self._n_envs) for leaf, values in pairs]

    def _end(self, rows: Array, terminated: Array, truncated: Array, leaves: list[Array]) -> None:
        """End the episodes that run in rows (k,); flags (n,) and last observations (n, *shape) are of all rows."""
        running = self._running
        running["stop"][rows], running["ended"][rows] = self._buffer.step, _clock()
        running["terminated"], running["truncated"] = terminated, truncated
        self._buffer.end({name: values[rows] for name, values in running.items()}, [leaf[rows] for leaf in leaves])
        self._numbers[rows] = NO_NUMBER

    def _make_room(self) -> None:
        if self.env_spec.max_episode_length is None:
            lengths = np.where(self._numbers != NO_NUMBER, self._buffer.step - self._starts, 0)
            if lengths.max() >= self.rules.most_steps(self._buffer.row_bytes):
                error = BadValueError(f"the episode has no end: it is {lengths.max():,} steps long", ENDLESS_HINT)
                raise RowError(int(lengths.argmax())) from error
        self._buffer.make_room(self._running)

    # -- errors ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """Raise the UserCodeError of the user's code that fails inside; all episodes that run are then given up."""
        if not self._holder.policies or self._env is None:
            raise InternalError(NOT_READY)
        try:
            yield
        except BaseException as error:
            if not (isinstance(error, UserCodeError) and error.episodes):  # Else a verb that `advance` calls blamed it.
                self._give_up(self._where, error)
            raise

    def _give_up(self, where: str, error: BaseException) -> NoReturn:
        row: int | None = None
        if isinstance(error, RowError):
            row, error = error.row, error.__cause__ or error
        # With none at work, an environment that resets its rows itself failed on the way to the next one.
        step, numbers = self._buffer.step, self.running_numbers or tuple(self._queue.lowest[:1])
        if row is not None and self._numbers[row] != NO_NUMBER:
            numbers = (int(self._numbers[row]),)
            seed = -1 if self._rows.resets_itself else env_seed(self._seed, numbers[0])
            place = episode_place(self.worker_number, numbers[0], seed, step - int(self._starts[row]))
        else:
            which = f"episodes {min(numbers)} to {max(numbers)}" if numbers else "no episode"
            place = f"worker {self.worker_number}, {which}, step {step} of {self._n_envs} rows"
        self._forget()
        self._is_begun = False
        blame(where, error, place, numbers)
        raise error

    def _forget(self, last: int = NO_NUMBER) -> None:
        """Give up the episodes that run, above the number `last`."""
        mask = self._numbers > last
        self._buffer.forget(self._numbers[mask].tolist())
        self._numbers[mask] = NO_NUMBER
        self.crash_box.note(self._numbers)

    # -- a sampler's questions ---------------------------------------------------------------------------------------

    def take(self, *, everything: bool = False) -> Chunk | None:
        lowest = None if everything else min((*self.running_numbers, *self._queue.lowest), default=None)
        return self._buffer.take(lowest, _clock() - HOLD_SECONDS)

    def retract(self, *, above: int | None) -> None:
        last = NO_NUMBER if above is None else above
        self._queue.drop_above(last)
        self._forget(last)
        if above is None:
            self.take(everything=True)

    @property
    def has_work(self) -> bool:
        return bool(self._queue or (self._numbers != NO_NUMBER).any())

    @property
    def running_numbers(self) -> tuple[int, ...]:
        return tuple(self._numbers[self._numbers != NO_NUMBER].tolist())

    @property
    def finished_rows(self) -> int:
        return self._buffer.finished_rows

    @property
    def finished_bytes(self) -> int:
        return self._buffer.finished_rows * self._buffer.row_bytes

    def report(self) -> WorkerReport:
        """Return what a DefaultWorker does, and how far the episodes can be reproduced."""
        is_own, reason = bool(self._rows.envs) and self._policies.is_row_wise, None
        if self._rows.resets_itself:
            mode = self._rows.mode.value
            reason = f"the vector environment resets a row by itself ({mode}), from no seed of the episode's own"
        return replace(super().report(), scope="any" if is_own else "n_envs", not_reproducible=reason)

    def shutdown(self) -> None:
        self._forget()
        rows, self._env = None if self._env is None else self._rows, None
        close_env(rows)
