"""Recorder and VectorRecorder: wrappers that record the episodes of a program's own loop as a dataset."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from rollout_cli.envs.describe import AutoresetMode, describe_env, env_spec_of
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import SpaceRows, map_tree
from rollout_cli.errors import ArgumentError
from rollout_cli.recording.writer import Writer
from rollout_cli.workers.batches import flag_batch, infos_of_rows, reward_batch
from rollout_cli.workers.checks import (
    RESET_RESULT,
    STEP_RESULT,
    BadValueError,
    as_flag,
    as_reward,
    blame,
    copied,
    frozen_copy,
)
from rollout_cli.workers.native.rows import NativeRows
from rollout_cli.workers.rows.recording import EpisodeRecorder

_clock = time.perf_counter
_LARGEST_SEED = 1 << 63  # The column of seeds has 64 bits; gymnasium takes any int.


class RecordingWriter(Writer):
    """The writer of one or more recorders; `options` are those of `Writer`, without spaces and `env`."""

    _kind = "recorded"

    def __init__(self, env: Any, path: str | Path, **options: Any) -> None:
        self._built = describe_env(env)
        self.spec = env_spec_of(env)
        super().__init__(
            path,
            observation_space=self.spec.observation_space,
            action_space=self.spec.action_space,
            max_episode_length=self.spec.max_episode_length,
            env=self._built["id"] or self._built["class"],
            **options,
        )

    def _source(self, *, are_inferred: bool) -> dict[str, Any]:
        return {**super()._source(are_inferred=are_inferred), "env": {**self._built, "kwargs": {}}}

    @classmethod
    def of(
        cls, env: Any, target: str | Path | RecordingWriter, options: Mapping[str, Any]
    ) -> RecordingWriter:
        """Return the writer for an environment: a new one for a path, or that of another recorder.

        Raises:
            ArgumentError: If the environment has other spaces than those of the other recorder.
        """
        if isinstance(target, Writer) and not isinstance(target, RecordingWriter):
            raise ArgumentError(
                "the recorder was given a Writer, expected a path or the `writer` of another recorder",
                code="recorder-writer",
                hint="pass the path of the dataset",
            )
        if not isinstance(target, RecordingWriter):
            return cls(env, target, **options)
        if (spec := env_spec_of(env)) != target.spec:
            raise ArgumentError(
                f"the spaces and time limit of {env} are {spec}, expected those of the writer, {target.spec}",
                code="recorder-spaces",
                hint="use another path for another environment",
            )
        return target


class _Row:
    """The running episode of one environment, or of one row of a vector environment."""

    def __init__(self, spec: EnvSpec, writer: RecordingWriter) -> None:
        self._episode = EpisodeRecorder(spec, "warn")
        self._writer = writer
        self._seed = -1
        self._started_at = 0.0
        self._action: Any = None
        self.is_running = False

    def begin(self, observation: Any, info: Any, seed: int | None) -> None:
        """Begin an episode; a running one is cut."""
        self.cut()
        is_known = seed is not None and seed < _LARGEST_SEED
        self._seed = int(seed) if is_known else -1  # type: ignore[arg-type]
        self._started_at = _clock()
        try:
            self._episode.reset_info = frozen_copy(info)
            self._episode.observations.record(observation)
        except BadValueError as error:
            self._blame(RESET_RESULT, error)
            raise
        self.is_running = True

    def act(self, action: Any) -> None:
        """Keep a copy of an action before the environment takes it, since the environment may change it."""
        self._action = map_tree(copied, action)

    def step(self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Record a step and its action, and end the episode if a flag is set."""
        episode = self._episode
        try:
            episode.actions.record(self._action)
            if info:
                episode.env_infos[len(episode.rewards)] = frozen_copy(info)
            episode.observations.record(observation)
            flags = (as_flag("terminated", terminated), as_flag("truncated", truncated))
            episode.rewards.append(as_reward(reward))
        except BadValueError as error:
            self._blame(STEP_RESULT, error)
            raise
        if any(flags):
            self._end(flags)

    def cut(self) -> None:
        """End a running episode as truncated, and count it; an episode without a step is forgotten."""
        if self.is_running and len(self._episode.rewards):
            self._writer.count_cut()
            self._end((False, True))
        self._drop()

    def _drop(self) -> None:
        self._episode.clear()
        self.is_running = False

    def _end(self, flags: tuple[bool, bool]) -> None:
        self.is_running = False
        times = (self._started_at, _clock())
        ended = self._episode.end(self._writer.next_number, self._seed, flags, times)
        self._writer.write_chunk(self._episode.chunk([ended], 0))

    def _blame(self, where: str, error: BadValueError) -> None:
        n_steps = len(self._episode.rewards)
        self._drop()
        blame(where, error, f"recorded episode {self._writer.next_number}, step {n_steps}")


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records every episode of an environment to a dataset, as `collect` does, while any program steps it.

    An episode that the program cuts, by `reset` or `close` before its end, is recorded as truncated and counted
    as `cut` in info.json. Several environments of one process share a dataset: pass the `writer` of the first
    recorder to the others. Call `close`, or use the recorder as a context manager; until then, episodes are
    committed every `flush_every` seconds.

    Args:
        env: The environment. Wrap it last: the recorder records what the program sees.
        path: Folder or URI of the dataset, or the `writer` of another recorder.
        options: As in `Writer`, without spaces and `env`: `policy`, `resume`, `overwrite`, `flush_every`, ….

    Attributes:
        writer: The writer of the dataset.

    Raises:
        ArgumentError: If `env` is a vector environment, or has other spaces than the writer.
        EnvError: From `reset` and `step`, if the environment returns what cannot be recorded.
        DatasetExistsError: If the folder may not be replaced.
        StorageError: From any method, if a disk operation fails.

    Example:
        >>> import gymnasium
        >>> with rollout_cli.Recorder(gymnasium.make("CartPole-v1"), "recorded") as env:
        ...     _ = env.reset(seed=1)
        ...     while not any(env.step(0)[2:4]):
        ...         pass
        >>> rollout_cli.load("recorded")[0].seed
        1
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
        path: str | Path | RecordingWriter,
        **options: Any,
    ) -> None:
        if isinstance(env, VectorEnv):
            raise ArgumentError(
                f"{env} is a vector environment, expected a gymnasium.Env",
                code="recorder-env",
                hint="use rollout_cli.VectorRecorder",
            )
        super().__init__(env)
        self.writer = RecordingWriter.of(env, path, options)
        self._owns_writer = self.writer is not path
        self._row = _Row(self.writer.spec, self.writer)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Cut a running episode, reset the environment, and record the observation and the info."""
        self._row.cut()
        observation, info = self.env.reset(seed=seed, options=options)
        self._row.begin(observation, info, seed)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and record the action and the result."""
        if not self._row.is_running:  # After the end of an episode, or before the first reset.
            return self.env.step(action)
        self._row.act(action)
        result = self.env.step(action)
        self._row.step(*result)
        return result

    def close(self) -> None:
        """Cut a running episode, close the environment, and complete the dataset, unless its writer is shared."""
        self._end(None, None, None)

    def __exit__(self, *error: object) -> Literal[False]:
        self._end(*error)
        return False

    def _end(self, *error: Any) -> None:
        try:
            self._row.cut()
            self.env.close()
        finally:
            if self._owns_writer:
                self.writer.__exit__(*error)


