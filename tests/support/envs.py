"""Sample environments: small, exact functions of their seed and of the actions, each with one trait to test.

They are importable as `tests.support.envs:Name` wherever an environment is named by text.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]
Ending = Literal["terminated", "truncated", "both", "never"]


class ChainEnv(gymnasium.Env[Any, Any]):
    """A chain of odd length: 1, 3, 5, 7 or 9 steps, drawn from the seed.

    The observation is float32 [position, length, noise of the step], the reward is 1 for action 1 and 0.5 for action 0.

    Args:
        ends: Which flag the last step sets; `never` leaves the ending to a limit from outside.
    """

    def __init__(self, ends: Ending = "terminated") -> None:
        self.observation_space = spaces.Box(-1.0, 1000.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._ends = ends
        self._position = 0
        self._length = 0

    def draw_length(self) -> int:
        return 1 + 2 * int(self.np_random.integers(0, 5))

    def observe(self) -> Any:
        return np.array([self._position, self._length, self.np_random.random()], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._position = 0
        self._length = self.draw_length()
        return self.observe(), {"length": self._length}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._position += 1
        last = self._position >= self._length
        terminated = last and self._ends in ("terminated", "both")
        truncated = last and self._ends in ("truncated", "both")
        return self.observe(), 1.0 if action == 1 else 0.5, terminated, truncated, {"position": self._position}


class CoinLengthEnv(ChainEnv):
    """Episodes of 1 or 40 steps at even odds, drawn from the seed."""

    def draw_length(self) -> int:
        return 40 if self.np_random.random() < 0.5 else 1


class BothFlagsEnv(ChainEnv):
    """Its last step terminates and truncates at once."""

    def __init__(self) -> None:
        super().__init__(ends="both")


class EndlessEnv(ChainEnv):
    """It never ends by itself and has no time limit."""

    def __init__(self) -> None:
        super().__init__(ends="never")


class ReusedBufferEnv(ChainEnv):
    """Gives the same observation array at every step and writes the next one over it."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = np.zeros(3, np.float32)

    def observe(self) -> Array:
        self._buffer[:] = super().observe()
        return self._buffer


class FailingEnv(ChainEnv):
    """Raises ValueError in `reset`, or in the given step of every episode (1 for the first).

    Args:
        where: `reset` or `step`.
        at_step: The step that raises; an episode that is shorter ends well.
    """

    def __init__(self, where: Literal["reset", "step"] = "step", at_step: int = 1) -> None:
        super().__init__()
        self._where = where
        self._at_step = at_step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._where == "reset":
            raise ValueError("the reset is broken")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._where == "step" and self._position + 1 == self._at_step:
            raise ValueError(f"step {self._at_step} is broken")
        return super().step(action)


class KillingEnv(ChainEnv):
    """Kills its own process (SIGKILL) in the given step of every episode that gets there (1 for the first)."""

    def __init__(self, at_step: int = 1) -> None:
        super().__init__()
        self._at_step = at_step

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._position + 1 == self._at_step:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class SleepyEnv(ChainEnv):
    """Sleeps in every step, as a simulator that waits for something does.

    Args:
        seconds: How long.
        length: Steps of every episode; None draws odd lengths as ChainEnv does.
    """

    def __init__(self, seconds: float = 0.001, length: int | None = None) -> None:
        super().__init__()
        self._seconds = seconds
        self._fixed_length = length

    def draw_length(self) -> int:
        return super().draw_length() if self._fixed_length is None else self._fixed_length

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)


class LambdaInfoEnv(ChainEnv):
    """Puts a lambda into the info of every step, beside a value that can be stored."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "callback": lambda: None}


class LateInfoEnv(ChainEnv):
    """In some episodes, chosen by their seed, the infos have one more key, and in some it has another type.

    `rare` is in every seventh seed's infos: an integer, or a text where the seed is also even.
    """

    def __init__(self) -> None:
        super().__init__()
        self._extra: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self._extra = self.extra_info(seed or 0)
        return observation, {**info, **self._extra}

    def extra_info(self, seed: int) -> dict[str, Any]:
        if seed % 7:
            return {}
        return {"rare": seed % 1000 if seed % 2 else str(seed % 1000)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, **self._extra}


class ScriptedInfoEnv(LateInfoEnv):
    """Adds the given infos to the episodes with the given seeds.

    Args:
        by_seed: From the seed that `reset` gets to what is added to all infos of that episode.
    """

    def __init__(self, by_seed: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__()
        self._by_seed = {int(seed): dict(extra) for seed, extra in by_seed.items()}

    def extra_info(self, seed: int) -> dict[str, Any]:
        return self._by_seed.get(seed, {})


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observations drawn from any space, a pure function of the seed and the step; 1 to 7 steps an episode.

    Args:
        observation_space: What is observed; the env draws from a copy that it seeds itself.
        action_space: What is accepted; an action outside of it raises ValueError.
    """

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space if action_space is not None else spaces.Discrete(3)
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._left = int(self.np_random.integers(1, 8))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"the action {action!r} is not in {self.action_space}")
        self._left -= 1
        return self.observation_space.sample(), float(self._left), self._left == 0, False, {"left": self._left}


class BoxEnv(SpaceEnv):
    """Box observations float64 (2, 3), Box actions float32 (2,)."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (2, 3), np.float64), spaces.Box(-2.0, 2.0, (2,), np.float32))


class ScalarEnv(SpaceEnv):
    """0-d Box observations and actions."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (), np.float32), spaces.Box(0.0, 1.0, (), np.float32))


class DictEnv(SpaceEnv):
    """Dict observations of three kinds, one nested; Dict actions."""

    def __init__(self) -> None:
        camera = spaces.Dict({"left": spaces.Box(0, 255, (4, 4), np.uint8), "gain": spaces.Box(0.0, 1.0, ())})
        super().__init__(
            spaces.Dict({"camera": camera, "speed": spaces.Box(-1.0, 1.0, (2,)), "mode": spaces.Discrete(4, start=1)}),
            spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1.0, 1.0, (2,))}),
        )


class TupleEnv(SpaceEnv):
    """Tuple observations and actions."""

    def __init__(self) -> None:
        super().__init__(
            spaces.Tuple((spaces.Discrete(5), spaces.Box(-1.0, 1.0, (3,)))),
            spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3))),
        )


class MultiDiscreteEnv(SpaceEnv):
    """MultiDiscrete observations and actions."""

    def __init__(self) -> None:
        super().__init__(spaces.MultiDiscrete([3, 5, 2]), spaces.MultiDiscrete([2, 4]))


class MultiBinaryEnv(SpaceEnv):
    """MultiBinary observations and actions."""

    def __init__(self) -> None:
        super().__init__(spaces.MultiBinary((2, 2)), spaces.MultiBinary(4))


class TextEnv(SpaceEnv):
    """Text observations and actions."""

    def __init__(self) -> None:
        super().__init__(spaces.Text(12, min_length=0), spaces.Text(4, charset="abc"))


class ImageEnv(SpaceEnv):
    """Image observations, uint8 (24, 32, 3)."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (24, 32, 3), np.uint8))


class UnsupportedEnv(SpaceEnv):
    """A Sequence observation space, which has no fixed set of columns."""

    def __init__(self) -> None:
        super().__init__(spaces.Dict({"found": spaces.Sequence(spaces.Discrete(3))}))


ALL_SPACE_ENVS = (BoxEnv, ScalarEnv, DictEnv, TupleEnv, MultiDiscreteEnv, MultiBinaryEnv, TextEnv, ImageEnv)
