"""Facts about a built environment: spaces, time limit, record in info.json, and warnings about wrappers."""

from __future__ import annotations

import contextlib
import math
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
"""Wrappers that repeat actions, and their attribute with the number of repeats."""
_LIVES = {"EpisodicLifeEnv", "EpisodicLife"}
_CLIPS = {"ClipRewardEnv", "ClipReward"}
_CLIPPED_HINT = ": build the environment with reward_clipping=False"


class AutoresetMode(Enum):
    """The autoreset modes of vector environments, with gymnasium's names; gymnasium 1.0 lacks this enum."""

    DISABLED = "Disabled"
    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"


def env_spec_of(env: Any, max_episode_length: float | None = None) -> EnvSpec:
    """Return the spaces of an environment or of one row of a vector environment, and the time limit.

    The time limit is the minimum of the environment's limit and `max_episode_length`.

    Raises:
        UnsupportedSpaceError: A space does not have a fixed number of columns.
    """
    prefix = "single_" if isinstance(env, VectorEnv) else ""
    observation_space = getattr(env, f"{prefix}observation_space")
    action_space = getattr(env, f"{prefix}action_space")
    space_leaves(observation_space)
    space_leaves(action_space)
    return EnvSpec(observation_space, action_space, _lowest(time_limit_of(env), max_episode_length))


def counted_limit(env: Any, max_episode_length: float | None) -> int | None:
    """Return the number of steps after which a worker truncates an episode; None if it does not.

    The limit is the minimum of `max_episode_length` and the limit of the unwrapped environment. A TimeLimit
    wrapper truncates by itself and does not count: an episode of its outer wrappers may be longer.
    """
    return _lowest(time_limit_of(env.unwrapped), max_episode_length)


def _lowest(*limits: float | None) -> int | None:
    limit = min(limit or math.inf for limit in limits)
    return None if limit == math.inf else math.ceil(limit)


def time_limit_of(env: Any) -> int | None:
    """Return the number of steps after which the environment truncates episodes; None if no limit is known.

    For an environment, it is the minimum of the limits of its TimeLimit wrappers and of its spec. For a vector
    environment, it is the minimum of the limits of its spec and its attribute `max_episode_steps`.
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
    """Return the record of a built environment in info.json.

    `id` and `spec_json` come from gymnasium; they are None if there is no spec or it is not serializable.
    `wrappers` are class names, outermost first. `render_fps` comes from the metadata; it is None if it is not
    a number. A vector environment also has `num_envs` and `autoreset_mode`.
    """
    env_id = spec_json = None
    if isinstance(env.spec, GymSpec):
        env_id = env.spec.id
        with contextlib.suppress(TypeError, ValueError):
            spec_json = env.spec.to_json()
    # The record of a JAX environment leaves out its rows, which decide only which program runs.
    functional = getattr(env, "functional", None) if isinstance(env, VectorEnv) else None
    described = layers(env) if functional is None else [functional]
    *wrappers, innermost = (f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in described)
    fps = (env.metadata or {}).get("render_fps")
    record: dict[str, Any] = {
        "id": env_id,
        "spec_json": spec_json,
        "class": innermost,
        "wrappers": wrappers,
        "max_episode_length": time_limit_of(env),
        "render_fps": fps if isinstance(fps, int | float) else None,
    }
    if isinstance(env, VectorEnv) and functional is None:
        mode = env.metadata.get("autoreset_mode")
        record |= {"num_envs": int(env.num_envs), "autoreset_mode": getattr(mode, "value", mode)}
    return record


def task_of(env: Any) -> str | None:
    """Return the environment's description of its task: the string `task_description`, or else `task`; or None.

    Robot environments have them, such as those of LIBERO and Meta-World; the attribute may change at each reset.
    """
    for name in ("task_description", "task"):
        for layer in layers(env):
            if isinstance(task := getattr(layer, name, None), str):
                return task
    return None


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment or vector environment and its inner environments, outermost first."""
    yield env
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        env = env.env
        yield env


def stack_warnings(env: Any) -> list[str]:
    """Return a warning for each wrapper that suits training but falsifies data, and for repeated frame skips.

    Wrappers are recognized by class name, such as the wrappers of gymnasium and Stable-Baselines3.
    """
    stack = [(type(layer).__name__, vars(layer)) for layer in layers(env)]
    if stack[-1][0] == "AtariVectorEnv" and isinstance(env.spec, GymSpec):
        # ALE's vector environment clips rewards by default, without an attribute that shows it.
        stack[-1] = "AtariVectorEnv", {"reward_clipping": True, **env.spec.kwargs}
    innermost = stack[-1][1]
    skips = []
    for name, attributes in stack:
        # An innermost environment with `_frameskip` is from ALE.
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
                f"{name} ends episodes at each lost life: this suits training, "
                "but the episodes of the dataset are not complete games"
            )
        if name in _CLIPS or attributes.get("reward_clipping") is True:
            lines.append(
                f"{name} changes rewards: this suits training, but the dataset lacks the rewards of the game"
                f"{_CLIPPED_HINT if 'reward_clipping' in attributes else ''}"
            )
    return lines


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode of a vector environment, from its metadata.

    DISABLED: the caller resets rows by a mask. NEXT_STEP: the environment resets a row in the step after the
    last one; that step does not belong to an episode. SAME_STEP: the environment resets a row in the last
    step, and returns the final observation and info in addition to the new ones.

    Raises:
        EnvLoadError: The metadata has no valid mode.
    """
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(getattr(mode, "value", mode))
    except ValueError as error:
        modes = " or ".join(mode.value for mode in AutoresetMode)
        raise EnvLoadError(
            f"expected an AutoresetMode in metadata['autoreset_mode'] of {vector_name(env)}, got {mode!r}",
            code="env-autoreset",
            hint=f"set it to {modes}; gymnasium's environments set it since gymnasium 1.1",
        ) from error


def vector_name(env: VectorEnv[Any, Any, Any]) -> str:
    """Return the id of a vector environment, or the name of its class."""
    return repr(env.spec.id) if isinstance(env.spec, GymSpec) else type(env).__name__
