"""Rendering an episode to video, from stored images, or in the environment: from states or by its actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.dataset.folder import staged
from rollout_cli.dataset.layout import root_seed_of
from rollout_cli.dataset.reader import Dataset, Episode
from rollout_cli.dataset.record import RunRecord
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.states import stored_states
from rollout_cli.dataset.tables import stored_form
from rollout_cli.envs.building import Env
from rollout_cli.envs.describe import env_spec_of
from rollout_cli.envs.functional.protocol import FunctionalEnv
from rollout_cli.envs.source import EnvSource
from rollout_cli.envs.state import state_setter
from rollout_cli.envs.updates import close_env
from rollout_cli.episodes.chunk import concatenate
from rollout_cli.episodes.spaces import Array, SpaceRows
from rollout_cli.errors import EnvError, EnvLoadError
from rollout_cli.keywords import Keywords
from rollout_cli.options.config import CollectConfig
from rollout_cli.reports.frames import as_frame, check_video, image_column, video_writer
from rollout_cli.run import provenance
from rollout_cli.run.compare import Difference, first_difference
from rollout_cli.run.request import env_of
from rollout_cli.run.trust import check_trusted
from rollout_cli.seeding.seeds import SETUP, BorrowedGenerators, seed_globals
from rollout_cli.sources.loading import reporting
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.kinds import DefaultWorker
from rollout_cli.workers.values import EpisodeRules

STORED = "stored observations"
STATES = "stored states"
AGAIN = "recorded actions, run again"
_FPS = 30.0
_COMPARED = ("observation", "last_observation", "length")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A video of one episode.

    Attributes:
        path: The file, or the folder of PNG files.
        frames: Number of frames: the steps of the episode plus one.
        size: Width and height of a frame in pixels.
        fps: Frames per second.
        origin: The source of the frames: `STORED`, `STATES` or `AGAIN`.
        difference: The first difference between the replayed and the stored episode; None if identical, or if
            the actions were not replayed.
    """

    path: Path
    frames: int
    size: tuple[int, int]
    fps: float
    origin: str
    difference: Difference | None


def render(
    dataset: Dataset,
    place: int,
    path: Path,
    *,
    fps: float | None = None,
    again: bool = False,
    env_kwargs: Keywords | None = None,
    trust: bool = False,
) -> Rendered:
    """Write a video of an episode: a GIF, an MP4, or a folder of PNG files.

    If observations are images, the video shows them. Otherwise the recorded environment is built in this
    process, and gets the states of `store_state`, or replays the recorded actions, without the policy.

    Args:
        dataset: The dataset.
        place: Index of the episode in the dataset.
        path: File or folder to write; it must not exist.
        fps: Frames per second; by default the environment's `render_fps`, or 30.
        again: Whether to replay the actions even if observations are images or states are stored.
        env_kwargs: Secret arguments of the environment, which the dataset does not record.
        trust: Whether the dataset may name an environment that runs arbitrary code.

    Raises:
        RolloutError: If `path` exists or has an unknown suffix, a package is missing, or the environment
            cannot be loaded, raises, or renders no image.
    """
    check_video(path)
    episode = dataset[place]
    column = None if again else image_column(dataset)
    sizes = list[tuple[int, int]]()
    difference: Difference | None = None
    env = None if column is not None else _rendering_env(dataset, episode, env_kwargs or {}, trust=trust)
    states = None
    if env is not None and not again:
        states = stored_states(dataset.info["sources"][episode.source], episode.batch)
    origin = AGAIN if states is None else STATES
    rate = fps or float((env.metadata.get("render_fps") if env is not None else None) or _FPS)
    try:
        with staged(path) as video, video_writer(video, rate) as write:

            def add(frame: Array) -> None:
                sizes.append((frame.shape[1], frame.shape[0]))
                write(frame)

            if env is not None:
                difference = _run_env(dataset, episode, env, states, add)
            else:
                _show_stored(dataset, episode, column, add)
    finally:
        close_env(env)
    return Rendered(path, len(sizes), sizes[0], rate, STORED if env is None else origin, difference)


def _show_stored(dataset: Dataset, episode: Episode, column: Any, add: Callable[[Array], None]) -> None:
    place = dataset.rows.spaces.observation.index(column)
    rows = SpaceRows(dataset.env_spec.observation_space)
    for tree in (episode.observations, episode.last_observation):
        for image in rows.columns(tree)[place].reshape(-1, *column.leaf.shape):
            add(as_frame(image))


