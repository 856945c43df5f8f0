"""Policies for environments with Box actions, each with one trait; named by `tests.helpers.policies:Name`."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.helpers.envs import Fault

FAULT = "ROLLOUT_TEST_POLICY"
"""The variable with a faulty policy's arguments, as JSON: what a spec names is built without any."""


def push(observation: Any, place: float = 0.0) -> npt.NDArray[np.float32]:
    """Return an action in [-1, 1] (2,) that depends on the whole observation."""
    total = float(np.sum(np.asarray(observation, np.float64))) + place
    return np.array([np.sin(total), np.cos(total)], np.float32)


class FaultyPolicy:
    """A function of the observation, with `get_action` alone, that fails as the variable says."""

    def __init__(self) -> None:
        self._fault = Fault(**json.loads(os.environ.get(FAULT, "{}")))
        self._steps = 0
        self._fault.act("load")

    def reset(self, do_resets: Any = None) -> None:
        self._steps = 0
        self._fault.act("reset")

    def get_action(self, observation: Any) -> Any:
        self._steps += 1
        moment = "step" if self._steps == 3 else "other step"
        self._fault.act(moment)
        action = self._fault.give("action", moment, push(observation))
        return self._fault.give("acted", moment, (action, self._fault.give("agent info", moment, {})))


class FaultyBatchPolicy(FaultyPolicy):
    """The same with `get_actions` alone."""

    get_action = None  # type: ignore[assignment]

    def get_actions(self, observations: Any) -> Any:
        self._steps += 1
        moment = "step" if self._steps == 3 else "other step"
        self._fault.act(moment)
        actions = np.stack([push(one) for one in observations])
        return self._fault.give("batch", moment, (actions, {"value": np.zeros(len(actions))}))


WEIGHT = "ROLLOUT_TEST_WEIGHT"
"""The variable with the weight of `WeightedPolicy`."""


class WeightedPolicy:
    """A policy whose weight neither its name nor its source tells, as that of a file that it reads."""

    def get_action(self, observation: Any) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        return np.full(2, float(os.environ[WEIGHT]), np.float32), {}


class OwnNoisePolicy:
    """Draws from a generator of its own, made without a seed."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def get_action(self, observation: Any) -> Any:
        noise = float(self.rng.random())
        return push(observation, noise), {"noise": noise}


class GlobalNoisePolicy:
    """Draws from numpy's global generator."""

    def get_action(self, observation: Any) -> Any:
        return push(observation, float(np.random.random())), {}


class SharedNoisePolicy(GlobalNoisePolicy):
    """Draws for all rows of a batch from numpy's global generator."""

    def get_actions(self, observations: Any) -> Any:
        return np.stack([self.get_action(row)[0] for row in observations]), {}


class CountingPolicy:
    """Its action depends on how many steps each row has had since it was reset."""

    def __init__(self) -> None:
        self._counts = np.zeros(1, np.int64)

    def reset(self, do_resets: Any = None) -> None:
        mask = np.ones(1, bool) if do_resets is None else np.asarray(do_resets)
        if len(mask) != len(self._counts):
            self._counts = np.zeros(len(mask), np.int64)
        self._counts[mask] = 0

    def get_actions(self, observations: Any) -> Any:
        self._counts += 1
        actions = [
            push(one, 0.37 * float(count)) for one, count in zip(observations, self._counts, strict=True)
        ]
        return np.stack(actions), {"count": self._counts.copy()}


class StatefulPolicy:
    """What it did in earlier episodes changes what it does: no dataset of it is reproducible."""

    def __init__(self) -> None:
        self._calls = 0

    def get_action(self, observation: Any) -> Any:
        self._calls += 1
        return push(observation, 0.1 * self._calls), {}
