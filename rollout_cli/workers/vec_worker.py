"""VecWorker: one policy in several rows of a vector environment, with one batched policy call a step."""

from __future__ import annotations

import math
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from rollout_cli.envs import describe_env
from rollout_cli.envs.describe import loaded_versions, vector_name
from rollout_cli.envs.source import build_native, one_for_each
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.spaces import Leaf, SpaceRows
from rollout_cli.errors import EnvLoadError, InternalError
from rollout_cli.policies import policy_class
from rollout_cli.seeding.seeds import SETUP, env_seed, seed_globals
from rollout_cli.workers.batch_infos import batch_columns
from rollout_cli.workers.checks import (
    ENDLESS_HINT,
    GET_ACTIONS,
    RESET,
    STEP,
    BadValueError,
    blame,
    episode_place,
    shown,
)
from rollout_cli.workers.default_worker import DefaultWorker, close_env, updated_env
from rollout_cli.workers.rollout_buffer import RolloutBuffer, as_array, leaf_array, new_episodes
from rollout_cli.workers.row_numbers import RowNumbers
from rollout_cli.workers.row_policies import RowError, RowPolicies, row_policies
from rollout_cli.workers.rows import Infos, NativeRows, SyncRows, final_infos
from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[Any]

DEFAULT_N_ENVS = 8

HOLD_SECONDS = 0.25
"""How long a finished episode waits at most for lower numbers of its worker to end."""

_LOOKS = 8
"""Steps in which the worker looks whether the rows draw from a generator that they share."""

_POLICY_DRAWS = (
    "the policy draws from a random generator that all rows share: "
    "let it offer seed_rows(mask, seeds), and draw each row's numbers from a generator of its own"
)
_ENV_DRAWS = "the environment draws from a global random generator, which all rows share"

_clock = time.perf_counter


