"""Facts about a built environment: spaces, limit, its record in a dataset, and what its wrappers spoil."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import VectorEnv, VectorWrapper

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import space_leaves
from rollout_cli.errors import EnvLoadError
from rollout_cli.keywords import Record

_SKIPS = {"MaxAndSkipEnv": "_skip", "MaxAndSkipObservation": "_skip", "AtariPreprocessing": "frame_skip"}
"""Wrappers that repeat an action, and where they keep how often."""
_LIVES = {"EpisodicLifeEnv", "EpisodicLife"}
_CLIPS = {"ClipRewardEnv", "ClipReward"}
_CLIPPED_HINT = ": build the environment with reward_clipping=False"


class AutoresetMode(Enum):
    """How rows of a vector environment begin anew, in gymnasium's words, which its version 1.0 lacks."""

    DISABLED = "Disabled"
    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"


def env_spec_of(env: Any, max_episode_length: float | None = None) -> EnvSpec:
    """Return the spaces of one row of an environment or vector environment, and the lower of both limits.

    The limits are the environment's and the run's.

    Raises:
        UnsupportedSpaceError: If a space has no fixed set of columns.
    """
    prefix = "single_" if isinstance(env, VectorEnv) else ""
    observation_space = getattr(env, f"{prefix}observation_space")
    action_space = getattr(env, f"{prefix}action_space")
    space_leaves(observation_space)
    space_leaves(action_space)
    return EnvSpec(observation_space, action_space, _lowest(time_limit_of(env), max_episode_length))


def counted_limit(env: Any, max_episode_length: float | None) -> int | None:
    """Return the steps after which a worker truncates an episode: the run's, or those of a bare environment.

    A TimeLimit truncates by itself. A wrapper around it may make more steps of its own, as one whose episodes
    are several of the environment's.
    """
    return _lowest(time_limit_of(env.unwrapped), max_episode_length)


def _lowest(*limits: float | None) -> int | None:
    limit = min(limit or math.inf for limit in limits)
    return None if limit == math.inf else math.ceil(limit)


def time_limit_of(env: Any) -> int | None:
    """Return the steps after which the environment truncates its own episodes; None if no limit is known.

    For an environment it is the lowest of its TimeLimit wrappers and its own spec (one that an EnvSource
    built has no wrapper), for a vector environment that of its constructor, or its attribute
    `max_episode_steps`.
    """
    if isinstance(env, VectorEnv):
        limits = [getattr(env.unwrapped, "max_episode_steps", None)]
        if isinstance(env.spec, GymSpec):
            limits.append(env.spec.kwargs.get("max_episode_steps", env.spec.max_episode_steps))
    else:
        limits = [getattr(env.unwrapped.spec, "max_episode_steps", None)]
        for layer in layers(env):
            if isinstance(layer, gymnasium.wrappers.TimeLimit):
                limits.append(layer._max_episode_steps)  # noqa: SLF001  The limit has no public name.
    return min(
        (int(limit) for limit in limits if isinstance(limit, int | np.integer) and limit > 0), default=None
    )


def describe_env(env: Any) -> Record:
    """Return the record that a dataset keeps of a built environment.

    `id` and `spec_json` are gymnasium's: None where there is no spec, or JSON cannot hold it. `wrappers` are
    class names, the outermost first. `render_fps` is that of the metadata, None where it is no number. A
    vector environment also has `num_envs` and `autoreset_mode`.
    """
    env_id = spec_json = None
    if isinstance(env.spec, GymSpec):
        env_id = env.spec.id
        with contextlib.suppress(TypeError, ValueError):
            spec_json = env.spec.to_json()
    *wrappers, innermost = (f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in layers(env))
    fps = (env.metadata or {}).get("render_fps")
    record: dict[str, Any] = {
        "id": env_id,
        "spec_json": spec_json,
        "class": innermost,
        "wrappers": wrappers,
        "max_episode_length": time_limit_of(env),
        "render_fps": fps if isinstance(fps, int | float) else None,
    }
    if isinstance(env, VectorEnv):
        mode = env.metadata.get("autoreset_mode")
        record |= {"num_envs": int(env.num_envs), "autoreset_mode": getattr(mode, "value", mode)}
    return record


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment or vector environment and what it wraps, the outermost first."""
    yield env
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        env = env.env
        yield env


def stack_warnings(env: Any) -> list[str]:
    """Return one line for each thing that is fit for training and wrong for data, or done twice, in a stack.

    Wrappers are known by the names of their classes: those of gymnasium, of Stable-Baselines3, and others of
    these names.
    """
    stack = [(type(layer).__name__, vars(layer)) for layer in layers(env)]
    if stack[-1][0] == "AtariVectorEnv" and isinstance(env.spec, GymSpec):
        # It is ALE's, which clips rewards by default, and does not say so itself.
        stack[-1] = "AtariVectorEnv", {"reward_clipping": True, **env.spec.kwargs}
    innermost = stack[-1][1]
    skips = []
    for name, attributes in stack:
        # An innermost environment with a `_frameskip` is ALE's.
        attribute = "_frameskip" if attributes is innermost else _SKIPS.get(name, "")
        count = attributes.get(attribute, 1)
        if count != 1:
            skips.append(f"{count} by {name}")
    lines = []
    if len(skips) > 1:
        lines.append(
            f"frames are skipped twice, {' and '.join(skips)}: build the environment with frameskip=1"
        )
    for name, attributes in stack:
        if (
            name in _LIVES
            or attributes.get("terminal_on_life_loss") is True
            or attributes.get("episodic_life") is True
        ):
            lines.append(
                f"{name} ends episodes with each life: that is fit for training, "
                "but the episodes of the data are no whole games"
            )
        if name in _CLIPS or attributes.get("reward_clipping") is True:
            lines.append(
                f"{name} changes rewards: that is fit for training, but the data has no rewards of the game"
                f"{_CLIPPED_HINT if 'reward_clipping' in attributes else ''}"
            )
    return lines


def loaded_modules() -> tuple[str, ...]:
    """Return the top-level modules that this process has loaded, without those of Python itself."""
    names = {name.partition(".")[0] for name in list(sys.modules)}
    return tuple(sorted(names - sys.stdlib_module_names - {"__main__"}))


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return how a row of a vector environment begins anew after its episode's end, by its metadata.

    DISABLED: it is reset from outside, by a mask. NEXT_STEP: the environment resets it in the following step,
    which belongs to no episode. SAME_STEP: the environment resets it in the last step itself, and gives the
    last observation and info beside the new ones.
    """
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(getattr(mode, "value", mode))
    except ValueError as error:
        modes = " or ".join(mode.value for mode in AutoresetMode)
        raise EnvLoadError(
            f"{vector_name(env)} does not say how it resets rows: metadata['autoreset_mode'] is {mode!r}",
            code="env-autoreset",
            hint=f"set it to {modes}; gymnasium's own environments say it from gymnasium 1.1 on",
        ) from error


def vector_name(env: VectorEnv[Any, Any, Any]) -> str:
    """Return the id that a vector environment was made from, else its class."""
    return repr(env.spec.id) if isinstance(env.spec, GymSpec) else type(env).__name__
