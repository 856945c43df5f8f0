"""DefaultWorker: one policy in one environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.envs import EnvSource, EnvUpdate, describe_env, env_record
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import EnvError, InternalError, PolicyError, RolloutError, UserCodeError
from rollout_cli.policies import Policy, PolicySource, adapt_policy, policy_class
from rollout_cli.user_code import first_line
from rollout_cli.workers.recorder import EpisodeRecorder
from rollout_cli.workers.seeder import EpisodeSeeder
from rollout_cli.workers.space_recorder import BadSampleError
from rollout_cli.workers.worker import Worker

_NO_LIMIT = 2**62
_clock = time.perf_counter


class DefaultWorker(Worker):
    """Runs one policy in one environment, one episode after another.

    Args:
        seed: The root seed of the run.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    def __init__(
        self, *, seed: int, max_episode_length: float | None, worker_number: int, deterministic: bool = False
    ) -> None:
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)
        self._deterministic = deterministic
        self._seeder = EpisodeSeeder(seed)
        self._env: gymnasium.Env[Any, Any] | None = None
        self._env_spec: EnvSpec | None = None
        self._agent: Any = None
        self._policy: Policy | None = None
        self._recorder: EpisodeRecorder | None = None
        self._number: int | None = None
        self._episode_seed = 0
        self._started_at = 0.0
        self._observation: Any = None

    # -- updates ----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Take a new environment (an env, an EnvSource) or apply an EnvUpdate; None changes nothing.

        Raises:
            EnvLoadError: If it cannot be built, or has a space that cannot be recorded.
        """
        if env_update is None:
            return
        self._forget_running()
        self._seeder.before_build()
        self._env = _updated_env(self._env, env_update)
        spec = describe_env(self._env)
        if self._env_spec is None or spec != self._env_spec:
            self._refuse_lost_episodes()
            self._env_spec = spec
            self._recorder = EpisodeRecorder(spec, worker_number=self._worker_number)
            self._policy = None
        self._adapt()

    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy (any kind that `adapt_policy` knows, or a PolicySource) or new parameters for it.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        if agent_update is None:
            return
        self._forget_running()
        self._seeder.before_build()
        if isinstance(agent_update, dict | tuple | np.ndarray):
            if self._policy is None:
                raise InternalError("parameters were sent to a worker that has no policy yet")
            self._policy.set_param_values(agent_update)
        else:
            self._agent, self._policy = agent_update, None
        self._adapt()

    def _adapt(self) -> None:
        """Make the policy ready once both it and the spaces are known, and find what both draw from."""
        if self._env_spec is None or self._agent is None:
            return
        if self._policy is None:
            self._seeder.before_build()
            if isinstance(self._agent, PolicySource):
                self._policy = self._agent.load(self._env_spec, deterministic=self._deterministic)
            else:
                self._policy = adapt_policy(self._agent, self._env_spec, deterministic=self._deterministic)
        self._seeder.watch(policy=self._policy, env=self._env)

    def _refuse_lost_episodes(self) -> None:
        if self._recorder is not None and self._recorder.finished_numbers:
            raise InternalError("the environment was replaced before the finished episodes were taken")

    # -- one episode ------------------------------------------------------------------------------------------------

    def start_episode(self) -> None:
        """Begin the lowest assigned number; the next one after the last where none is assigned."""
        self._forget_running()
        self._begin(self._next_number())

    def _begin(self, number: int) -> None:
        env, policy, recorder = self._parts()
        self._number, self._started_at = number, _clock()
        self._episode_seed = self._seeder.begin(number)
        try:
            seed_policy = getattr(policy, "seed", None)
            if callable(seed_policy):
                seed_policy(self._seeder.policy_seed(number))
        except Exception as error:
            raise self._error(PolicyError, "policy.seed", error) from error
        try:
            self._observation, episode_info = env.reset(seed=self._episode_seed)
            recorder.begin(episode_info)
        except Exception as error:
            raise self._error(EnvError, "env.reset", error) from error
        try:
            policy.reset()
        except Exception as error:
            raise self._error(PolicyError, "policy.reset", error) from error

    def step_episode(self) -> bool:
        """Take one step; return whether the episode ended."""
        if self._number is None:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        return self._step_until(-1.0)

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step."""
        while self.has_work:
            if self._number is None:
                self._begin(self._next_number())
            self._step_until(deadline)
            if _clock() >= deadline:
                return

    def _step_until(self, deadline: float) -> bool:
        """Step until the episode ends (True) or the deadline passed: the loop that all the time is spent in."""
        env, policy, recorder = self._parts()
        get_action: Callable[[Any], tuple[Any, Any]] = policy.get_action
        record_observation, record_action = recorder.record_observation, recorder.record_action
        env_step, rewards = env.step, recorder.rewards
        env_infos, agent_infos = recorder.env_infos, recorder.agent_infos
        observation = self._observation
        last_row = len(rewards) - recorder.running_rows + self._limit() - 1
        while True:
            row = len(rewards)
            try:
                seen = record_observation(observation)
            except BadSampleError as error:
                raise self._error(EnvError, "the observation", error) from error
            try:
                action, agent_info = get_action(seen)
                action = record_action(action)
            except Exception as error:
                raise self._error(PolicyError, "policy.get_action", error) from error
            try:
                observation, reward, terminated, truncated, env_info = env_step(action)
                if env_info:
                    env_infos.record(row, env_info)
                rewards.append(float(reward))
            except Exception as error:
                raise self._error(EnvError, "env.step", error) from error
            if agent_info:
                agent_infos.record(row, agent_info)
            if terminated or truncated or row >= last_row:
                self._observation = observation
                return self._finish(terminated=bool(terminated), truncated=bool(truncated) or row >= last_row)
            if _clock() >= deadline:
                self._observation = observation
                return False

    def _limit(self) -> int:
        return _NO_LIMIT if self._max_episode_length == float("inf") else int(self._max_episode_length)

    def _finish(self, *, terminated: bool, truncated: bool) -> bool:
        """End the episode; return False where it must be run again, because it drew from an unseeded generator."""
        recorder, number = self._parts()[2], self._number
        assert number is not None
        if self._seeder.must_run_again():
            recorder.discard_running()
            self._begin(number)
            return False
        try:
            recorder.finish(
                number=number,
                seed=self._episode_seed,
                last_observation=self._observation,
                terminated=terminated,
                truncated=truncated,
                wall_time=_clock() - self._started_at,
            )
        except BadSampleError as error:
            raise self._error(EnvError, "the last observation", error) from error
        self._number = None
        return True

    # -- what a sampler asks ----------------------------------------------------------------------------------------

    def collect_episode(self) -> EpisodeBatch:
        """Return the finished episodes that were not collected yet.

        Raises:
            InternalError: If no episode was finished.
        """
        chunk = self.take()
        if chunk is None:
            raise InternalError("collect_episode was called with no finished episode")
        return EpisodeBatch.from_chunks(self.env_spec, [chunk])

    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them; None where there are none."""
        return self._recorder.take() if self._recorder else None

    @property
    def env_spec(self) -> EnvSpec:
        """Return spaces and limit of its environment."""
        if self._env_spec is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._env_spec

    @property
    def finished_numbers(self) -> list[int]:
        """Return the numbers of the finished episodes that wait to be taken."""
        return self._recorder.finished_numbers if self._recorder else []

    @property
    def finished_rows(self) -> int:
        """Return how many rows wait to be taken."""
        return self._recorder.finished_rows if self._recorder else 0

    @property
    def running(self) -> bool:
        """Return whether an episode is under way."""
        return self._number is not None

    def retract(self, *, above: int | None = None) -> None:
        """Give up the numbers that are higher than `above`, waiting or running; all of them where it is None."""
        super().retract(above=above)
        if self._number is not None and (above is None or self._number > above):
            self._forget_running()

    def facts(self) -> dict[str, Any]:
        """Return the classes of policy and environment."""
        env, policy, _ = self._parts()
        return {"policy_class": policy_class(policy), "env": env_record(env)}

    def shutdown(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _forget_running(self) -> None:
        if self._recorder is not None:
            self._recorder.discard_running()
        self._number = None

    def _parts(self) -> tuple[gymnasium.Env[Any, Any], Policy, EpisodeRecorder]:
        if self._env is None or self._policy is None or self._recorder is None:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._env, self._policy, self._recorder

    def _error(self, kind: type[UserCodeError], where: str, error: Exception) -> RolloutError:
        if isinstance(error, RolloutError):
            return error
        step = self._recorder.running_rows if self._recorder else 0
        at = f"worker {self._worker_number}, episode {self._number}, seed {self._episode_seed}, step {step}"
        if isinstance(error, BadSampleError):
            who, what = ("the policy gave a bad action", "") if kind is PolicyError else (where, " is not of its space")
            return kind(f"{who}{what}: {error} ({at})", hint="make it match the space, or the space match it")
        hint = "the traceback below shows where; the seed repeats it"
        return kind(f"{where} raised {first_line(error)} ({at})", hint=hint)


def _updated_env(old_env: Any, env_update: Any) -> gymnasium.Env[Any, Any]:
    if isinstance(env_update, EnvUpdate):
        return env_update(old_env)
    if old_env is not None and old_env is not env_update:
        old_env.close()
    env: gymnasium.Env[Any, Any] = env_update.build() if isinstance(env_update, EnvSource) else env_update
    return env