class VecWorker(DefaultWorker):
    """Runs one policy in `n_envs` rows at once. A row takes its own next number when its episode ends.

    Number i runs in row i % n_envs, under every policy. With rows that are reset from outside, an episode is a function
    of its number and `n_envs`; for policies whose rows do not influence each other it is the very episode that a
    DefaultWorker runs.

    Args:
        seed: The root seed of the run.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        n_envs: How many rows.
        vectorization: `sync` steps n_envs copies of the environment one after another; `native` steps the environment's
            own vector form, a vector entry point or a factory that is called with `num_envs`.
        deterministic: Whether a policy that has a deterministic mode uses it.

    Raises:
        ValueError: If `n_envs` or `vectorization` is none of these.
    """

    def __init__(
        self,
        *,
        seed: int,
        max_episode_length: float | None,
        worker_number: int,
        n_envs: int = DEFAULT_N_ENVS,
        vectorization: Literal["sync", "native"] = "sync",
        deterministic: bool = False,
    ) -> None:
        if n_envs < 1:
            raise ValueError(f"n_envs is {n_envs}, must be at least 1")
        if vectorization not in ("sync", "native"):
            raise ValueError(f"vectorization is {vectorization!r}, must be 'sync' or 'native'")
        self._n_envs, self._vectorization = n_envs, vectorization
        self._rows: NativeRows | None = None
        self._policies: RowPolicies | None = None
        self._buffer: RolloutBuffer | None = None
        self._queue = RowNumbers(n_envs)
        # The episodes that run. The worker writes to two of the fields, and reads them, at every step.
        self._running = new_episodes(n_envs)
        self._numbers, self._starts = self._running["number"], self._running["start"]
        self._resetting = np.empty(0, np.int64)
        """Rows that an environment of mode NEXT_STEP resets in the next step."""
        self._is_begun = False
        self._looks_left = 0
        self._shared_draws = ""
        self._observations: Any = None
        self._leaves: list[Array] = []
        self._where = RESET
        super().__init__(
            seed=seed,
            max_episode_length=max_episode_length,
            worker_number=worker_number,
            deterministic=deterministic,
        )

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        """Return `n_envs`: as many numbers run at the same time."""
        return int(worker_args.get("n_envs", DEFAULT_N_ENVS))

    # -- updates -----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Take new environments or apply updates: one for all rows, or for `sync` a list with one a row.

        Raises:
            EnvLoadError: If one cannot be built or recorded, has no vector form, has other spaces than the others, or
                if its episodes cannot be limited as the run asks.
        """
        if env_update is None:
            return
        self._forget()
        seed_globals(self._seed, SETUP)
        is_native = self._vectorization == "native"
        self._rows = self._native_rows(env_update) if is_native else self._sync_rows(env_update)
        self._env = self._rows.env
        self._queue.is_shared = self._rows.resets_itself
        self._limit = self._checked_limit(self._rows)
        self._take_spec(next(self._rows.specs(self._max_episode_length)))
        self._make_ready()

    def _native_rows(self, env_update: Any) -> NativeRows:
        env = updated_env(self._env, env_update, lambda source: build_native(source, self._n_envs))
        if not isinstance(env, VectorEnv):
            hint = "give an EnvSource, or omit vectorization='native'"
            raise EnvLoadError(f"{type(env).__name__} is no gymnasium.vector.VectorEnv", hint=hint)
        if env.num_envs != self._n_envs:
            raise EnvLoadError(f"the vector environment has {env.num_envs} rows, not {self._n_envs}")
        return NativeRows(env, self._seed)

    def _sync_rows(self, env_update: Any) -> SyncRows:
        before = self._rows.envs if isinstance(self._rows, SyncRows) else [None] * self._n_envs
        updates = one_for_each(env_update, self._n_envs)
        envs = [updated_env(old, update) for old, update in zip(before, updates, strict=True)]
        for env in envs:
            if not isinstance(env, gymnasium.Env):
                hint = "vectorization='native' takes vector environments"
                raise EnvLoadError(f"{type(env).__name__} is no gymnasium.Env", hint=hint)
        return SyncRows(envs, self._seed, self.reset_env)

    def _checked_limit(self, rows: NativeRows) -> float:
        """Return the steps after which the worker ends an episode: an environment of its own form counts its own."""
        limit, own = self._max_episode_length, math.inf if rows.own_limit is None else rows.own_limit
        if rows.counts_limit:
            return min(limit, own)
        if rows.resets_itself and own > limit:
            what = "no limit that is known" if rows.own_limit is None else f"a limit of {own} steps"
            raise EnvLoadError(
                f"{vector_name(rows.env)} resets its rows itself and has {what}: none can be cut at {limit:g} steps",
                hint="give the limit to the environment, as in --env-kwargs max_episode_steps=N, or omit it",
            )
        return limit

    def _make_ready(self) -> None:
        """Adapt the policy once both it and the spaces are known, and find the generators that both draw from."""
        if self._env_spec is None or self._rows is None:
            return
        self._holder.adapt(self._rows.specs(self._max_episode_length))
        if not self._holder.policies:
            return
        self._is_begun = self._met_first_reset = False
        self._spaces = SpaceRows(self._env_spec.observation_space)
        self._has_texts = any(leaf.kind == "text" for leaf in self._spaces.leaves)
        if self._buffer is None or not self._buffer.finished_rows:
            self._buffer = RolloutBuffer(self._env_spec, self._n_envs, self.worker_number)
        self._policies = row_policies(
            self._holder, self._env_spec, self._rows, root=self._seed, seeder=self._seeder, rules=self.rules
        )
        self._policies.watch()
        self._shared_draws = ""
        self._looks_left = _LOOKS if self._n_envs > 1 and not self._rows.resets_itself else 0

    # -- beginning ---------------------------------------------------------------------------------------------------

    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to run; each row runs its lowest first."""
        self._queue.add(numbers, self.number_stride)

    def start_episode(self) -> None:
        """Begin an episode in each free row that has a number; the next number where none is assigned and none runs."""
        if not self.has_work:
            self.assign([range(self._next_own, self._next_own + 1)])
        self._guarded(self._begin_waiting)

    def _begin_waiting(self) -> None:
        """Begin the numbers that need not wait for their row's episode to end."""
        rows = np.arange(self._n_envs)
        if self._the_rows().resets_itself:
            # Its rows begin as it resets them. Where none runs or is about to, all are reset at once.
            if not (self._is_begun and len(self._resetting)) and not self.running_numbers:
                self._begin_rows(rows, self._reset_all, anew=True)
        elif self._is_begun:
            self._reset_rows(rows[(self._numbers == NO_NUMBER) & self._queue.has(rows)])
        else:
            self._reset_rows(rows)

    def _reset_rows(self, rows: Array) -> None:
        """Reset rows (k,) of an environment that does not do so itself; those with a number begin its episode."""

        def reset() -> Infos:
            before = self._observations if self._is_begun else None
            observations, infos, self._running["seed"][rows] = self._the_rows().reset_rows(rows, self._numbers, before)
            self._see(observations)
            return infos

        if len(rows):
            self._begin_rows(rows, reset, anew=not self._is_begun)

    def _reset_all(self) -> Infos:
        # No two workers share a number, so none begins like another.
        lowest = int(self._numbers[self._numbers != NO_NUMBER].min())
        observations, infos = self._the_rows().reset_all(env_seed(self._seed, lowest) >> 1)
        self._see(observations)
        self._resetting = np.empty(0, np.int64)
        return infos

    def _begin_rows(self, rows: Array, reset: Callable[[], Infos], *, anew: bool = False) -> None:
        """Begin the next numbers of rows (k,), with the next step.

        Args:
            rows: The rows; one without a number begins no episode.
            reset: Resets the environment where it does not do so itself, and returns the infos of these rows.
            anew: Whether all rows are reset.
        """
        numbers, buffer, policies = self._queue.take(rows), self._the_buffer(), self._the_policies()
        facts = {"number": numbers, "seed": -1, "start": buffer.step, "unsaved": buffer.step, "began": _clock()}
        for name, values in facts.items():
            self._running[name][rows] = values
        self._note_rows()
        runs = numbers != NO_NUMBER
        begun, its = rows[runs], numbers[runs]
        if len(begun):
            self._next_own = max(self._next_own, int(its.max()) + 1)
            self._where = "policy.seed"
            policies.seed(begun, its, anew=anew)
        self._where = RESET
        infos = reset()
        self._is_begun = True
        if infos:
            buffer.reset_infos.update(
                (number, info) for number, info in zip(numbers.tolist(), infos, strict=True) if info and number >= 0
            )
        if len(begun):
            self._where = "policy.reset"
            policies.reset(begun, anew=anew)
        if not self._met_first_reset:
            self._met_first_reset = True
            policies.watch()

    def _note_rows(self) -> None:
        """Let others know which rows run which episodes."""
        if self._rows is not None:
            self._rows.note(self._numbers)
        self.crash_box.note(self._numbers)

    # -- one step ----------------------------------------------------------------------------------------------------

    def step_episode(self) -> bool:
        """Take one step in every row; return whether an episode ended."""
        if not self.has_work:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        before = self.finished_rows
        self._guarded(self._step_rows)
        return self.finished_rows > before

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step.

        Raises:
            UserCodeError: If the policy or the environment fails; its `episodes` are the numbers where it may be.
        """
        self.crash_box.step()
        self._guarded(lambda: self._advance(deadline))

    def _advance(self, deadline: float) -> None:
        by_verb = type(self).step_episode is not VecWorker.step_episode
        while self.has_work:
            if len(self._queue):
                self._begin_waiting()
            if by_verb:
                self.step_episode()
            else:
                self._step_rows()
            if _clock() >= deadline:
                break

    def _step_rows(self) -> None:
        """Take one step in every row: observations are recorded before the policy sees them, actions before the env."""
        buffer, rows, looks = self._the_buffer(), self._the_rows(), self._looks_left > 0
        buffer.begin_step(self._leaves)
        self._where = GET_ACTIONS
        before = self._generator_states() if looks else None
        actions, infos = self._the_policies().act(self._observations, self._numbers, self._starts, buffer)
        if infos or type(infos) is not dict:
            buffer.put_infos("agent", batch_columns(infos, self._n_envs))
        if looks and self._generator_states() != before:
            self._shared_draws = _POLICY_DRAWS
        before = _global_states() if looks else None
        self._where = STEP
        observations, rewards, terminated, truncated, infos = rows.step(actions)
        if looks:
            self._looks_left -= 1
            self._judge_draws(is_env=_global_states() != before)
        buffer.put("reward", [_checked_rewards(rewards, self._n_envs)])
        self._see(observations)
        terminated = _checked_flag("terminated", terminated, self._n_envs)
        truncated = _checked_flag("truncated", truncated, self._n_envs)
        _AFTER[rows.mode](self, terminated, truncated, infos)

    def _generator_states(self) -> bytes:
        """Return the states of all generators that a policy for all rows may draw from."""
        return _global_states(self._seeder.generators if self._the_policies().unseeded is not None else ())

    def _judge_draws(self, *, is_env: bool) -> None:
        if is_env:
            self._shared_draws = _ENV_DRAWS
            if self._the_rows().counts_limit:
                hint = "run one environment a worker and more workers, or let it draw from self.np_random"
                raise BadValueError(_ENV_DRAWS, hint)

    def _see(self, observations: Any) -> None:
        """Keep the observations, and their leaves, for the next step to record."""
        try:
            columns = self._spaces.columns(observations)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"the observations lack {error!r}: {shown(observations)}") from error
        pairs = zip(self._spaces.leaves, columns, strict=True)
        self._leaves = [_checked_leaf(leaf, values, self._n_envs) for leaf, values in pairs]
        # gymnasium joins texts to tuples; a policy gets arrays.
        self._observations = self._spaces.tree(self._leaves) if self._has_texts else observations

    def _after_disabled(self, terminated: Array, truncated: Array, infos: Any) -> None:
        """Finish the episodes that ended, and reset their rows."""
        buffer = self._the_buffer()
        self._the_rows().put_infos(infos, buffer, self._numbers, self._starts)
        self._end_step()
        if not math.isinf(self._limit):
            truncated = truncated | ((buffer.step - self._starts >= self._limit) & (self._numbers != NO_NUMBER))
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._end(ended, terminated, truncated, [leaf[ended] for leaf in self._leaves])
            self._reset_rows(ended)

    def _after_next_step(self, terminated: Array, truncated: Array, infos: Any) -> None:
        """Finish the episodes that ended, and begin those whose row this step has reset."""
        rows, begun, over = self._the_rows(), self._resetting, terminated | truncated
        rows.put_infos(infos, self._the_buffer(), self._numbers, self._starts)
        self._end_step()
        over[begun] = False  # The flags of a step that resets a row mean nothing.
        ended = self._resetting = np.flatnonzero(over)
        if len(ended):
            self._end(ended, terminated, truncated, [leaf[ended] for leaf in self._leaves])
        if len(begun):
            self._begin_rows(begun, lambda: rows.infos_of(infos, begun))

    def _after_same_step(self, terminated: Array, truncated: Array, infos: Any) -> None:
        """Finish the episodes that ended, whose last observations are among the infos, and begin those after them."""
        rows, buffer, over = self._the_rows(), self._the_buffer(), terminated | truncated
        ended = np.flatnonzero(over)
        if not len(ended):
            rows.put_infos(infos, buffer, self._numbers, self._starts)
            self._end_step()
            return
        final, last_infos, infos = final_infos(infos)
        buffer.put_infos("env", batch_columns(infos, self._n_envs), ~over)
        buffer.put_infos("env", batch_columns(last_infos, self._n_envs), over)
        self._end_step()
        self._end(ended, terminated, truncated, self._final_leaves(final, ended))
        self._begin_rows(ended, lambda: rows.infos_of(infos, ended))

    def _final_leaves(self, final: Any, rows: Array) -> list[Array]:
        """Return the last observations of rows (k,), one array (k, *shape) a leaf."""
        if isinstance(final, np.ndarray) and final.dtype == object:
            return list(self._spaces.columns(self._spaces.stack([final[row] for row in rows.tolist()])))
        pairs = zip(self._spaces.leaves, self._spaces.columns(final), strict=True)
        return [_checked_leaf(leaf, values, self._n_envs)[rows] for leaf, values in pairs]

    def _end(self, rows: Array, terminated: Array, truncated: Array, leaves: list[Array]) -> None:
        """Note that the episodes of rows (k,) ended.

        Args:
            rows: The rows; some may have run no episode.
            terminated: Of all rows, (n,).
            truncated: Of all rows, (n,).
            leaves: Last observations, one array (k, *shape) a leaf.
        """
        runs = self._numbers[rows] != NO_NUMBER
        if not runs.all():
            rows, leaves = rows[runs], [leaf[runs] for leaf in leaves]
        buffer, running = self._the_buffer(), self._running
        running["stop"][rows], running["ended"][rows] = buffer.step, _clock()
        running["terminated"], running["truncated"] = terminated, truncated
        pairs = zip(leaves, self._spaces.leaves, strict=True)
        last = [values.astype(leaf.dtype, copy=False) for values, leaf in pairs]
        buffer.end({name: values[rows] for name, values in running.items()}, last)
        self._numbers[rows] = NO_NUMBER
        self._note_rows()

    def _end_step(self) -> None:
        buffer = self._the_buffer()
        if not buffer.end_step():
            return
        if math.isinf(self._limit):
            lengths = np.where(self._numbers != NO_NUMBER, buffer.step - self._starts, 0)
            if lengths.max() >= self.rules.most_steps(buffer.row_bytes):
                error = BadValueError(f"the episode has no end: it is {lengths.max():,} steps long", ENDLESS_HINT)
                raise RowError(int(lengths.argmax())) from error
        buffer.make_room(self._running)

    # -- errors ------------------------------------------------------------------------------------------------------

    def _guarded(self, function: Callable[[], None]) -> None:
        """Call a function that calls user code.

        Raises:
            UserCodeError: If that fails; then all episodes that run are given up.
        """
        try:
            function()
        except BaseException as error:
            self._give_up(self._where, error)
            raise

    def _give_up(self, where: str, error: BaseException) -> None:
        row: int | None = None
        if isinstance(error, RowError):
            row, error = error.row, error.__cause__ or error
        elif where in (RESET, STEP):
            row, error = self._the_rows().failed_row(error, self._numbers)
        place, numbers = self._place(row)
        self._forget()
        self._is_begun = False
        blame(where, error, place, numbers)

    def _place(self, row: int | None) -> tuple[str, tuple[int, ...]]:
        """Return where in the run the worker is, and the numbers that run there."""
        step = self._the_buffer().step
        if row is not None and self._numbers[row] != NO_NUMBER:
            number, seed = int(self._numbers[row]), env_seed(self._seed, int(self._numbers[row]))
            seed = -1 if self._the_rows().resets_itself else seed
            return episode_place(self.worker_number, number, seed, step - int(self._starts[row])), (number,)
        numbers = self.running_numbers
        which = f"episodes {min(numbers)} to {max(numbers)}" if numbers else "no episode"
        return f"worker {self.worker_number}, {which}, step {step} of {self._n_envs} rows", numbers

    def _forget(self) -> None:
        """Give up the episodes that run."""
        self._give_up_rows(self._numbers != NO_NUMBER)

    def _give_up_rows(self, mask: Array) -> None:
        if self._buffer is not None:
            self._buffer.forget(self._numbers[mask].tolist())
        self._numbers[mask] = NO_NUMBER
        self._note_rows()

    # -- a sampler's questions ---------------------------------------------------------------------------------------

    def take(self, *, everything: bool = False) -> Chunk | None:
        """Remove finished episodes and return them in the order of their numbers; None where there are none.

        Args:
            everything: Whether those are given, too, that a lower number holds up.
        """
        if self._buffer is None:
            return None
        lowest = [number for number in (*self.running_numbers, self._queue.lowest) if number is not None]
        return self._buffer.take(None if everything else min(lowest, default=None), _clock() - HOLD_SECONDS)

    def retract(self, *, above: int | None) -> None:
        """Drop the waiting and running numbers above `above`; where it is None, all of them, and the finished ones."""
        self._queue.drop_above(above, self.number_stride)
        self._give_up_rows(self._numbers > (NO_NUMBER if above is None else above))
        if above is None:
            self.take(everything=True)

    @property
    def has_work(self) -> bool:
        """Return whether an episode runs or a number waits."""
        return bool((self._numbers != NO_NUMBER).any()) or len(self._queue) > 0

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the episodes that run."""
        return tuple(self._numbers[self._numbers != NO_NUMBER].tolist())

    @property
    def finished_rows(self) -> int:
        """Return how many rows `take(everything=True)` would give."""
        return self._buffer.finished_rows if self._buffer is not None else 0

    @property
    def finished_bytes(self) -> int:
        """Return about how many bytes `take(everything=True)` would give."""
        return self._buffer.finished_bytes if self._buffer is not None else 0

    def info(self) -> dict[str, Any]:
        """Return the policy's class, the record of the environment, and how far the episodes can be reproduced.

        `scope` is there where an episode depends on `n_envs`, and `not_reproducible` where it says why nothing repeats.
        """
        rows = self._the_rows()
        info: dict[str, Any] = {
            "policy_class": policy_class(self._holder.policy),
            "env": describe_env(rows.described),
            "versions": loaded_versions(rows.described),
        }
        if not (rows.counts_limit and self._the_policies().is_row_wise):
            info["scope"] = "n_envs"
        reason = self.not_reproducible
        return info | ({"not_reproducible": reason} if reason else {})

    @property
    def not_reproducible(self) -> str | None:  # type: ignore[override]  # Computed here, a plain attribute elsewhere.
        """Return why the episodes cannot be reproduced, as far as it is known by now."""
        reasons = [self._shared_draws]
        if self._rows is not None and self._rows.resets_itself:
            mode = self._rows.mode.value
            reasons.append(f"the vector environment resets a row by itself ({mode}), from no seed of the episode's own")
        return "; ".join(filter(None, reasons)) or None

    def shutdown(self) -> None:
        """Close the environments.

        Raises:
            EnvError: If that fails.
        """
        env, self._env, self._rows = self._env, None, None
        close_env(env)

    def _the_rows(self) -> NativeRows:
        if self._rows is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._rows

    def _the_buffer(self) -> RolloutBuffer:
        if self._buffer is None:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._buffer

    def _the_policies(self) -> RowPolicies:
        if self._policies is None:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._policies


