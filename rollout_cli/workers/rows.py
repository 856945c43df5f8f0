"""The rows of a VecWorker: copies of an environment stepped one after another, or a vector environment of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import batch_space, iterate

from rollout_cli.envs import env_spec_of, time_limit_of
from rollout_cli.envs.describe import AutoresetMode, autoreset_mode, vector_name
from rollout_cli.envs.source import Vector
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
StepEnv = Callable[[Any], Any]

_NO_INFO: dict[str, Any] = {}
_FINAL = {"final_obs", "final_info", "_final_obs", "_final_info"}


class RowError(Exception):
    """Something failed in one row; its cause says what."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class NativeRows:
    """The rows of a vector environment.

    Attributes:
        env: The vector environment.
        n_rows: How many rows it has.
        envs: The environment of each row; none where the rows are not environments of their own.
        steps: What takes a step of each of these.
        mode: How it resets rows that ended; EnvLoadError where it does not say.
        own_limit: Steps after which it truncates episodes; infinity where no limit is known.
    """

    def __init__(self, env: Vector, root: int) -> None:
        self._root = root
        self.envs: list[Env] = []
        self.steps: list[Any] = []
        # Any: its `reset` takes a seed a row, which VectorEnv's own signature does not say.
        self.env: Any = env
        self.n_rows: int = env.num_envs
        self.mode = autoreset_mode(env)
        self.own_limit = time_limit_of(env) or math.inf
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
        return [spec, *(copy.deepcopy(spec) for _ in range(self.n_rows - 1))]

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

    def step(self, actions: Any, numbers: Array) -> tuple[Any, Any, Any, Any, Any]:
        """Step all rows, also those that run none of the episodes `numbers` (n,)."""
        del numbers
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        return observations, rewards, terminated, truncated, infos

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class SyncRows:
    """Copies of an environment, stepped one after another, each as a DefaultWorker steps its own.

    A row that runs no episode rests: its environment is left alone. An error in one row raises RowError. It is our own
    loop because gymnasium's SyncVectorEnv copies all rows to reset one, changes the types of infos, and takes longer.

    Raises:
        EnvLoadError: For environments with different spaces or limits.
    """

    env: Any = None
    mode, resets_itself = AutoresetMode.DISABLED, False

    def __init__(self, envs: Sequence[Env], root: int, reset_env: ResetEnv, steps: Sequence[StepEnv]) -> None:
        self.envs: list[Env] = list(envs)
        self.n_rows, self.reset_env, self._root = len(envs), reset_env, root
        self.steps: list[Any] = list(steps)  # What they give may be of any type.
        hint = "give each worker environments of one kind"
        first, *others = ((env.observation_space, env.action_space) for env in envs)
        if any(other != first for other in others):
            raise EnvLoadError("the environments of one worker have different spaces", hint=hint)
        limits = {time_limit_of(env) or math.inf for env in envs}
        if len(limits) > 1:
            raise EnvLoadError("the environments of one worker have different limits", hint=hint)
        (self.own_limit,) = limits
        self._actions = batch_space(envs[0].action_space, len(envs))
        self._recorder = SpaceRecorder(envs[0].observation_space, "the observation")
        self._resting = resting_sample(envs[0].observation_space)
        self._spaces = SpaceRows(envs[0].observation_space)
        self._columns = self._spaces.columns(self._spaces.stack([self._resting] * len(envs)))

    def specs(self, limit: float) -> list[EnvSpec]:
        """Return spaces and limit of each row."""
        return [env_spec_of(env, limit) for env in self.envs]

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def reset(self, rows: Array, numbers: Array, before: Any) -> tuple[Any, RowInfos, Array]:
        """Reset rows (k,), as `NativeRows.reset` does."""
        del before
        infos, seeds = RowInfos([_NO_INFO] * self.n_rows), env_seeds(self._root, np.maximum(numbers[rows], 0))
        rows_begun = []
        self._recorder.truncate(0)
        for row, number, seed in zip(rows.tolist(), numbers[rows].tolist(), seeds.tolist(), strict=True):
            if number != NO_NUMBER:
                try:
                    seed_globals(self._root, number)
                    observation, info = self.reset_env(self.envs[row], number, seed)
                    self._recorder.record(observation)
                    infos[row] = frozen_copy(info)
                except BaseException as error:
                    raise RowError(row) from error
                rows_begun.append(row)
        for column, fresh in zip(self._columns, self._recorder.cut(len(rows_begun)), strict=True):
            column[rows_begun] = fresh  # Nobody has them: each step makes new ones.
        return self._spaces.tree(self._columns), infos, seeds

    def step(self, actions: Any, numbers: Array) -> tuple[Any, Array, Array, Array, RowInfos]:
        """Step the rows that run the episodes `numbers` (n,)."""
        infos = RowInfos([_NO_INFO] * self.n_rows)
        rewards, terminated, truncated = [0.0] * self.n_rows, [False] * self.n_rows, [False] * self.n_rows
        self._recorder.truncate(0)
        record = self._recorder.record
        pairs = zip(numbers.tolist(), iterate(self._actions, actions), strict=True)
        for row, (number, action) in enumerate(pairs):
            if number == NO_NUMBER:
                record(self._resting)
                continue
            try:
                observation, reward, ends, is_cut, info = self.steps[row](action)
                record(observation)
                if info or type(info) is not dict:
                    infos[row] = frozen_copy(info)
                rewards[row] = reward if type(reward) is float else as_reward(reward)
                terminated[row] = ends if type(ends) is bool else as_flag("terminated", ends)
                truncated[row] = is_cut if type(is_cut) is bool else as_flag("truncated", is_cut)
            except BaseException as error:
                raise RowError(row) from error
        self._columns = self._recorder.cut(self.n_rows)
        return self._spaces.tree(self._columns), np.array(rewards), np.array(terminated), np.array(truncated), infos


Rows = NativeRows | SyncRows


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
