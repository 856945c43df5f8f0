"""The environments of MuJoCo Playground, such as `playground:CartpoleBalance`."""

from __future__ import annotations

from typing import Any

from mujoco_playground import registry

from rollout_cli.envs.functional.brax import BraxEnv
from rollout_cli.envs.functional.families import check_name
from rollout_cli.errors import EnvLoadError, misspelt


def make(name: str, **kwargs: Any) -> BraxEnv:
    """Return an environment of MuJoCo Playground, which has the interface of brax.

    Args:
        name: A name of `registry.ALL_ENVS`.
        kwargs: Fields of its config, such as `episode_length` and `impl`.
    """
    check_name("playground", name, registry.ALL_ENVS)
    config = registry.get_default_config(name)
    for key in kwargs:
        if key.partition(".")[0] not in config:
            raise EnvLoadError(
                f"'playground:{name}' has no argument {key!r}",
                code="env-argument",
                hint=misspelt(key, config) or f"use one of: {', '.join(config)}",
            )
    env = registry.load(name, config=config, config_overrides=kwargs)  # It changes `config`.
    return BraxEnv(env, config.episode_length)
