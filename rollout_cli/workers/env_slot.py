"""EnvSlot: one environment, the episode that runs in it, and its recorder."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium

from rollout_cli.black_box import NONE, black_box
from rollout_cli.envs import EnvSource, EnvUpdate, describe_env, strip_env
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvError, InternalError, PolicyError, RolloutError, UserCodeError
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.user_code import first_line
from rollout_cli.workers.episode_seeds import EpisodeSeeds
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.recorder import EpisodeRecorder, EpisodeStore
from rollout_cli.workers.rules import ENDLESS_HINT, endless
from rollout_cli.workers.seeder import EpisodeSeeder
from rollout_cli.workers.step_values import BadStepError, as_flag, explained
from rollout_cli.workers.turns import GeneratorTurn

Env = gymnasium.Env[Any, Any]

_clock = time.perf_counter


class EnvSlot:
    """One environment of a worker.

    Attributes:
        seeder: Seeds what this environment's episodes draw from.
        number: The number of the episode that runs; None where none does.
        episode_seed: The seed given to its `reset`.
        first_step: How many of its steps were handed on already, in fragments.
        observation: What the environment gave last, as it gave it.
        limit: Steps after which the worker must truncate an episode in place of a wrapper; None for no limit.
        spec: What is known of the environment; its spaces are the environment's own.
        turn: The generators as this slot has them, where several slots share them.

    Args:
        root_seed: The run's root seed.
        global_seeder: Seeds the global generators, which all of the worker's environments share.
        worker_number: Which worker this belongs to, for messages.
        seeds: The seeds of its episodes, where several slots share them.
    """

    def __init__(
        self, root_seed: int, global_seeder: GlobalSeeder, worker_number: int, *, seeds: EpisodeSeeds | None = None
    ) -> None:
        self.seeder = EpisodeSeeder(root_seed, global_seeder, seeds)
        self.number: int | None = None
        self.episode_seed = 0
        self.first_step = 0
        self.observation: Any = None
        self.limit: int | None = None
        self.spec: EnvSpec | None = None
        self.turn = GeneratorTurn(global_seeder)
        self._worker_number = worker_number
        self._note_running = black_box().new_row()
        self._env: Env | None = None
        self._stepped: Env | None = None
        self._recorder: EpisodeRecorder | None = None
        self._started_at = 0.0

    @property
    def env(self) -> Env:
        """Return the environment as it was built, with all its wrappers."""
        if self._env is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._env

    @property
    def stepped(self) -> Env:
        """Return what is reset and stepped: the environment, without the wrappers that `strip_env` takes off."""
        if self._stepped is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._stepped

    @property
    def recorder(self) -> EpisodeRecorder:
        """Return the recorder of the episode that runs."""
        if self._recorder is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._recorder

    def update_env(self, env_update: Any) -> EnvSpec:
        """Take a new environment (an env, an EnvSource) or apply an EnvUpdate; return what is known of it.

        Raises:
            EnvLoadError: If it cannot be built, or has a space that cannot be recorded.
        """
        self.forget()
        self.seeder.before_build()
        self._env = self._stepped = updated_env(self._env, env_update)
        self.limit = None
        self.spec = spec = describe_env(self._env)
        if isinstance(env_update, EnvSource) and env_update.made_by_gymnasium:
            self._stepped, self.limit = called(self, EnvError, "the first reset or step", lambda: strip_env(self.env))
        return spec

    def record_into(self, store: EpisodeStore) -> None:
        """Put finished episodes into `store` from now on."""
        self._recorder = EpisodeRecorder(store)

    def prepare(self, number: int) -> None:
        """Seed everything that episode `number` draws from but the environment itself, and note that it begins."""
        self.number, self.first_step, self._started_at = number, 0, _clock()
        self._note_running(number)
        self.episode_seed = self.seeder.begin(number)

    def reset(self, options: dict[str, Any] | None = None) -> None:
        """Reset the environment for the episode that was prepared.

        Args:
            options: What to tell the environment, as gymnasium has it.

        Raises:
            EnvError: If it raises.
        """
        reset, seed = self.stepped.reset, self.episode_seed
        try:
            # Many an environment's own `reset` knows no options.
            self.observation, episode_info = reset(seed=seed) if options is None else reset(seed=seed, options=options)
            self.recorder.begin(episode_info)
        except Exception as error:
            raise self.error(EnvError, "env.reset", error) from error

    def last_step(self, max_episode_length: float) -> int:
        """Return at how many recorded steps an episode is truncated, by the run's limit or the environment's own."""
        limit = max_episode_length if self.limit is None else min(self.limit, max_episode_length)
        return sys.maxsize if math.isinf(limit) else math.ceil(limit) - self.first_step

    def ending(self, terminated: Any, truncated: Any, *, at_limit: bool) -> tuple[bool, bool]:
        """Return both flags of the episode's last step.

        Args:
            terminated: What the environment gave.
            truncated: What it gave.
            at_limit: Whether the episode has reached its limit.

        Raises:
            EnvError: If a flag is no bool, or the episode goes on and on.
        """
        try:
            flags = as_flag("terminated", terminated), as_flag("truncated", truncated) or at_limit
        except BadStepError as error:
            raise self.error(EnvError, "env.step", error) from error
        if not any(flags):
            raise self.error(EnvError, "env.step", BadStepError(endless(len(self.recorder.rewards)), ENDLESS_HINT))
        return flags

    def finish(self, *, terminated: bool, truncated: bool) -> None:
        """End the episode, unless its seeder says that it must be run again.

        Raises:
            EnvError: If the last observation is none of its space.
        """
        self._hand_on(terminated=terminated, truncated=truncated)
        self.number = None
        self._note_running(NONE)

    def cut(self) -> None:
        """Hand on the steps recorded so far as a fragment; the episode goes on.

        Raises:
            EnvError: If the last observation is none of its space.
        """
        episode_info, steps = self.recorder.episode_info, len(self.recorder.rewards)
        self._hand_on(terminated=False, truncated=False)
        self.recorder.begin(episode_info)
        self.first_step += steps

    def _hand_on(self, *, terminated: bool, truncated: bool) -> None:
        assert self.number is not None
        try:
            self.recorder.finish(
                number=self.number,
                seed=self.episode_seed,
                last_observation=self.observation,
                terminated=terminated,
                truncated=truncated,
                wall_time=_clock() - self._started_at,
            )
        except BadSampleError as error:
            raise self.error(EnvError, "the last observation", error) from error

    def forget(self) -> None:
        """Give up the episode that runs."""
        if self._recorder is not None:
            self._recorder.discard()
        self.number = None
        self._note_running(NONE)

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()
            self._env = self._stepped = None

    def error(
        self, kind: type[UserCodeError], where: str, error: Exception, *, of_any_row: bool = False
    ) -> RolloutError:
        """Return the error of `kind` that tells what failed, and in which worker, episode, seed and step.

        Args:
            kind: Its class, unless `error` is one of ours.
            where: What was called.
            error: What was raised.
            of_any_row: Whether another row's episode may have been the reason.
        """
        told = self._error(kind, where, error)
        if isinstance(told, UserCodeError) and not of_any_row:
            told.episode = self.number
        return told

    def _error(self, kind: type[UserCodeError], where: str, error: Exception) -> RolloutError:
        step = self.first_step + len(self._recorder.rewards) if self._recorder else 0
        at = f"worker {self._worker_number}, episode {self.number}, seed {self.episode_seed}, step {step}"
        if isinstance(error, RolloutError):
            return placed(error, at)
        if isinstance(error := explained(where, error), BadStepError):
            return kind(f"{error} ({at})", hint=error.hint)
        if isinstance(error, BadSampleError):
            what = "the policy gave a bad action" if kind is PolicyError else f"{where} is not of its space"
            return kind(f"{what}: {error} ({at})", hint="make it match the space, or the space match it")
        hint = "the traceback below shows where; the seed repeats it"
        return kind(f"{where} raised {first_line(error)} ({at})", hint=hint)


def placed(error: RolloutError, at: str) -> RolloutError:
    """Return `error` with where it happened, which an adapter that found a contract broken does not know.

    It is a copy, so that the one that was raised can be its cause, and keeps its own.

    Args:
        error: An error of ours; one of a kind that has no place, or that has its place already, keeps its words.
        at: The place, the worker first.
    """
    worker = at.partition(",")[0]
    has_place = not isinstance(error, EnvError | PolicyError) or f"({worker}," in error.message
    message = error.message if has_place else f"{error.message} ({at})"
    return type(error)(message, hint=error.hint, details=error.details)


def updated_env(old_env: Env | None, env_update: Any) -> Env:
    """Return the environment that an update gives in place of `old_env`, which is closed where it is replaced."""
    if isinstance(env_update, EnvUpdate):
        return env_update(old_env)
    if old_env is not None and old_env is not env_update:
        old_env.close()
    env: Env = env_update.build() if isinstance(env_update, EnvSource) else env_update
    return env


def called(slot: EnvSlot, kind: type[UserCodeError], where: str, function: Callable[[], Any]) -> Any:
    """Return what a call of user code returns; what it raises becomes an error of `kind`."""
    try:
        return function()
    except Exception as error:
        raise slot.error(kind, where, error) from error
