"""Rows of Python environments: a Row is one, and PythonRows what several have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import gymnasium

from rollout_cli.envs.describe import counted_limit, env_spec_of
from rollout_cli.envs.updates import updated_env
from rollout_cli.episodes.chunk import Chunk
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
        take_step: Takes an action; records it, steps the environment, records what that gives, and returns
            the next observation, None where the episode is over.
        number, seed, started_at: The episode's number (NO_NUMBER for none), the seed of its reset, and the
            time of that.
        observation: The one to act on next.
        flags: Terminated and truncated, as the last step gave them.
        where: The call of user code that runs, or has raised; set by whoever makes it.
        is_used: Whether an episode started in the environment; `is_watched`: whether its first reset was
            looked at.
    """

    __slots__ = (
        "_most_steps", "_step", "acting", "env", "flags", "index", "is_used", "is_watched", "number",
        "observation", "recorder", "seed", "seeder", "started_at", "take_step", "where",
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
        self.where = RESET
        self.is_used = self.is_watched = False
        self._most_steps = most_steps

    env: Any
    _step: Callable[[Any], Any]
    take_step: Callable[[Any], Any]

    def use(self, env: Any, step: Callable[[Any], Any]) -> None:
        """Run the next episodes in this environment, whose steps `step` takes."""
        self.env = env
        self.is_used = False
        self._step = step
        self.restart()

    def restart(self) -> None:
        """Go on after an error, with which the steps have ended."""
        steps = self._steps(self._step)
        next(steps)
        self.take_step = steps.send

    def _steps(self, step: Callable[[Any], Any]) -> Generator[Any, Any, None]:
        """Yield the observation after each action that is sent; None after the last one of an episode.

        It is a generator since that costs no more than the same code inside of each loop that needs it.
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
                # An array of several elements is neither true nor false.
                as_flag("terminated", terminated)
                as_flag("truncated", truncated)
            raise


class PythonRows:
    """What rows of Python environments have in common, whether they take turns or step together.

    Args:
        setting: What it works with.
        envs: The environment of each row; one that is built anew takes the place of the old one in this list.
        updates: What builds each row's environment anew for each episode; None where it is kept.
    """

    in_turn = False
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
        self._acting = f"policy.{self._policy.methods[0 if self.in_turn else 1]}"
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
        # In turn the first row's seeder has the policy, too: it may hold the spaces of that row's
        # environment.
        self._seeder = setting.seeders[0 if self.in_turn else len(envs)]
        self._row: Row | None = None  # In whose step user code runs; None where it is that of all rows, and
        self._where = self._acting  # which call it then is.
        self._watch(self._rows)

    def _watch(self, rows: Sequence[Row]) -> None:
        """Search for generators, after a build, an update, or the first reset of these rows."""
        for row in rows:
            row.is_watched = row.is_used
            if row.seeder is not self._seeder:
                row.seeder.watch(env=row.env)
        self._seeder.watch(policy=self._policy, env=self._rows[0].env if self.in_turn else None)

    def use_policy(self, policy: AdaptedPolicy) -> None:
        self._policy = policy
        self._watch([])

    # -- episodes --------------------------------------------------------------------------------------------

    def _use_env(self, row: Row, env: Any) -> None:
        """Run a row's next episodes in this environment, by its own `step` unless a subclass has one."""
        worker = self._worker
        step = env.step if type(worker).step_env is Worker.step_env else partial(worker.step_env, env)
        row.use(env, step)

    def _rebuild(self, row: Row) -> None:
        """Build the environment of a row anew, where each episode has its own and this one is used."""
        if self._updates is None or not row.is_used:
            return
        seed_globals(self._root, SETUP)
        env = updated_env(row.env, self._updates[row.index], gymnasium.Env)
        if env_spec_of(env, self._limit) != self._spec:
            raise EnvLoadError(
                "the environment that was built anew for an episode has other spaces, "
                "or another limit, than before",
                code="env-spaces",
                hint="build the same environment each time, or omit {fresh_env=True}",
            )
        self._envs[row.index] = env
        self._use_env(row, env)
        row.seeder.watch(env=env)

    def _set_number(self, row: Row, number: int) -> None:
        """Note which number a row runs from now on, NO_NUMBER for none."""
        row.number = number
        self._crash_box.begin(row.index, number)

    def _reset(self, row: Row, number: int) -> None:
        """Reset the environment of a row for the episode `number`, and record what that gives."""
        row.seed = env_seed(self._root, number)
        row.started_at = clock()
        row.is_used = True
        row.where = RESET
        result = self._worker.reset_env(row.env, number, row.seed)
        row.where = RESET_RESULT
        observation, info = result
        if self._worker.rules.tasks:
            info = {**info, "task": self._worker.rules.task_of(number)}
        row.recorder.reset_info = frozen_copy(info)
        row.observation = row.recorder.observations.record(observation)
        row.where = row.acting

    def _end(self, row: Row) -> None:
        """Keep the episode of a row, which is over."""
        n_steps = len(row.recorder.rewards)
        row.where = STEP_RESULT
        terminated = as_flag("terminated", row.flags[0])
        truncated = as_flag("truncated", row.flags[1]) or n_steps == self._limits[row.index]
        if not (terminated or truncated):
            raise BadValueError(
                f"the episode has no end: it is {n_steps:,} steps long", ENDLESS_HINT, code="episode-endless"
            )
        self._ended.append(
            row.recorder.end(row.number, row.seed, (terminated, truncated), (row.started_at, clock()))
        )
        self.finished_rows += n_steps
        self._set_number(row, NO_NUMBER)

    def _give_up(self, row: Row) -> None:
        """Give up what runs in a row."""
        row.recorder.clear()
        if row.number != NO_NUMBER:
            self._set_number(row, NO_NUMBER)

    # -- what a worker asks ----------------------------------------------------------------------------------

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
        if self.row_bytes >= FRAME_BYTES:  # Large episodes are not copied once more, to lie in one array.
            groups = [[episode] for episode in taken]
        return [self._rows[0].recorder.chunk(group, self._worker.worker_number) for group in groups]

    def forget(self, above: int) -> None:
        for row in self._rows:
            if row.number > above:
                self._give_up(row)

    def fail(self, error: BaseException) -> None:
        failed = self._row
        where = self._where if failed is None else failed.where
        numbers: tuple[int, ...] = ()
        if failed is None:
            numbers = self.running_numbers
        elif failed.number != NO_NUMBER:  # Else its environment is rebuilt, and no other row is at fault.
            numbers = (failed.number,)
        worker_number = self._worker.worker_number
        place = rows_place(worker_number, numbers, len(self._rows))
        if failed is not None and numbers:
            place = episode_place(worker_number, failed.number, failed.seed, len(failed.recorder.rewards))
        for row in self._rows:
            self._give_up(row)
            row.restart()
        # One of ours has its place, or is that of an environment that cannot be built anew, for no episode
        # yet.
        if not isinstance(error, UserCodeError) or (numbers and not error.episodes):
            blame(where, error, place, numbers)
