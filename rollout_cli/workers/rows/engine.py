"""Row, one Python environment with its episode, and PythonRows, the base class of engines with such rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import gymnasium

from rollout_cli.envs.describe import counted_limit, env_spec_of, task_of
from rollout_cli.envs.state import state_reader
from rollout_cli.envs.updates import updated_env
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import STATE
from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import EnvLoadError, UserCodeError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import SETUP, env_seed, seed_globals
from rollout_cli.workers.checks import (
    ENDLESS_HINT,
    RESET,
    RESET_RESULT,
    STEP,
    STEP_RESULT,
    BadValueError,
    as_flag,
    as_reward,
    blame,
    episode_place,
    frozen_copy,
    rows_place,
)
from rollout_cli.workers.rows.columns import FRAME_BYTES
from rollout_cli.workers.rows.recording import EndedEpisode, EpisodeRecorder
from rollout_cli.workers.values import NO_NUMBER
from rollout_cli.workers.worker import Setting, Worker

clock = time.perf_counter


class Row:
    """One environment and the episode that runs in it.

    Attributes:
        take_step: Accepts an action, records it, steps the environment, records the result, and returns the
            next observation, or None if the episode ended.
        number, seed, started_at: The episode number (NO_NUMBER for none), and the seed and time of its reset.
        observation: The observation to act on next.
        flags: Terminated and truncated, as returned by the last step.
        where: The call of user code that runs or raised; set before each call.
        task: The description of the episode's task; empty if there is none.
        is_used: True if an episode started in the environment.
        is_watched: True if the environment was searched for generators after its first reset.
        read_state: Returns the state of the environment's simulator; None if states are not stored.
    """

    __slots__ = (
        "_most_steps", "_step", "acting", "env", "flags", "index", "is_used", "is_watched", "number",
        "observation", "read_state", "recorder", "seed", "seeder", "started_at", "take_step", "task", "where",
    )  # fmt: skip

    def __init__(
        self, index: int, recorder: EpisodeRecorder, seeder: EpisodeSeeder, acting: str, most_steps: int
    ) -> None:
        self.index = index
        self.recorder = recorder
        self.seeder = seeder
        self.acting = acting
        self.number = NO_NUMBER
        self.seed = -1
        self.started_at = 0.0
        self.observation: Any = None
        self.flags: tuple[Any, Any] = (False, False)
        self.task = ""
        self.where = RESET
        self.is_used = self.is_watched = False
        self.read_state: Callable[[], Array] | None = None
        self._most_steps = most_steps

    env: Any
    _step: Callable[[Any], Any]
    take_step: Callable[[Any], Any]

    def use(self, env: Any, step: Callable[[Any], Any]) -> None:
        """Run the next episodes in this environment, and call `step` for its steps."""
        self.env = env
        self.is_used = False
        self._step = step
        self.restart()

    def restart(self) -> None:
        """Restart the generator of steps, which an error ends."""
        steps = self._steps(self._step)
        next(steps)
        self.take_step = steps.send

    def _steps(self, step: Callable[[Any], Any]) -> Generator[Any, Any, None]:
        """Yield the observation after each action that is sent, None after the last action of an episode.

        A generator is as fast as the same code inlined in each loop that uses it.
        """
        recorder = self.recorder
        most_steps = self._most_steps
        rewards = recorder.rewards
        infos = recorder.env_infos
        record_observation = recorder.observations.record
        record_action = recorder.actions.record
        observation: Any = None
        terminated = truncated = False
        where = acting = self.acting
        try:
            while True:
                where = acting
                action = record_action((yield observation))
                where = STEP
                result = step(action)
                where = STEP_RESULT
                observation, reward, terminated, truncated, info = result
                observation = record_observation(observation)
                if info or type(info) is not dict:
                    infos[len(rewards)] = frozen_copy(info)
                rewards.append(reward if type(reward) is float else as_reward(reward))
                if terminated or truncated or len(rewards) >= most_steps:
                    self.flags = (terminated, truncated)
                    observation = None
        except BaseException as error:
            self.where = where
            if where is STEP_RESULT and not isinstance(error, BadValueError):
                # The error may come from the truth value of a flag that is an array of several elements.
                as_flag("terminated", terminated)
                as_flag("truncated", truncated)
            raise


def _step_with_state(step: Callable[[Any], Any], read: Callable[[], Array], action: Any) -> Any:
    """Take a step, and return its result with the state after it in the info."""
    match step(action):
        case (observation, reward, terminated, truncated, Mapping() as info):
            return observation, reward, terminated, truncated, {**info, STATE: read()}
        case malformed:
            return malformed  # The row reports it.


class PythonRows:
    """Base class of engines with Python environments, which run sequentially or in lockstep.

    Args:
        setting: The worker, policy, queue and limit.
        envs: The environment of each row; a rebuilt environment replaces the old one in this list.
        updates: The updates that rebuild each row's environment for every episode; None to keep environments.
    """

    one_at_a_time = False
    not_reproducible = None
    scope: Literal["any", "n_envs"] = "any"

    def __init__(self, setting: Setting, envs: list[Any], updates: Sequence[Any] | None) -> None:
        self._root = setting.root
        self._worker = setting.worker
        self._queue = setting.queue
        self._limit = setting.limit
        self._policy = setting.policy
        self._spec = setting.worker.env_spec
        self._crash_box = setting.worker.crash_box
        self._envs = envs
        self._updates = updates
        self._acting = f"policy.{self._policy.methods[0 if self.one_at_a_time else 1]}"
        self.finished_rows = 0
        self._ended: list[EndedEpisode] = []
        self._limits = [counted_limit(env, self._limit) for env in envs]
        self._rows: list[Row] = []
        for index, env in enumerate(envs):
            recorder = EpisodeRecorder(self._spec, setting.rule)
            guard = self._worker.rules.most_steps(recorder.observations.row_bytes)
            most_steps = self._limits[index] or max(guard, self._spec.max_episode_length or 0)
            row = Row(index, recorder, setting.seeders[index], self._acting, most_steps)
            self._use_env(row, env)
            self._rows.append(row)
        self.row_bytes = self._rows[0].recorder.row_bytes
        # If rows run sequentially, the first row's seeder also seeds the policy, which may share the spaces
        # of that row's environment.
        self._seeder = setting.seeders[0 if self.one_at_a_time else len(envs)]
        self._row: Row | None = None  # The row whose user code runs, or None during a call for all rows;
        self.where = self._acting  # then this is the call.
        self._watch(self._rows)

    def _watch(self, rows: Sequence[Row]) -> None:
        """Search for generators, after a build, an update, or the first reset of these rows."""
        for row in rows:
            row.is_watched = row.is_used
            if row.seeder is not self._seeder:
                row.seeder.watch(env=row.env)
        self._seeder.watch(policy=self._policy, env=self._rows[0].env if self.one_at_a_time else None)

    def use_policy(self, policy: AdaptedPolicy) -> None:
        self._policy = policy
        self._watch([])

    # -- episodes --------------------------------------------------------------------------------------------

    def _use_env(self, row: Row, env: Any) -> None:
        """Run a row's next episodes in this environment; call the worker's `step_env` if it is overridden."""
        worker = self._worker
        step = env.step if type(worker).step_env is Worker.step_env else partial(worker.step_env, env)
        if worker.rules.store_state:
            row.read_state = state_reader(env)
            step = partial(_step_with_state, step, row.read_state)
        row.use(env, step)

    def _rebuild(self, row: Row) -> None:
        """Rebuild the environment of a row if every episode needs a fresh one and it was used."""
        if self._updates is None or not row.is_used:
            return
        seed_globals(self._root, SETUP)
        env = updated_env(row.env, self._updates[row.index], gymnasium.Env)
        if (spec := env_spec_of(env, self._limit)) != self._spec:
            difference = spec.difference(self._spec)
            raise EnvLoadError(
                f"the environment that was rebuilt for an episode has the {difference} as before",
                code="env-spaces",
                hint="build the same environment each time, or omit {fresh_env=True}",
            )
        self._envs[row.index] = env
        self._use_env(row, env)
        row.seeder.watch(env=env)

    def _set_number(self, row: Row, number: int) -> None:
        """Set the episode number of a row (NO_NUMBER for none), and record it in the crash box."""
        row.number = number
        self._crash_box.begin(row.index, number)

    def _reset(self, row: Row, number: int) -> None:
        """Reset the environment of a row for episode `number`, and record the observation and info."""
        row.seed = env_seed(self._root, number)
        row.started_at = clock()
        row.is_used = True
        row.where = RESET
        result = self._worker.reset_env(row.env, number, row.seed)
        row.where = RESET_RESULT
        observation, info = result
        rules = self._worker.rules
        task = rules.task_of(number) if rules.tasks else task_of(row.env)
        if task is not None and (rules.tasks or "task" not in info):
            info = {**info, "task": task}
        if row.read_state is not None:
            info = {**info, STATE: row.read_state()}
        row.task = task if isinstance(task, str) else ""
        row.recorder.reset_info = frozen_copy(info)
        row.observation = row.recorder.observations.record(observation)
        row.where = row.acting

    def _end(self, row: Row) -> None:
        """Move the ended episode of a row to the finished ones."""
        n_steps = len(row.recorder.rewards)
        row.where = STEP_RESULT
        terminated = as_flag("terminated", row.flags[0])
        truncated = as_flag("truncated", row.flags[1]) or n_steps == self._limits[row.index]
        if not (terminated or truncated):
            raise BadValueError(
                f"the episode reached {n_steps:,} steps without a time limit",
                ENDLESS_HINT,
                code="episode-endless",
            )
        self._ended.append(
            row.recorder.end(row.number, row.seed, (terminated, truncated), (row.started_at, clock()))
        )
        self.finished_rows += n_steps
        self._set_number(row, NO_NUMBER)

    def _give_up(self, row: Row) -> None:
        """Discard the running episode of a row."""
        row.recorder.clear()
        if row.number != NO_NUMBER:
            self._set_number(row, NO_NUMBER)

    # -- for the worker --------------------------------------------------------------------------------------

    @property
    def casts(self) -> list[str]:
        return self._rows[0].recorder.observations.casts

    @property
    def running_numbers(self) -> tuple[int, ...]:
        return tuple([row.number for row in self._rows if row.number != NO_NUMBER])

    def take(self, below: float, ended_before: float) -> list[Chunk]:
        taken: list[EndedEpisode] = []
        waiting: list[EndedEpisode] = []
        for episode in self._ended:
            if episode.number < below or episode.ended_at < ended_before:
                taken.append(episode)
            else:
                waiting.append(episode)
        if not taken:
            return []
        self._ended = waiting
        taken.sort(key=attrgetter("number"))
        self.finished_rows -= sum(episode.length for episode in taken)
        groups = [taken]
        if self.row_bytes >= FRAME_BYTES:  # One chunk each: joining large episodes would copy them again.
            groups = [[episode] for episode in taken]
        return [self._rows[0].recorder.chunk(group, self._worker.worker_number) for group in groups]

    def forget(self, above: int) -> None:
        for row in self._rows:
            if row.number > above:
                self._give_up(row)

    def fail(self, error: BaseException) -> None:
        failed = self._row
        where = self.where if failed is None else failed.where
        numbers: tuple[int, ...] = ()
        if failed is None:
            numbers = self.running_numbers
        elif failed.number != NO_NUMBER:  # Otherwise the row's environment was being rebuilt.
            numbers = (failed.number,)
        worker_number = self._worker.worker_number
        place = rows_place(worker_number, numbers, len(self._rows))
        if failed is not None and numbers:
            place = episode_place(worker_number, failed.number, failed.seed, len(failed.recorder.rewards))
        for row in self._rows:
            self._give_up(row)
            row.restart()
        # A UserCodeError already names its place, or an environment could not be rebuilt, before an episode
        # started.
        if not isinstance(error, UserCodeError) or (numbers and not error.episodes):
            blame(where, error, place, numbers)
