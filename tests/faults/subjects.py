"""Environments and policies that fail on demand, for runs of the installed command.

A failure has a kind (`what`), a place (`when`) and a frequency (`often`): `always`; `some`, in the episodes of one seed
in four, always the same ones; or `once`, the first time that any process of the run gets there.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.support.faults import HARMS

LENGTH = 5
"""Steps of an episode."""


class Fault:
    """Does something at some moment."""

    def __init__(self, what: str, when: str, often: str) -> None:
        self._what, self._when, self._often = what, when, often
        self.seed = 0

    def is_due(self, when: str) -> bool:
        """Return whether it happens now."""
        if when != self._when:
            return False
        if self._often == "some":
            return self.seed % 4 == 0
        return self._often == "always" or self._is_first()

    def _is_first(self) -> bool:
        try:
            Path("fault-happened").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def act(self, when: str) -> None:
        """Do it, if it is something to do and it is due."""
        if self._what in HARMS and self.is_due(when):
            HARMS[self._what]()

    def value(self, when: str, what: str, bad: Any, good: Any) -> Any:
        """Return the bad value where that is the fault and it is due."""
        return bad if self._what == what and self.is_due(when) else good


class Faulty(gymnasium.Env[Any, Any]):
    """Episodes of five steps. `pace` is how long a step takes, in seconds."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(
        self, what: str = "", when: str = "step", often: str = "always", pace: float = 0.0, endless: bool = False
    ) -> None:
        self._fault, self._pace, self._endless = Fault(what, when, often), pace, endless
        self._steps = 0
        self._fault.act("load")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._fault.seed = seed or 0
        self._steps = 0
        self._fault.act("reset")
        result: Any = self._observe("reset"), {"start": 1}
        return self._fault.value("reset", "old interface", result[0], result)

    def _observe(self, when: str) -> Any:
        seen = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        value = self._fault.value
        seen = value(when, "shape", seen[:3], seen)
        seen = value(when, "reshape", seen.reshape(2, 2) if seen.size == 4 else seen, seen)
        seen = value(when, "dtype", seen.astype(complex), seen)
        seen = value(when, "nan", np.full(4, math.nan, np.float32), seen)
        seen = value(when, "outside", np.full(4, 7, np.float32), seen)
        return value(when, "none", None, seen)

    def step(self, action: Any) -> Any:
        if self._pace:
            time.sleep(self._pace)
        self._steps += 1
        when = "step" if self._steps == 3 else "other step"
        self._fault.act(when)
        value = self._fault.value
        reward = value(when, "reward text", "much", float(action[0]))
        reward = value(when, "reward nan", math.nan, reward)
        reward = value(when, "reward none", None, reward)
        ended = self._steps >= LENGTH and not self._endless
        ended = value("step", "flag array", np.array([ended, ended]), ended)
        ended = value("step", "flag text", "no", ended)
        result = (self._observe(when), reward, ended, False, self._info(when))
        return value("step", "4-tuple", (result[0], reward, ended, {}), result)

    def _info(self, when: str) -> Any:
        value = self._fault.value
        info: Any = {"steps": self._steps}
        info = value(when, "info unstorable", {"steps": lambda: 1}, info)
        info = value(when, "info type", {"steps": "three"}, info)
        info = value(when, "info late", {"steps": 3, "late": 1.5}, info)
        info = value(when, "info keys", {"": 1, 7: 2, "a.b": 3, ("t",): 4, "\n": 5}, info)
        info = value(when, "info huge", {"huge": np.zeros(1 << 19)}, info)
        info = value(when, "info recursive", _recursive(), info)
        return value(when, "info none", None, info)

    def close(self) -> None:
        self._fault.act("close")


def _recursive() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["itself"] = info
    return info


class FaultyPolicy:
    """Gives an action of its space, or none."""

    def __init__(self, what: str = "", when: str = "act", often: str = "always") -> None:
        self._fault = Fault(what, when, often)
        self._fault.act("load")

    def seed(self, seed: int) -> None:
        self._fault.seed = seed

    def reset(self, do_resets: Any = None) -> None:
        self._fault.act("reset")

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self._fault.act("act")
        value = self._fault.value
        action = np.asarray(observation[:2], np.float32)
        action = value("act", "nan", np.full(2, math.nan, np.float32), action)
        action = value("act", "outside", np.full(2, 3, np.float32), action)
        action = value("act", "shape", np.zeros(3, np.float32), action)
        action = value("act", "text", "left", action)
        return action, value("act", "info", {"why": object()}, {})


def policy_of(name: str) -> FaultyPolicy:
    """Return the policy that the environment variable asks for."""
    what, when, often = os.environ[name].split(",")
    return FaultyPolicy(what, when, often)


def policy() -> FaultyPolicy:
    """Return the policy that `FAULTY_POLICY` describes."""
    return policy_of("FAULTY_POLICY")
