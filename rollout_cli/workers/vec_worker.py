"""VecWorker: one policy in several rows of a vector environment, with one batched policy call a step."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from rollout_cli.envs import EnvSource, describe_env, env_spec_of, time_limit_of
from rollout_cli.envs.source import one_for_each
from rollout_cli.envs.vector import VectorRows, build_native, sync_vector
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.spaces import SpaceRows, space_leaves
from rollout_cli.errors import EnvError, EnvLoadError, InternalError
from rollout_cli.policies import AdaptedPolicy, policy_class
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import SETUP, env_seed, env_seeds, seed_globals
from rollout_cli.workers.batch_infos import batch_columns, row_info
from rollout_cli.workers.checks import (
    ENDLESS_HINT,
    GET_ACTIONS,
    RESET,
    STEP,
    BadValueError,
    blame,
    episode_place,
    is_of_user_code,
    shown,
)
from rollout_cli.workers.columns import SpaceRecorder
from rollout_cli.workers.default_worker import DefaultWorker, close_env, updated_env
from rollout_cli.workers.policy_holder import seed_method
from rollout_cli.workers.rollout_buffer import Ended, RolloutBuffer, leaf_array
from rollout_cli.workers.row_envs import RowEnv, RowNotes
from rollout_cli.workers.row_numbers import RowNumbers
from rollout_cli.workers.row_policies import GlobalDraws, OnePolicy, PolicyEach, RowError, RowPolicies
from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[Any]
Infos = Mapping[Any, Any]

DEFAULT_N_ENVS = 8

HOLD_SECONDS = 0.25
"""How long a finished episode waits at most for lower numbers of its worker to end."""

_FINAL_OBSERVATIONS = ("final_obs", "final_observation")
_FINAL_INFO = "final_info"
_FINAL = {mask + key for key in (*_FINAL_OBSERVATIONS, _FINAL_INFO) for mask in ("", "_")}

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
        self._row_envs: list[Any] = [None] * n_envs
        self._row_seeders: list[EpisodeSeeder] = []
        self._rows: VectorRows | None = None
        self._notes: RowNotes | None = None
        self._policies: RowPolicies | None = None
        self._buffer: RolloutBuffer | None = None
        self._queue = RowNumbers(n_envs)
        self._idle_rows()
        self._is_begun = False
        self._observations: Any = None
        self._global_draws = GlobalDraws()
        self._draw_reason = ""
        self._where = RESET
        super().__init__(
            seed=seed,
            max_episode_length=max_episode_length,
            worker_number=worker_number,
            deterministic=deterministic,
        )

    def _idle_rows(self) -> None:
        self._numbers = np.full(self._n_envs, NO_NUMBER, np.int64)
        self._starts = np.zeros(self._n_envs, np.int64)
        self._seeds = np.full(self._n_envs, -1, np.int64)
        self._began_at = np.zeros(self._n_envs)
        self._reset_infos = np.full(self._n_envs, None, object)
        self._resetting = np.zeros(self._n_envs, bool)

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
        if self._vectorization == "native":
            self._env = updated_env(self._env, env_update, lambda source: build_native(source, self._n_envs))
            self._check_native(self._env)
        else:
            updates = one_for_each(env_update, self._n_envs)
            pairs = zip(self._row_envs, updates, strict=True)
            self._row_envs = [updated_env(old, update) for old, update in pairs]
            self._env = self._sync(self._row_envs)
        self._rows = VectorRows(self._env)
        self._set_limit(self._rows)
        self._take_spec(env_spec_of(self._env if self._notes is None else self._row_envs[0], self._max_episode_length))
        self._make_ready()

    def _check_native(self, env: Any) -> None:
        if not isinstance(env, VectorEnv):
            hint = "give an EnvSource, or omit vectorization='native'"
            raise EnvLoadError(f"{type(env).__name__} is no gymnasium.vector.VectorEnv", hint=hint)
        if env.num_envs != self._n_envs:
            raise EnvLoadError(f"the vector environment has {env.num_envs} rows, not {self._n_envs}")

    def _sync(self, envs: list[Any]) -> Any:
        for env in envs:
            if not isinstance(env, gymnasium.Env):
                raise EnvLoadError(f"{type(env).__name__} is no gymnasium.Env", hint="vectorization='native' takes others")
        self._notes = RowNotes(self._n_envs, self.reset_env)
        self._row_seeders = [EpisodeSeeder(self._seed) for _ in envs]
        rows = zip(envs, self._row_seeders, strict=True)
        return sync_vector([RowEnv(env, row, self._notes, seeder) for row, (env, seeder) in enumerate(rows)])

    def _set_limit(self, rows: VectorRows) -> None:
        """Set the steps after which this worker ends an episode; a vector environment counts its own limit itself."""
        limits = {time_limit_of(env) for env in self._row_envs} if self._notes is not None else {time_limit_of(self._env)}
        own = min((limit for limit in limits if limit is not None), default=None)
        if len(limits) > 1:
            raise EnvLoadError("the environments of one worker have different limits")
        if self._notes is not None:
            self._limit = min(self._max_episode_length, math.inf if own is None else own)
            return
        self._limit = self._max_episode_length
        if rows.resets_itself and not math.isinf(self._limit) and (own is None or own > self._limit):
            what = "no limit that is known" if own is None else f"a limit of {own} steps"
            raise EnvLoadError(
                f"{rows.name} resets its rows itself and has {what}: none can be cut at {self._limit:g} steps",
                hint="give the limit to the environment, as in --env-kwargs max_episode_steps=N, or omit it",
            )

    def _make_ready(self) -> None:
        """Adapt the policy once both it and the spaces are known, and find the generators that both draw from."""
        if self._env_spec is None or self._rows is None:
            return
        # Each row has its own spaces, for a policy of its own may draw from them.
        specs = (copy.deepcopy(self._env_spec) for _ in range(self._n_envs - 1))
        self._holder.adapt(self._env_spec, *specs)
        if not self._holder.is_ready:
            return
        self._is_begun, self._met_first_reset = False, False
        self._global_draws, self._draw_reason = GlobalDraws(), ""
        if self._buffer is None or not self._buffer.n_ended_rows:
            self._buffer = RolloutBuffer(self._env_spec, self._n_envs, self._worker_number)
        self._spaces = SpaceRows(self._env_spec.observation_space)
        self._policies = self._row_policies()
        self._watch()

    def _row_policies(self) -> RowPolicies:
        rows, policies, rule = self._the_rows(), self._holder.policies, self.rules.invalid_action
        if len(policies) > 1 or (self._n_envs == 1 and _is_row_by_row(policies[0])):
            if self._notes is None:
                self._row_seeders = [EpisodeSeeder(self._seed) for _ in policies]
            return PolicyEach(
                policies,
                self.env_spec,
                root=self._seed,
                seeders=self._row_seeders if self._notes is None else (),
                rule=rule,
            )
        return OnePolicy(
            policies[0],
            self.env_spec,
            self._n_envs,
            root=self._seed,
            seeder=self._seeder,
            rule=rule,
            trusted=self._holder.is_trusted,
            seeds_each=not rows.resets_itself,
        )

    def _watch(self) -> None:
        """Find the generators that the policy and the environments draw from."""
        policies = self._holder.policies
        own = isinstance(self._policies, PolicyEach)
        for row, seeder in enumerate(self._row_seeders):
            env = self._row_envs[row] if self._notes is not None else None
            seeder.watch(policy=policies[row] if own else None, env=env)
        if not own:
            self._seeder.watch(policy=policies[0], env=self._env if self._notes is None else None)

    # -- episodes ----------------------------------------------------------------------------------------------------

    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to run; each row runs its lowest first."""
        self._queue.add(numbers, self.number_stride)

    def start_episode(self) -> None:
        """Begin an episode in each free row that has a number; the next number where none is assigned and none runs."""
        if not self.has_work:
            self.assign([range(self._next_own, self._next_own + 1)])
        self._begin_waiting()

    def step_episode(self) -> bool:
        """Take one step in every row; return whether an episode ended."""
        if not self.running_numbers:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        before = self.finished_rows
        self._step()
        return self.finished_rows > before

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step.

        Raises:
            UserCodeError: If the policy or the environment fails; its `episodes` are the numbers where it may be.
        """
        self.crash_box.step()
        step = self._step if type(self).step_episode is VecWorker.step_episode else self.step_episode
        while self.has_work:
            if len(self._queue):
                self._begin_waiting()
            step()
            if _clock() >= deadline:
                return

    def _begin_waiting(self) -> None:
        """Begin the numbers that need not wait for their row's episode to end."""
        rows = self._the_rows()
        self._the_buffer()
        is_idle = self._numbers == NO_NUMBER
        if rows.resets_itself:
            # Rows that reset themselves begin as they do so; where none runs, all are reset at once.
            if is_idle.all() and not (self._resetting.any() and self._is_begun):
                self._guarded(self._reset_everything)
            return
        if not self._is_begun:
            self._guarded(lambda: self._reset_rows(np.arange(self._n_envs)))
        elif is_idle.any():
            idle = np.flatnonzero(is_idle)
            begin = idle[self._queue.has(idle)]
            if len(begin):
                self._guarded(lambda: self._reset_rows(begin))

    def _reset_everything(self) -> None:
        """Reset all rows of an environment that resets itself, from the seed of the lowest number."""
        rows, lowest = np.arange(self._n_envs), self._queue.lowest
        assert lowest is not None
        self._resetting[:] = False
        self._begin_rows(rows, self._queue.take(rows), anew=True, reset=lambda: self._reset_all(lowest))

    def _reset_all(self, lowest: int) -> list[dict[Any, Any]]:
        # No two workers share a number, so none begins like another.
        self._observations, infos = self._the_rows().reset_all(env_seed(self._seed, lowest) >> 1)
        return self._infos_of(infos, np.arange(self._n_envs))

    def _reset_rows(self, rows: Array) -> None:
        """Reset rows (k,) of an environment that does not do so itself; those with a number begin its episode."""
        self._begin_rows(rows, self._queue.take(rows), anew=not self._is_begun, reset=lambda: self._reset_masked(rows))

    def _reset_masked(self, rows: Array) -> list[dict[Any, Any]]:
        mask, numbers = np.zeros(self._n_envs, bool), np.maximum(self._numbers, 0)
        mask[rows] = True
        if self._notes is not None:
            self._notes.numbers = self._numbers.tolist()
        before = self._observations if self._is_begun else None
        self._observations, infos, given = self._the_rows().reset_rows(mask, env_seeds(self._seed, numbers), before)
        self._seeds[rows] = given[rows]
        return [self._notes.infos[row] for row in rows.tolist()] if self._notes is not None else self._infos_of(infos, rows)

    def _begin_rows(
        self, rows: Array, numbers: Array, *, reset: Callable[[], list[dict[Any, Any]]], anew: bool = False
    ) -> None:
        """Begin episodes in rows (k,), with the next step.

        Args:
            rows: The rows.
            numbers: Their numbers (k,); NO_NUMBER for a row that begins none.
            reset: Resets the environment where it does not do so itself, and returns the infos of these rows.
            anew: Whether all rows are reset.
        """
        has = numbers != NO_NUMBER
        begun, its_numbers = rows[has], numbers[has]
        self._numbers[rows], self._starts[rows], self._seeds[rows] = numbers, self._the_buffer().step, -1
        self._began_at[rows] = _clock()
        self._note_rows()
        policies = self._the_policies()
        if len(begun):
            self._next_own = max(self._next_own, int(its_numbers.max()) + 1)
            self._called("policy.seed", lambda: policies.seed(begun, its_numbers, anew=anew))
        for row, info in zip(rows.tolist(), self._called(RESET, reset), strict=True):
            self._reset_infos[row] = info
        self._is_begun = True
        if len(begun):
            self._called("policy.reset", lambda: policies.reset(begun, anew=anew))
        if not self._met_first_reset:
            self._met_first_reset = True
            self._watch()

    def _note_rows(self) -> None:
        """Let others know which rows run which episodes."""
        if self._notes is not None:
            self._notes.running = (self._numbers != NO_NUMBER).tolist()
        self.crash_box.note(self._numbers)

    def _infos_of(self, infos: Infos, rows: Array) -> list[dict[Any, Any]]:
        return [row_info(infos, row, self._n_envs) if infos else {} for row in rows.tolist()]

    # -- one step ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self._guarded(self._step_rows)

    def _step_rows(self) -> None:
        """Take one step in every row: observations are recorded before the policy sees them, actions before the env."""
        buffer, rows = self._the_buffer(), self._the_rows()
        if buffer.is_full:
            running = np.flatnonzero(self._numbers != NO_NUMBER)
            buffer.make_room(running, self._starts[running], self._numbers[running])
            self._look_for_endless()
        looks = self._n_envs > 1 and not rows.resets_itself and self._global_draws.is_due()
        before = GlobalDraws.states() if looks else None
        observations = self._observations
        self._called(RESET, lambda: buffer.put_observations(self._observation_leaves(observations)))
        actions = self._called(
            GET_ACTIONS, lambda: self._the_policies().act(observations, self._numbers, self._starts, buffer)
        )
        between = GlobalDraws.states() if looks else None
        observations, rewards, terminated, truncated, infos = self._called(STEP, lambda: self._checked_step(actions))
        if looks:
            self._judge_draws(before, between, GlobalDraws.states())
        self._observations = observations
        buffer.put_rewards(rewards)
        self._called(STEP, lambda: self._after_step(terminated, truncated, infos))

    def _observation_leaves(self, observations: Any) -> list[Array]:
        leaves = []
        for leaf, values in zip(self._spaces.leaves, self._spaces.columns(observations), strict=True):
            array = leaf_array(leaf, values)
            if array.shape != (self._n_envs, *leaf.shape) or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                where = f" at {leaf.name!r}" if leaf.path else ""
                raise BadValueError(
                    f"the observations{where} are {array.dtype}{array.shape}, "
                    f"expected {leaf.dtype}{(self._n_envs, *leaf.shape)} of {leaf.space}"
                )
            leaves.append(array)
        return leaves

    def _checked_step(self, actions: Any) -> tuple[Any, Array, Array, Array, Any]:
        if self._notes is not None:
            self._notes.infos = [{}] * self._n_envs
        observations, rewards, terminated, truncated, infos = self._the_rows().env.step(actions)
        rewards, flags = np.asarray(rewards), [np.asarray(terminated), np.asarray(truncated)]
        if rewards.shape != (self._n_envs,) or rewards.dtype.kind not in "biuf":
            raise BadValueError(f"the rewards are {rewards.dtype}{rewards.shape}, expected numbers ({self._n_envs},)")
        for name, flag in zip(("terminated", "truncated"), flags, strict=True):
            if flag.shape != (self._n_envs,) or flag.dtype != bool:
                raise BadValueError(f"{name} is {flag.dtype}{flag.shape}, expected bool ({self._n_envs},)")
        return observations, rewards, *flags, infos  # type: ignore[return-value]

    def _judge_draws(self, before: Any, between: Any, after: Any) -> None:
        """Find out who draws from the global generators, which the rows share."""
        if between != after and self._notes is not None and self._global_draws.is_early:
            raise EnvError(
                f"the environment draws from a global random generator, which {self._n_envs} rows would share",
                hint="run one environment a worker and more workers, or let it draw from self.np_random",
            )
        who = [name for name, drew in (("policy", before != between), ("environment", between != after)) if drew]
        if who:
            self._draw_reason = f"the {' and the '.join(who)} drew from global generators, which all rows share"

    def _after_step(self, terminated: Array, truncated: Array, infos: Any) -> None:
        buffer, mode = self._the_buffer(), self._the_rows().mode
        if mode is AutoresetMode.NEXT_STEP:
            self._after_next_step(terminated, truncated, infos)
        elif mode is AutoresetMode.SAME_STEP:
            self._after_same_step(terminated, truncated, infos)
        else:
            self._put_env_infos(infos)
            buffer.end_step()
            if not math.isinf(self._limit):
                truncated = truncated | ((buffer.step - self._starts >= self._limit) & (self._numbers != NO_NUMBER))
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                self._end(ended, terminated, truncated, self._observation_leaves(self._observations))
                self._reset_rows(ended)

    def _after_next_step(self, terminated: Array, truncated: Array, infos: Any) -> None:
        """Finish the episodes that ended, and begin those whose row was reset in this step, which belongs to none."""
        was_reset = self._resetting
        self._put_env_infos(infos)
        self._the_buffer().end_step()
        self._resetting = (terminated | truncated) & ~was_reset
        ended, begun = np.flatnonzero(self._resetting), np.flatnonzero(was_reset)
        if len(ended):
            self._end(ended, terminated, truncated, self._observation_leaves(self._observations))
        if len(begun):
            self._begin_rows(begun, self._queue.take(begun), reset=lambda: self._infos_of(infos, begun))

    def _after_same_step(self, terminated: Array, truncated: Array, infos: Any) -> None:
        """Finish the episodes that ended, whose last observations are among the infos, and begin those after them."""
        over = terminated | truncated
        ended = np.flatnonzero(over)
        if not len(ended):
            self._put_env_infos(infos)
            self._the_buffer().end_step()
            return
        begun_infos = {key: value for key, value in infos.items() if key not in _FINAL}
        self._put_env_infos(begun_infos, ~over)
        self._put_env_infos(infos.get(_FINAL_INFO) or {}, over)
        self._the_buffer().end_step()
        self._end(ended, terminated, truncated, self._final_leaves(infos, ended), is_selected=True)
        self._begin_rows(ended, self._queue.take(ended), reset=lambda: self._infos_of(begun_infos, ended))

    def _put_env_infos(self, infos: Any, within: Array | None = None) -> None:
        buffer = self._the_buffer()
        if self._notes is None:
            if infos or not isinstance(infos, dict):
                buffer.put_env_infos(batch_columns(infos, self._n_envs), within)
            return
        for row, info in enumerate(self._notes.infos):
            if info and (number := int(self._numbers[row])) != NO_NUMBER:
                buffer.env_row_infos.setdefault(number, {})[buffer.step - int(self._starts[row])] = info

    def _final_leaves(self, infos: Infos, rows: Array) -> list[Array]:
        """Return the last observations of rows (k,), one array (k, *shape) a leaf."""
        found = next((infos[key] for key in _FINAL_OBSERVATIONS if key in infos), None)
        if found is None:
            hint = "in the mode SAME_STEP the infos hold 'final_obs' where episodes end"
            raise BadValueError("infos has no 'final_obs' though episodes ended", hint)
        if isinstance(found, np.ndarray) and found.dtype == object:
            found = self._spaces.stack([found[row] for row in rows.tolist()])
            return list(self._spaces.columns(found))
        pairs = zip(self._spaces.leaves, self._spaces.columns(found), strict=True)
        return [leaf_array(leaf, values)[rows].astype(leaf.dtype) for leaf, values in pairs]

    def _end(
        self, rows: Array, terminated: Array, truncated: Array, leaves: list[Array], *, is_selected: bool = False
    ) -> None:
        """Note that the episodes of rows (k,) ended.

        Args:
            rows: The rows.
            terminated: Of all rows, (n,).
            truncated: Of all rows, (n,).
            leaves: Last observations, one array a leaf.
            is_selected: Whether these are of the k rows alone.
        """
        runs = self._numbers[rows] != NO_NUMBER
        at = rows[runs]
        if len(at):
            now, buffer = _clock(), self._the_buffer()
            which = runs if is_selected else at
            columns = zip(space_leaves(self.env_spec.observation_space), leaves, strict=True)
            buffer.end(
                Ended(
                    rows=at,
                    starts=self._starts[at],
                    stops=np.full(len(at), buffer.step),
                    numbers=self._numbers[at],
                    seeds=self._seeds[at],
                    terminated=terminated[at],
                    truncated=truncated[at],
                    wall_times=now - self._began_at[at],
                    ended_at=np.full(len(at), now),
                    infos=self._reset_infos[at],
                    last_observations=tuple(values[which].astype(leaf.dtype, copy=False) for leaf, values in columns),
                )
            )
        self._numbers[rows] = NO_NUMBER

    def _look_for_endless(self) -> None:
        buffer = self._the_buffer()
        running = np.flatnonzero(self._numbers != NO_NUMBER)
        steps = buffer.step - self._starts[running]
        if len(running) and steps.max() >= self.rules.most_steps(buffer.row_bytes) and math.isinf(self._limit):
            row = int(running[steps.argmax()])
            raise RowError(row) from BadValueError(f"the episode has no end: it is {steps.max():,} steps long", ENDLESS_HINT)

    # -- errors ------------------------------------------------------------------------------------------------------

    def _called(self, where: str, function: Callable[[], Any]) -> Any:
        """Return a call's result, and remember where it was, for the message of an error."""
        self._where = where
        return function()

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
        row, cause = self._row_of(error)
        running = np.flatnonzero(self._numbers != NO_NUMBER)
        number = NO_NUMBER if row is None else int(self._numbers[row])
        numbers = (number,) if number != NO_NUMBER else tuple(self._numbers[running].tolist())
        step = self._the_buffer().step
        if row is not None:
            step -= int(self._starts[row])
            place = episode_place(self._worker_number, number, env_seed(self._seed, max(number, 0)), step)
        else:
            which = f"episodes {min(numbers)} to {max(numbers)}" if numbers else "no episode"
            place = f"worker {self._worker_number}, {which}, step {step} of {self._n_envs} rows"
        self._forget()
        self._is_begun = False
        if is_of_user_code(cause):
            raise blame(where, cause, place, numbers) from cause

    def _row_of(self, error: BaseException) -> tuple[int | None, BaseException]:
        """Return in which row an error arose, if it was a single one, and the error itself."""
        if isinstance(error, RowError):
            return error.row, error.__cause__ or error
        if self._notes is None or self._where not in (RESET, STEP):
            return None, error
        if self._notes.at_work is not None:
            return self._notes.at_work, error
        # gymnasium failed to join the rows' observations: one of them is none of its space.
        recorder = SpaceRecorder(self.env_spec.observation_space, "the observation")
        for row in np.flatnonzero(self._numbers != NO_NUMBER).tolist():
            try:
                recorder.record(self._notes.observations[row])
            except BadValueError as fault:
                return row, fault
        return None, error

    def _forget(self) -> None:
        """Give up the episodes that run."""
        if self._buffer is not None:
            self._buffer.forget(self._numbers.tolist())
        if self._notes is not None:
            self._notes.at_work = None
        self._numbers[:] = NO_NUMBER
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
        """Drop the waiting and running numbers that are higher than `above`; where it is None, all, and finished ones."""
        self._queue.drop_above(above, self.number_stride)
        if above is None:
            self._forget()
            self.take(everything=True)
            return
        given_up = self._numbers > above
        if self._buffer is not None:
            self._buffer.forget(self._numbers[given_up].tolist())
        self._numbers[given_up] = NO_NUMBER
        self._note_rows()

    @property
    def has_work(self) -> bool:
        """Return whether an episode runs or a number waits."""
        return len(self._queue) > 0 or bool((self._numbers != NO_NUMBER).any())

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the episodes that run."""
        return tuple(self._numbers[self._numbers != NO_NUMBER].tolist())

    @property
    def open_numbers(self) -> list[int]:
        """Return the numbers that were assigned and not taken."""
        ended = self._buffer.ended_numbers.tolist() if self._buffer is not None else []
        return sorted([*ended, *self.running_numbers, *self._queue.waiting.tolist()])

    @property
    def finished_rows(self) -> int:
        """Return how many rows `take(everything=True)` would give."""
        return self._buffer.n_ended_rows if self._buffer is not None else 0

    @property
    def finished_bytes(self) -> int:
        """Return about how many bytes `take(everything=True)` would give."""
        return self._buffer.n_ended_rows * self._buffer.row_bytes if self._buffer is not None else 0

    def info(self) -> dict[str, Any]:
        """Return the policy's class, the record of the environment, and how far the episodes can be reproduced."""
        env = describe_env(self._row_envs[0] if self._notes is not None else self._env)
        info: dict[str, Any] = {"policy_class": policy_class(self._holder.policy), "env": env}
        if not self._is_row_wise:
            info["scope"] = "n_envs"
        reason = self.not_reproducible
        return info | ({"not_reproducible": reason} if reason else {})

    @property
    def _is_row_wise(self) -> bool:
        policy = self._holder.policy
        return self._notes is not None and isinstance(policy, AdaptedPolicy) and (policy.row_wise or policy.row_by_row)

    @property  # type: ignore[override]
    def not_reproducible(self) -> str | None:
        """Return why the episodes cannot be reproduced, as far as it is known by now."""
        reasons = [self._draw_reason] if self._draw_reason else []
        if self._rows is not None and self._rows.resets_itself:
            mode = self._rows.mode.value
            reasons.append(f"the vector environment resets a row by itself ({mode}), from no seed of the episode's own")
        if isinstance(self._policies, OnePolicy) and self._n_envs > 1 and self._draws_for_all():
            reasons.append("the policy draws for all rows at once: let it offer seed_rows(mask, seeds)")
        return "; ".join(reasons) or None

    def _draws_for_all(self) -> bool:
        policy = self._holder.policy
        if isinstance(policy, AdaptedPolicy) and policy.row_wise:
            return False
        return seed_method(policy, "seed_rows") is None and self._n_policy_generators() > 0

    def _n_policy_generators(self) -> int:
        seeder = EpisodeSeeder(self._seed)
        seeder.watch(policy=self._holder.policy)
        return seeder.n_found

    def shutdown(self) -> None:
        """Close the environments.

        Raises:
            EnvError: If that fails.
        """
        env, self._env, self._rows = self._env, None, None
        self._row_envs = [None] * self._n_envs
        close_env(env)

    def _the_rows(self) -> VectorRows:
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


def _is_row_by_row(policy: Any) -> bool:
    return isinstance(policy, AdaptedPolicy) and policy.row_by_row
