"""The rows of a VecWorker: copies of an environment stepped one after another, or a vector environment of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
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
from rollout_cli.seeding.seeds import env_seed, env_seeds, seed_globals
from rollout_cli.workers.batches import RowInfos, leaf_batch
from rollout_cli.workers.checks import BadValueError, as_flag, as_reward, frozen_copy
from rollout_cli.workers.recording import SpaceRecorder
from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[Any]
Env = gymnasium.Env[Any, Any]
ResetEnv = Callable[[Env, int, int], tuple[Any, dict[str, Any]]]

_NO_INFO: dict[str, Any] = {}
_FINAL = {"final_obs", "final_info", "_final_obs", "_final_info"}


class NativeRows:
    """The rows of a vector environment.

    Attributes:
        env: The vector environment.
        envs: The environment of each row; none where the rows are not environments of their own.
        mode: How it resets rows that ended; EnvLoadError where it does not say.
        own_limit: Steps after which it truncates episodes; infinity where no limit is known.
    """

    envs: Sequence[Env] = ()

    def __init__(self, env: Vector, root: int) -> None:
        self._root = root
        # Any: its `reset` takes a seed a row, which VectorEnv's own signature does not say.
        self.env: Any = env
        self.mode = autoreset_mode(env)
        self.own_limit = _limit_of(env)
        self._spaces = SpaceRows(env.single_observation_space)
        self._takes_list = True
        self._keeps_mask = False

    @property
    def resets_itself(self) -> bool:
        """Return whether rows begin anew without being told, from no seed of their own."""
        return self.mode is not AutoresetMode.DISABLED

    def specs(self, limit: float) -> list[EnvSpec]:
        """Return spaces and limit of each row, whose spaces are its own."""
        spec = env_spec_of(self.env, limit)
        return [spec, *(copy.deepcopy(spec) for _ in range(self.env.num_envs - 1))]

    def note(self, numbers: Array) -> None:
        """Take note of the episodes that run, int64 (n,)."""

    def reset(self, rows: Array, numbers: Array, before: Any) -> tuple[Any, Any, Array]:
        """Reset rows (k,) for the episodes `numbers` (n,), where `before` are the last observations.

        The first time `before` is None, and the rows are all; so they are where the environment resets itself later.
        Return observations and infos of the batch, and the seeds that these rows were given (k,), -1 for none.
        """
        if self.resets_itself:
            # No two workers share a number, so none begins like another. The seed has 31 bits.
            lowest = int(numbers[numbers != NO_NUMBER].min())
            return *self.env.reset(seed=env_seed(self._root, lowest) >> 1), np.full(len(rows), -1)
        mask, seeds = np.zeros(len(numbers), bool), np.zeros(len(numbers), np.int64)
        mask[rows] = True
        seeds[rows] = env_seeds(self._root, np.maximum(numbers[rows], 0))
        # gymnasium's own vector environments take the mask out of the options.
        observations, infos = self._reset(mask, seeds, None if before is None else {"reset_mask": mask.copy()})
        if not (before is None or self._keeps_mask or mask.all()):
            self._check_left_alone(~mask, before, observations)
        return observations, infos, seeds[rows] if self._takes_list else seeds[rows] >> 1

    def _reset(self, mask: Array, seeds: Array, options: dict[str, Any] | None) -> Any:
        if self._takes_list:
            try:
                return self.env.reset(seed=seeds.tolist(), options=options)
            except TypeError:
                if options is not None:
                    raise
            self._takes_list = False
        # ALE takes an array of 31-bit seeds, of the rows that are reset alone.
        return self.env.reset(seed=seeds[mask] >> 1, options=options)

    def _check_left_alone(self, others: Array, before: Any, after: Any) -> None:
        for leaf, *batches in zip(
            self._spaces.leaves, self._spaces.columns(before), self._spaces.columns(after), strict=True
        ):
            one, other = (leaf_batch("observations", leaf, batch, len(others))[others] for batch in batches)
            if one.tolist() != other.tolist() if leaf.kind == "text" else one.tobytes() != other.tobytes():
                raise EnvLoadError(
                    f"{vector_name(self.env)} resets rows that options['reset_mask'] leaves out",
                    hint="let it leave them as they are, or let it reset itself and say so in its metadata",
                )
        self._keeps_mask = True

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step all rows."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        return observations, rewards, terminated, truncated, infos

    def failed_row(self, error: BaseException, numbers: Array) -> tuple[int | None, BaseException]:
        """Return in which row an error of the environment arose, if that is known, and the error."""
        del numbers
        return None, error


class SyncRows(NativeRows):
    """The rows of gymnasium's SyncVectorEnv, each of which runs its episodes as a DefaultWorker does.

    Infos go beside the vector environment, which would change their types by joining them. Environments with different
    spaces or limits raise EnvLoadError.
    """

    def __init__(self, envs: Sequence[Env], root: int, reset_env: ResetEnv) -> None:
        self.envs, self.reset_env = envs, reset_env
        self.numbers = [NO_NUMBER] * len(envs)
        self.infos = RowInfos([_NO_INFO] * len(envs))
        self.observations: list[Any] = [None] * len(envs)
        self.at_work: int | None = None
        super().__init__(sync_vector([_RowEnv(env, row, self, root) for row, env in enumerate(envs)]), root)
        limits = {_limit_of(env) for env in envs}
        if len(limits) > 1:
            raise EnvLoadError("the environments of one worker have different limits", hint="give all the same limit")
        (self.own_limit,) = limits

    def specs(self, limit: float) -> list[EnvSpec]:
        return [env_spec_of(env, limit) for env in self.envs]

    def note(self, numbers: Array) -> None:
        self.numbers, self.at_work = numbers.tolist(), None

    def reset(self, rows: Array, numbers: Array, before: Any) -> tuple[Any, Any, Array]:
        observations, _, seeds = super().reset(rows, numbers, before)
        return observations, self.infos, seeds

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.infos = RowInfos([_NO_INFO] * len(self.envs))
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        return observations, rewards, terminated, truncated, self.infos

    def failed_row(self, error: BaseException, numbers: Array) -> tuple[int | None, BaseException]:
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
        self._resting: Any = resting_sample(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del options
        rows, row = self._rows, self._row
        if rows.numbers[row] == NO_NUMBER or seed is None:
            return self._resting, _NO_INFO
        rows.at_work = row
        seed_globals(self._root, rows.numbers[row])
        observation, info = rows.reset_env(self.env, rows.numbers[row], seed)
        rows.infos[row] = frozen_copy(info)
        rows.observations[row], rows.at_work = observation, None
        return observation, _NO_INFO

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rows, row = self._rows, self._row
        if rows.numbers[row] == NO_NUMBER:
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


def resting_sample(space: gymnasium.Space[Any]) -> Any:
    """Return a sample for rows that run no episode; the space itself is not drawn from."""
    space = copy.deepcopy(space)
    space.seed(0)
    return space.sample()


def final_infos(infos: Mapping[Any, Any]) -> tuple[Any, Mapping[Any, Any], dict[Any, Any]]:
    """Return the last observations, their infos, and those of rows as they are now, of a step in mode SAME_STEP."""
    if "final_obs" not in infos:
        hint = "in the mode SAME_STEP the infos hold 'final_obs' where episodes end"
        raise BadValueError("infos has no 'final_obs' though episodes ended", hint)
    now = {key: value for key, value in infos.items() if key not in _FINAL}
    return infos["final_obs"], infos.get("final_info") or {}, now


def _limit_of(env: Any) -> float:
    limit = time_limit_of(env)
    return math.inf if limit is None else limit
