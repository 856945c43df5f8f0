"""Policies for several rows at once, and environments for them, each with one trait to test."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.policies.rows import SpaceRows, stack_samples
from rollout_cli.spaces import flatten
from tests.support.envs import ChainEnv
from tests.support.policies import observed

Array = npt.NDArray[Any]

TABLE_ROWS = 16


class AlonePolicy:
    """Has `get_action` alone, which looks the action up in a table, for any space; others change `place`."""

    def __init__(self, env_spec: EnvSpec) -> None:
        own = deepcopy(env_spec.action_space)  # The environment's own space must not be drawn from.
        own.seed(5)
        self.table = [own.sample() for _ in range(TABLE_ROWS)]

    def place(self, observation: Any) -> float:
        return observed(observation)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        place = int(self.place(observation) * TABLE_ROWS)
        return self.table[place], {"place": place, "half": np.float32(place / 2)}


class CountingPolicy(AlonePolicy):
    """Remembers how many steps it has taken since its reset."""

    count = 0

    def reset(self) -> None:
        self.count = 0

    def place(self, observation: Any) -> float:
        self.count += 1
        return (observed(observation) + 0.37 * self.count) % 1.0


class OwnDrawPolicy(AlonePolicy):
    """Draws from a generator of its own."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self.rng = np.random.default_rng()

    def place(self, observation: Any) -> float:
        return float(self.rng.random())


class SeededPolicy(AlonePolicy):
    """Draws from a generator that its own `seed` makes, out of reach of any search."""

    __slots__ = ("_draw",)

    def seed(self, seed: int) -> None:
        self._draw = iter(random.Random(seed).random, None)

    def place(self, observation: Any) -> float:
        return next(self._draw)


class GlobalDrawPolicy(AlonePolicy):
    """Draws from both global generators."""

    def place(self, observation: Any) -> float:
        return (random.random() + float(np.random.random())) % 1.0


class SpaceDrawPolicy(AlonePolicy):
    """Draws from the action space that it was given."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self.space = env_spec.action_space

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.space.sample(), {}


class TablePolicy(AlonePolicy):
    """The table for any number of rows, with garage's whole protocol."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self.spec = env_spec

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        rows = SpaceRows(self.spec.observation_space).take(observations)
        actions, infos = zip(*(self.get_action(row) for row in rows), strict=True)
        return stack_samples(self.spec.action_space, actions), {
            key: np.array([info[key] for info in infos]) for key in infos[0]
        }

    def reset(self, do_resets: Array | None = None) -> None:
        pass

    def get_param_values(self) -> dict[str, Any]:
        return {}

    def set_param_values(self, params: dict[str, Any]) -> None:
        self.table[:] = [params["action"]] * TABLE_ROWS


def call_table(env_spec: EnvSpec) -> Any:
    """Return a plain callable that looks its action up."""
    return _called(AlonePolicy(env_spec))


def _called(policy: AlonePolicy) -> Any:
    def act(observation: Any) -> Any:
        return policy.get_action(observation)

    return act


class MlpPolicy:
    """A float32 network of two layers for Box observations and actions, which acts on all rows in one product."""

    def __init__(self, env_spec: EnvSpec) -> None:
        self.spec = env_spec
        rng = np.random.default_rng(1)
        sizes = [_size(env_spec.observation_space), 64, 64, _size(env_spec.action_space)]
        self.weights = [rng.standard_normal(pair).astype(np.float32) for pair in pairwise(sizes)]

    def get_actions(self, observations: Array) -> tuple[Array, dict[str, Any]]:
        hidden = np.asarray(observations, np.float32).reshape(len(observations), -1)
        for weights in self.weights[:-1]:
            hidden = np.tanh(hidden @ weights / np.float32(4))
        action = np.tanh(hidden @ self.weights[-1] / np.float32(8))
        assert isinstance(self.spec.action_space, spaces.Box)
        return action.reshape(len(observations), *self.spec.action_space.shape), {}


def _size(space: spaces.Space[Any]) -> int:
    assert isinstance(space, spaces.Box)
    return int(np.prod(space.shape))


class LoggingPolicy(TablePolicy):
    """Writes down how it is called: ("seed_rows", mask, seeds), ("reset", mask), ("act", columns that were seen).

    Afterwards it overwrites the columns.
    """

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self.calls: list[tuple[Any, ...]] = []

    def seed_rows(self, mask: Array, seeds: Array) -> None:
        self.calls.append(("seed_rows", mask.tolist(), seeds.tolist()))

    def reset(self, do_resets: Array | None = None) -> None:
        assert do_resets is not None
        self.calls.append(("reset", do_resets.tolist()))

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        columns = flatten(self.spec.observation_space, observations)
        self.calls.append(("act", [column.tolist() for column in columns]))
        result = super().get_actions(observations)
        for column in columns:
            column[...] = "overwritten" if column.dtype == object else 9
        return result


class RowEnv(ChainEnv):
    """Tells in its infos which environment it is; counts its resets.

    Args:
        tag: Which it is.
        length: Steps of every episode; None draws odd lengths as ChainEnv does.
        ends: Which flag the last step sets.
    """

    def __init__(self, tag: int = 0, length: int | None = None, ends: Any = "terminated") -> None:
        super().__init__(ends)
        self.tag = tag
        self.resets = 0
        self._fixed_length = length

    def draw_length(self) -> int:
        return super().draw_length() if self._fixed_length is None else self._fixed_length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "tag": self.tag}


class GlobalDrawEnv(RowEnv):
    """Draws its noise from a global generator, from a given step of an episode on.

    Args:
        length: As in RowEnv.
        from_step: The first step that draws.
        only_seeds: In episodes with these seeds alone; None for all.
    """

    def __init__(
        self, length: int | None = None, from_step: int = 0, only_seeds: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(length=length)
        self._from_step = from_step
        self._only_seeds = only_seeds
        self._draws = False

    def draw(self) -> float:
        return float(np.random.random())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._draws = self._only_seeds is None or seed in self._only_seeds
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        observation = super().observe()
        if self._draws and self._position >= self._from_step:
            observation[2] = self.draw()
        return observation


class PythonDrawEnv(GlobalDrawEnv):
    """Draws from Python's generator, two numbers at a time."""

    def draw(self) -> float:
        return random.gauss(0.0, 1.0)


class ClassDrawEnv(RowEnv):
    """Draws from a generator that its class holds, so that all environments of a process share it."""

    rng = np.random.default_rng()

    def observe(self) -> Any:
        observation = super().observe()
        observation[2] = self.rng.random()
        return observation
