"""FunctionalVectorEnv, a FunctionalEnv as a vector environment, for policies that act on the host."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from rollout_cli.envs.describe import AutoresetMode
from rollout_cli.envs.functional.protocol import FunctionalEnv, check_attributes
from rollout_cli.envs.functional.rows import compiled, next_row, no_rows, restarted
from rollout_cli.episodes.spaces import Array, Tree
from rollout_cli.errors import UsageError


class FunctionalVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps n rows of a FunctionalEnv in one compiled call; the caller resets rows by a mask.

    Args:
        env: The environment.
        num_envs: Number of rows.

    Attributes:
        functional: The argument `env`, which the record in info.json describes.
        is_compiled: Whether `compile_step` was called.
    """

    def __init__(self, env: FunctionalEnv, num_envs: int) -> None:
        self.functional = env
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.max_episode_steps = limit = check_attributes(env)
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, num_envs)
        self.action_space = batch_space(env.action_space, num_envs)
        self._rows: Any = None

        def step(rows: Any, actions: Any) -> Any:
            return jax.vmap(lambda row, action: next_row(env, row, lambda *_: (action, {}), limit))(
                rows, actions
            )

        self._reset = compiled(partial(restarted, env))
        self._step = compiled(step)
        self.is_compiled = False

    @property
    def state(self) -> Any:
        """The states of all rows."""
        return self._rows.state

    def compile_reset(self) -> None:
        """Compile the program of `reset`, without running it."""
        mask = np.zeros(self.num_envs, bool)
        self._reset.lower(no_rows(self.functional, self.num_envs), mask, mask.astype(np.uint32)).compile()

    def compile_step(self) -> None:
        """Compile the program of `step`, without running it."""
        actions = create_empty_array(self.single_action_space, self.num_envs)
        self._step.lower(no_rows(self.functional, self.num_envs), actions).compile()
        self.is_compiled = True

    def reset(
        self, *, seed: Sequence[int] | int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """Reset the rows of `options["reset_mask"]`, or all rows; `seed` has one seed for each of all rows."""
        if seed is None or isinstance(seed, int):
            first = int(np.random.default_rng(seed).integers(1 << 31))
            seed = range(first, first + self.num_envs)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if self._rows is None:
            self._rows = no_rows(self.functional, self.num_envs)
        self._rows = rows = self._reset(self._rows, mask, np.array(seed, np.uint32))
        return _on_host(rows.observation), {}

    def step(self, actions: Tree) -> tuple[Tree, Array, Array, Array, dict[str, Any]]:
        rows, step = self._step(self._rows, actions)
        self._rows = rows
        step = _on_host(step)
        return _on_host(rows.observation), step.reward, step.terminated, step.truncated, step.env_infos


class FunctionalGymEnv(gymnasium.Env[Any, Any]):
    """One row of a FunctionalEnv as a gymnasium environment, for policies that act on one observation.

    Args:
        rows: The environment with one row; only its compiled functions are shared.
    """

    def __init__(self, rows: FunctionalVectorEnv) -> None:
        self.observation_space = rows.single_observation_space
        self.action_space = rows.single_action_space
        self._rows = copy.copy(rows)

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> tuple[Tree, dict[str, Any]]:
        observations, infos = self._rows.reset(seed=None if seed is None else [seed])
        return _first(observations), infos

    def render(self) -> Any:
        """Return the image of the state by `render(state)` of the FunctionalEnv."""
        drawn: Any = self._rows.functional
        return np.asarray(drawn.render(_first(self._rows.state)))

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        actions = jax.tree.map(lambda value: np.asarray(value)[None], action)
        observation, reward, terminated, truncated, info = _first(self._rows.step(actions))
        return observation, reward, terminated, truncated, info


def _first(tree: Any) -> Any:
    """Return a copy of the first row of a tree of arrays (n, ...), which the policy may change."""
    return jax.tree.map(lambda values: values[0].copy(), tree)


def _on_host(tree: Any) -> Any:
    """Return a tree of arrays as numpy arrays."""
    return jax.tree.map(np.asarray, tree)


def use_device(kind: str) -> None:
    """Run all programs of this process on a device of this kind; UsageError if JAX has none."""
    try:
        device = jax.devices(kind)[0]
    except RuntimeError as error:
        raise UsageError(
            f"JAX has no device {kind!r} in this process, only {jax.default_backend()!r}",
            code="env-device",
            hint="omit {device}, or install JAX for it, for example: pip install 'jax[cuda13]'",
        ) from error
    update: Any = jax.config.update
    update("jax_default_device", device)
