"""Observations that keep their type and bytes in mid-episode, but not their shape."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.errors import EnvError
from rollout_cli.workers import DefaultWorker, VecWorker, WorkerFactory
from rollout_cli.workers.default_worker import _MOST_STEPS
from rollout_cli.workers.row_steps import CHECKED_STEPS
from tests.support.envs import EndlessEnv


class FoldingEnv(EndlessEnv):
    """Gives (2, 2) in place of (4,) from step `first` on, up to `stop`; its episodes have `length` steps."""

    def __init__(self, first: int, stop: int, length: int) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self._folds, self._n_steps, self._at = range(first, stop), length, 0

    def _seen(self) -> Any:
        shape = (2, 2) if self._at in self._folds else (4,)
        return np.full(shape, self._at, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self._at = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._at += 1
        return self._seen(), 1.0, self._at == self._n_steps, False, {}


class Ones:
    """Acts for all rows at once, so that these are recorded as they are shown to it."""

    def reset(self, do_resets: Any = None) -> None:
        """Begin."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return 1, {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return np.ones(len(observations), int), {}


KINDS = pytest.mark.parametrize(
    ("kind", "arguments", "every"),
    [(DefaultWorker, {}, 2 * _MOST_STEPS), (VecWorker, {"n_envs": 2}, CHECKED_STEPS)],
    ids=["default", "vec"],
)


def run(kind: type[Any], arguments: dict[str, Any], env: FoldingEnv, *, until: float) -> Any:
    worker = WorkerFactory(n_workers=1, seed=3, worker_class=kind, worker_args=arguments)(0)
    worker.update_env(env)
    worker.update_agent(Ones())
    worker.assign([0])
    while worker.has_work:
        worker.advance(until)
    return worker.take()


@KINDS
def test_a_lasting_change_is_found(kind: type[Any], arguments: dict[str, Any], every: int) -> None:
    """Though the shape is right again at the end, where it would be seen at the latest."""
    with pytest.raises(EnvError, match=r"the observation is not of its space: got float32\(2, 2\)") as caught:
        run(kind, arguments, FoldingEnv(200, 200 + every, 10_000), until=math.inf)
    step = re.search(r"step (\d+)\)$", caught.value.message)
    assert step is not None
    assert 200 <= int(step[1]) < 200 + every


@KINDS
@pytest.mark.parametrize("at", [0, 50])
def test_the_ends_of_an_episode_are_checked(kind: type[Any], arguments: dict[str, Any], every: int, at: int) -> None:
    """Its first observation, and its last one."""
    del every
    with pytest.raises(EnvError, match=r"observation is not of its space: got float32\(2, 2\).* step " + f"{at}"):
        run(kind, arguments, FoldingEnv(at, at + 1, 50), until=math.inf)


def test_the_first_observation_of_a_call_is_checked() -> None:
    """A worker that is asked for single steps finds each change."""
    with pytest.raises(EnvError, match=r"the observation is not of its space: got float32\(2, 2\).* step 20\)"):
        run(DefaultWorker, {}, FoldingEnv(20, 21, 50), until=-1.0)


@KINDS
def test_what_keeps_its_shape_is_recorded(kind: type[Any], arguments: dict[str, Any], every: int) -> None:
    """Whether it was checked in full or not."""
    steps = 3 * every
    chunk = run(kind, arguments, FoldingEnv(0, 0, steps), until=math.inf)
    assert [[float(step)] * 4 for step in range(steps)] == chunk.observations[0].tolist()
