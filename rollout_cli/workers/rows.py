"""The rows of a VecWorker: copies of an environment stepped one after another, or a vector environment of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rollout_cli.envs import env_spec_of, time_limit_of
from rollout_cli.envs.describe import autoreset_mode, vector_name
from rollout_cli.envs.source import Vector, sync_vector
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import EnvLoadError
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import env_seed, env_seeds, seed_globals
from rollout_cli.workers.batch_infos import batch_columns, row_info
from rollout_cli.workers.checks import BadValueError, as_flag, as_reward, frozen_copy
from rollout_cli.workers.recording import SpaceRecorder
from rollout_cli.workers.rollout_buffer import RolloutBuffer
from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[Any]
Env = gymnasium.Env[Any, Any]
ResetEnv = Callable[[Env, int, int], tuple[Any, dict[str, Any]]]
Infos = list[dict[Any, Any]] | None
"""One info dictionary for each of some rows; None where all are empty."""

_FEW = 32
"""So many seeds are derived faster one by one."""

_NO_INFO: dict[str, Any] = {}


class NativeRows:
    """The rows of a vector environment.

    Attributes:
        env: The vector environment.
        n_rows: n.
        mode: How it resets rows that ended.
        described: The environment that the dataset's record is of.
        own_limit: Steps after which it truncates episodes; None where no limit is known.
        counts_limit: Whether the worker counts that limit for it.
        seeders: One for each row whose policy or environment is its own; else none.

    Args:
        env: The vector environment.
        root: The run's root seed.

    Raises:
        EnvLoadError: If it does not say how it resets rows.
    """

    counts_limit = False

    def __init__(self, env: Vector, root: int) -> None:
        self._root = root
        # Any: its `reset` takes a seed a row, which VectorEnv's own signature does not say.
        self.env: Any = env
        self.n_rows = int(env.num_envs)
        self.mode = autoreset_mode(env)
        self.described: Any = env
        self.own_limit = time_limit_of(env)
        self.seeders: Sequence[EpisodeSeeder] = ()
        self._spaces = SpaceRows(env.single_observation_space)
        self._row_specs: list[EnvSpec] = []
        self._takes_list = True
        self._mask_is_proven = False

    @property
    def resets_itself(self) -> bool:
        """Return whether rows begin anew without being told, from no seed of their own."""
        return self.mode is not AutoresetMode.DISABLED

    def specs(self, limit: float) -> Iterator[EnvSpec]:
        """Yield spaces and limit for each row, whose spaces are its own."""
        spec = env_spec_of(self.env, limit)
        self._row_specs = [spec]
        yield spec
        for _ in range(self.n_rows - 1):
            self._row_specs.append(copy.deepcopy(spec))
            yield self._row_specs[-1]

    def watch(self, policies: Sequence[Any] | None) -> None:
        """Find the generators that the rows draw from: of their environments, and of `policies`, one a row."""
        if policies is not None:
            self.seeders = self.seeders or [EpisodeSeeder(self._root) for _ in policies]
            for seeder, policy, spec in zip(self.seeders, policies, self._row_specs, strict=True):
                # The spaces are the environment's, also where the policy holds them: as in a DefaultWorker.
                seeder.watch(policy=policy, env=spec)

    def note(self, numbers: Array) -> None:
        """Take note of the episodes that run, int64 (n,)."""

    # -- resets ------------------------------------------------------------------------------------------------------

    def reset_all(self, seed: int) -> tuple[Any, Infos]:
        """Reset every row of an environment that resets itself, from one seed of 31 bits."""
        observations, infos = self.env.reset(seed=seed)
        return observations, self.infos_of(infos, np.arange(self.n_rows))

    def reset_rows(self, rows: Array, numbers: Array, before: Any) -> tuple[Any, Infos, Array]:
        """Reset rows (k,) of an environment that does not reset itself.

        Args:
            rows: The rows; all of them the first time.
            numbers: The episodes of all rows, int64 (n,).
            before: The last observations; None the first time.

        Returns:
            The observations, the infos of these rows, and the seeds that they were given (k,).

        Raises:
            EnvLoadError: If the environment resets rows that the mask leaves out.
        """
        mask = np.zeros(self.n_rows, bool)
        mask[rows] = True
        seeds = np.zeros(self.n_rows, np.int64)
        seeds[rows] = self._env_seeds(np.maximum(numbers[rows], 0))
        observations, infos = self._reset(mask, seeds, None if before is None else {"reset_mask": mask})
        if before is not None and not self._mask_is_proven and not mask.all():
            self._check_left_alone(~mask, before, observations)
        return observations, self.infos_of(infos, rows), seeds[rows] if self._takes_list else seeds[rows] >> 1

    def _env_seeds(self, numbers: Array) -> Any:
        if len(numbers) > _FEW:
            return env_seeds(self._root, numbers)
        return [env_seed(self._root, number) for number in numbers.tolist()]

    def _reset(self, mask: Array, seeds: Array, options: dict[str, Any] | None) -> tuple[Any, Any]:
        as_list, as_array = seeds.tolist(), seeds[mask] >> 1
        try:
            # gymnasium's own vector environments take the mask out of the options.
            given = None if options is None else {"reset_mask": mask.copy()}
            observations, infos = self.env.reset(seed=as_list if self._takes_list else as_array, options=given)
        except TypeError as error:
            if options is not None:
                raise
            # ALE takes an array of 31-bit seeds, of the rows that are reset alone.
            try:
                observations, infos = self.env.reset(seed=as_array)
            except Exception:  # noqa: BLE001  The first one says what its reset asks for.
                raise error from None
            self._takes_list = False
        return observations, infos

    def _check_left_alone(self, others: Array, before: Any, after: Any) -> None:
        for one, other in zip(self._spaces.columns(before), self._spaces.columns(after), strict=True):
            if np.asarray(one)[others].tobytes() != np.asarray(other)[others].tobytes():
                raise EnvLoadError(
                    f"{vector_name(self.env)} resets rows that options['reset_mask'] leaves out",
                    hint="let it leave them as they are, or let it reset itself and say so in its metadata",
                )
        self._mask_is_proven = True

    def infos_of(self, infos: Any, rows: Array) -> Infos:
        """Return the infos of rows (k,) from those of a batch."""
        return [row_info(infos, row, self.n_rows) for row in rows.tolist()] if infos else None

    # -- a step ------------------------------------------------------------------------------------------------------

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step all rows."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        return observations, rewards, terminated, truncated, infos

    def put_infos(self, infos: Any, buffer: RolloutBuffer, numbers: Array, starts: Array) -> None:
        """Record the infos of a step of rows that run these numbers (n,) since these steps (n,)."""
        del numbers, starts
        if infos or type(infos) is not dict:
            buffer.put_infos("env", batch_columns(infos, self.n_rows))

    def failed_row(self, error: BaseException, numbers: Array) -> tuple[int | None, BaseException]:
        """Return in which row an error of the environment arose, if that is known, and the error."""
        del numbers
        return None, error


class SyncRows(NativeRows):
    """The rows of gymnasium's SyncVectorEnv, each of which runs its episodes as a DefaultWorker does.

    Infos go beside the vector environment, which would change their types by joining them.

    Args:
        envs: One environment a row.
        root: The run's root seed.
        reset_env: Resets an environment for an episode, from its number and seed.

    Raises:
        EnvLoadError: If the environments have different spaces or limits.
    """

    counts_limit = True

    def __init__(self, envs: Sequence[Env], root: int, reset_env: ResetEnv) -> None:
        self.envs, self.reset_env = envs, reset_env
        self.running = [False] * len(envs)
        self.numbers = [NO_NUMBER] * len(envs)
        self.infos: list[dict[Any, Any]] = [_NO_INFO] * len(envs)
        self.observations: list[Any] = [None] * len(envs)
        self.at_work: int | None = None
        super().__init__(sync_vector([_RowEnv(env, row, self, root) for row, env in enumerate(envs)]), root)
        self._mask_is_proven = True
        self.described = envs[0]
        self.seeders = [EpisodeSeeder(root) for _ in envs]
        limits = {time_limit_of(env) for env in envs}
        if len(limits) > 1:
            raise EnvLoadError("the environments of one worker have different limits", hint="give all the same limit")
        (self.own_limit,) = limits

    def specs(self, limit: float) -> Iterator[EnvSpec]:
        """Yield spaces and limit of each row's environment."""
        return (env_spec_of(env, limit) for env in self.envs)

    def watch(self, policies: Sequence[Any] | None) -> None:
        """Find the generators that the rows draw from: of their environments, and of `policies`, one a row."""
        for row, (seeder, env) in enumerate(zip(self.seeders, self.envs, strict=True)):
            seeder.watch(policy=None if policies is None else policies[row], env=env)

    def note(self, numbers: Array) -> None:
        """Take note of the episodes that run, int64 (n,)."""
        self.numbers, self.running, self.at_work = numbers.tolist(), (numbers != NO_NUMBER).tolist(), None

    def infos_of(self, infos: Any, rows: Array) -> Infos:
        """Return the infos of rows (k,) at their reset."""
        del infos
        return [self.infos[row] for row in rows.tolist()]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step all rows."""
        self.infos = [_NO_INFO] * self.n_rows
        return super().step(actions)

    def put_infos(self, infos: Any, buffer: RolloutBuffer, numbers: Array, starts: Array) -> None:
        """Record the infos of a step of rows that run these numbers (n,) since these steps (n,)."""
        del infos
        for row, info in enumerate(self.infos):
            if info and self.running[row]:
                buffer.row_infos["env"].setdefault(int(numbers[row]), {})[buffer.step - int(starts[row])] = info

    def failed_row(self, error: BaseException, numbers: Array) -> tuple[int | None, BaseException]:
        """Return in which row an error of the environment arose, if that is known, and the error."""
        if self.at_work is not None:
            return self.at_work, error
        # gymnasium failed to join the observations: a row's is none of its space.
        recorder = SpaceRecorder(self.envs[0].observation_space, "the observation")
        for row in np.flatnonzero(numbers != NO_NUMBER).tolist():
            try:
                recorder.record(self.observations[row])
            except BadValueError as fault:
                return row, fault
        return None, error


class _RowEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One row. Where it runs no episode it rests: its environment is left alone, whatever it is asked."""

    def __init__(self, env: Env, row: int, rows: SyncRows, root: int) -> None:
        super().__init__(env)
        self._row, self._rows, self._root = row, rows, root
        space = copy.deepcopy(env.observation_space)  # The environment's own must not be drawn from.
        space.seed(0)
        self._resting: Any = space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del options
        rows, row = self._rows, self._row
        if not rows.running[row] or seed is None:
            return self._resting, _NO_INFO
        rows.at_work = row
        seed_globals(self._root, rows.numbers[row])
        observation, info = rows.reset_env(self.env, rows.numbers[row], seed)
        rows.infos[row] = frozen_copy(info)
        rows.observations[row], rows.at_work = observation, None
        return observation, _NO_INFO

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rows, row = self._rows, self._row
        if not rows.running[row]:
            return self._resting, 0.0, False, False, _NO_INFO
        rows.at_work = row
        step: Any = self.env.step  # What it gives may be of any type.
        observation, reward, terminated, truncated, info = step(action)
        if info or type(info) is not dict:
            rows.infos[row] = frozen_copy(info)
        if type(reward) is not float:
            reward = as_reward(reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated)
        rows.observations[row], rows.at_work = observation, None
        return observation, reward, terminated, truncated, _NO_INFO


def final_infos(infos: Mapping[Any, Any]) -> tuple[Any, Mapping[Any, Any], dict[Any, Any]]:
    """Take the infos of a step apart in which rows ended and began anew (SAME_STEP).

    Returns:
        The last observations, the infos of the last steps, and those of the rows as they are now.

    Raises:
        BadValueError: If there are no last observations.
    """
    found = next((infos[key] for key in _FINAL_OBSERVATIONS if key in infos), None)
    if found is None:
        hint = "in the mode SAME_STEP the infos hold 'final_obs' where episodes end"
        raise BadValueError("infos has no 'final_obs' though episodes ended", hint)
    return found, infos.get(_FINAL_INFO) or {}, {key: value for key, value in infos.items() if key not in _FINAL}


_FINAL_OBSERVATIONS = ("final_obs", "final_observation")
_FINAL_INFO = "final_info"
_FINAL = {mask + key for key in (*_FINAL_OBSERVATIONS, _FINAL_INFO) for mask in ("", "_")}