def _rendering_env(dataset: Dataset, episode: Episode, env_kwargs: Keywords, *, trust: bool) -> Env:
    """Build the environment of an episode's run with `render_mode="rgb_array"`, and return it."""
    record = dataset.info["sources"][episode.source]
    values = provenance.recorded_values(record)
    # Rendering needs no policy and no check.
    values |= {"policy": "random", "policy_sha256": None, "require_reproducible": False}
    values["env_kwargs"] = {**values.get("env_kwargs", {}), **env_kwargs}
    config = CollectConfig(**values)
    provenance.check_nothing_cut(config)
    if not trust:
        check_trusted(dataset.path, config)
    source = env_of(config)
    provenance.check_env_file(record, source)
    # An environment object takes no arguments, and keeps its render mode.
    if not isinstance(source.resolve(), gymnasium.Env):
        source.kwargs["render_mode"] = "rgb_array"
    try:
        env = _built(source, record)
    except EnvLoadError as error:
        if "'render_mode'" not in error.message:
            raise
        del source.kwargs["render_mode"]
        env = _built(source, record)
        if isinstance(env, gymnasium.Env):
            raise EnvLoadError(
                f"the environment cannot be rendered: {error.message}",
                code="env-no-rendering",
                hint='accept render_mode="rgb_array", and return an image from render()',
            ) from error
    if not isinstance(env, gymnasium.Env):
        if not hasattr(env, "render"):
            raise EnvLoadError(
                f"{source.label} is a JAX environment without a method render(state)",
                code="env-no-rendering",
                hint="add render(state) to the FunctionalEnv, which returns uint8[height, width, 3]",
            )
        from rollout_cli.envs.functional.vector import (  # noqa: PLC0415 - it loads JAX
            FunctionalGymEnv,
            FunctionalVectorEnv,
        )

        env = FunctionalGymEnv(FunctionalVectorEnv(env, 1))
    if SpaceSchema.of(env_spec_of(env)).describe() != dataset.info["spaces"]:
        close_env(env)
        raise EnvLoadError(
            f"the spaces of the environment differ from those of {dataset.path}",
            code="env-spaces",
            hint="restore the environment's code and packages that the run used",
        )
    return env


def _run_env(
    dataset: Dataset, episode: Episode, env: Env, states: Array | None, add: Callable[[Array], None]
) -> Difference | None:
    """Reset the environment by the episode's seeds, and restore these states; without states, replay the actions.

    Return the first difference of a replayed episode from the stored one, if any.
    """
    source = dataset.info["sources"][episode.source]
    root = root_seed_of(source)
    number = episode.number
    values = provenance.recorded_values(source)
    actions = iter(SpaceRows(dataset.env_spec.action_space).split(episode.actions))
    with BorrowedGenerators():
        rules = EpisodeRules(
            invalid_action="warn",
            reset_options=values.get("reset_options", {}),
            tasks=values.get("tasks", ()),
        )
        worker = DefaultWorker.in_context(
            WorkerContext(rules), seed=root, max_episode_length=len(episode), worker_number=0
        )
        worker.update_agent(lambda _: next(actions))
        worker.update_env(env)
        worker.assign([range(number, number + 1)])
        worker.start_episode()
        if states is not None:
            restore = state_setter(env)
            for state in states:
                restore(state)
                add(_rendered(env))
            return None
        add(_rendered(env))
        while not worker.step_episode():
            add(_rendered(env))
        add(_rendered(env))
        chunk = concatenate(worker.take(everything=True))
    compared = _COMPARED if provenance.is_relabelled(dataset.info) else (*_COMPARED, "reward")
    return first_difference(
        episode.batch, stored_form(chunk, dataset.env_spec, dataset.info["features"]), only=compared
    )


def _built(source: EnvSource, record: RunRecord) -> Env | FunctionalEnv:
    """Build an environment; the global generators are seeded as the worker did before it built its own."""
    with BorrowedGenerators():
        seed_globals(root_seed_of(record), SETUP)
        return source.build()


def _rendered(env: Env) -> Array:
    with reporting(EnvError, "env.render raised", code="env-raised"):
        image = np.asarray(env.render())
    if image.ndim != 3 or image.dtype != np.uint8:  # noqa: PLR2004 - height, width, colors
        raise EnvError(
            f"env.render returned {image.dtype}{list(image.shape)}, expected uint8[height, width, 3]",
            code="env-no-image",
            hint='use an environment that returns images in render_mode="rgb_array"',
        )
    return as_frame(image)