_AFTER: dict[AutoresetMode, Callable[[VecWorker, Array, Array, Any], None]] = {
    AutoresetMode.DISABLED: VecWorker._after_disabled,  # noqa: SLF001  Of the class above.
    AutoresetMode.NEXT_STEP: VecWorker._after_next_step,  # noqa: SLF001
    AutoresetMode.SAME_STEP: VecWorker._after_same_step,  # noqa: SLF001
}


def _checked_rewards(rewards: Any, n_rows: int) -> Array:
    array = as_array(rewards)
    if array.shape != (n_rows,) or array.dtype.kind not in "biuf":
        raise BadValueError(f"the rewards are {array.dtype}{array.shape}, expected a number for each of {n_rows} rows")
    return array


def _checked_flag(name: str, flag: Any, n_rows: int) -> Array:
    array = as_array(flag)
    if array.shape == (n_rows,) and array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
        array = array.astype(bool)
    if array.shape != (n_rows,) or array.dtype != bool:
        raise BadValueError(f"{name} is {array.dtype}{array.shape}, expected a bool for each of {n_rows} rows")
    return array


def _checked_leaf(leaf: Leaf, values: Any, n_rows: int) -> Array:
    array, shape = leaf_array(leaf, values), (n_rows, *leaf.shape)
    if array.shape != shape or not (array.dtype == leaf.dtype or np.can_cast(array.dtype, leaf.dtype, "same_kind")):
        where = f" at {leaf.name!r}" if leaf.path else ""
        expected = f"{leaf.dtype}{shape} of {leaf.space}"
        raise BadValueError(f"the observations{where} are {array.dtype}{array.shape}, expected {expected}")
    return array


def _global_states(others: Iterable[Any] = ()) -> bytes:
    """Return the states of the global random generators, and of others, to compare."""
    torch: Any = sys.modules.get("torch")
    generators = [getattr(torch, "default_generator", None), *others]
    states = [one.get_state().tolist() if hasattr(one, "manual_seed") else one for one in generators]
    return pickle.dumps([random.getstate(), np.random.get_state(), states])