class VectorRecorder(VectorWrapper):
    """Records every episode of a vector environment, in any autoreset mode; see `Recorder`.

    Episodes are numbered in the order in which they end. The step in which an environment with the mode
    NEXT_STEP resets a row belongs to no episode. Seeds are recorded where `reset` gets one for each row, or an
    int for a SyncVectorEnv or AsyncVectorEnv.

    Args:
        env: The vector environment.
        path: Folder or URI of the dataset, or the `writer` of another recorder.
        options: As in `Writer`, without spaces and `env`.

    Attributes:
        writer: The writer of the dataset.

    Raises:
        ArgumentError: If the environment has other spaces than the writer.
        EnvLoadError: If the metadata of the environment lack its autoreset mode.
        EnvError: From `reset` and `step`, if the environment returns what cannot be recorded.
        DatasetExistsError: If the folder may not be replaced.
        StorageError: From any method, if a disk operation fails.

    Example:
        >>> import gymnasium, numpy as np
        >>> env = rollout_cli.VectorRecorder(gymnasium.make_vec("CartPole-v1", num_envs=2), "rows")
        >>> _ = env.reset(seed=1)
        >>> for _ in range(30):
        ...     _ = env.step(np.array([0, 1]))
        >>> env.close()
        >>> rollout_cli.verify("rows").faults
        []
    """

    def __init__(self, env: Any, path: str | Path | RecordingWriter, **options: Any) -> None:
        # gymnasium closes a vector environment that is deleted, even one whose constructor raised.
        self._rows: list[_Row] = []
        self._owns_writer = False
        super().__init__(env)
        self._native = NativeRows(env, env.num_envs, 0)
        self.writer = RecordingWriter.of(env, path, options)
        self._owns_writer = self.writer is not path
        self._rows = [_Row(self.writer.spec, self.writer) for _ in range(env.num_envs)]
        self._observations = SpaceRows(self.writer.spec.observation_space)
        self._actions = SpaceRows(self.writer.spec.action_space)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Cut the running episodes of the rows that are reset (`options["reset_mask"]`), and reset them."""
        mask = np.ones(self.num_envs, bool)
        if options and "reset_mask" in options:
            mask = np.array(options["reset_mask"], bool)  # A copy: gymnasium removes it from the options.
        rows = np.flatnonzero(mask).tolist()
        for row in rows:
            self._rows[row].cut()
        result = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        observations, infos = result
        self._begin(rows, observations, infos, self._seeds(seed))
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the rows, and record the actions and results of those that run an episode."""
        running = [place for place, row in enumerate(self._rows) if row.is_running]
        samples = self._actions.split(actions)
        for place in running:
            self._rows[place].act(samples[place])
        result = self.env.step(actions)
        observations, rewards, terminated, truncated, infos = result
        rewards = reward_batch(rewards, self.num_envs)
        flags = (
            flag_batch("terminated", terminated, self.num_envs),
            flag_batch("truncated", truncated, self.num_envs),
        )
        is_over = flags[0] | flags[1]
        seen = self._observations.split(observations)
        last = seen
        step_infos = infos_of_rows(infos, [*range(self.num_envs)], self.num_envs)
        mode = self._native.mode
        if mode is AutoresetMode.SAME_STEP and is_over.any():
            last, step_infos, infos = self._final(infos, seen, is_over)
        for place in running:
            info = step_infos[place] if step_infos else None
            self._rows[place].step(last[place], rewards[place], flags[0][place], flags[1][place], info)
        begun: list[int] = []
        if mode is AutoresetMode.NEXT_STEP:
            begun = [place for place in range(self.num_envs) if place not in running]
        elif mode is AutoresetMode.SAME_STEP:
            begun = np.flatnonzero(is_over).tolist()
        self._begin(begun, observations, infos, None)
        return result

    def close(self, **kwargs: Any) -> None:
        """Cut the running episodes, close the environment, and complete the dataset, unless it is shared."""
        try:
            for row in self._rows:
                row.cut()
            self.env.close(**kwargs)
        finally:
            if self._owns_writer:
                self.writer.close()

    def _begin(
        self, rows: list[int], observations: Any, infos: Any, seeds: Sequence[int | None] | None
    ) -> None:
        """Begin episodes in `rows`; `observations` are of all rows."""
        if not rows:
            return
        seen = self._observations.split(observations)
        reset_infos = infos_of_rows(infos, rows, self.num_envs)
        for place, row in enumerate(rows):
            info = reset_infos[place] if reset_infos else {}
            self._rows[row].begin(seen[row], info, None if seeds is None else seeds[row])

    def _final(
        self, infos: Mapping[Any, Any], seen: list[Any], is_over: Any
    ) -> tuple[list[Any], list[dict[Any, Any]], dict[Any, Any]]:
        """Return a SAME_STEP step's observations and infos of each row's running episode, and the new infos."""
        final, ended_infos, new_infos = self._native.final_infos(infos)
        every = [*range(self.num_envs)]
        step_infos = infos_of_rows(new_infos, every, self.num_envs) or [{} for _ in every]
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            final = self._observations.split(final)
        last = list(seen)
        for row in np.flatnonzero(is_over).tolist():
            last[row] = final[row]
            step_infos[row] = {}
        for part in ended_infos:
            for row, info in enumerate(infos_of_rows(part, every, self.num_envs) or ()):
                if is_over[row]:
                    step_infos[row] |= info
        return last, step_infos, new_infos

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None] | None:
        """Return the seed of each row, if it is known."""
        if seed is None or isinstance(seed, Sequence | np.ndarray):
            return seed
        if isinstance(self.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            return [seed + row for row in range(self.num_envs)]
        return None
