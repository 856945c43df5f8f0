"""Actions outside of their space: refused, moved to their bounds, or left to the environment; in both kinds of loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.errors import PolicyError
from rollout_cli.guards import GUARD_BYTES
from rollout_cli.workers import DefaultWorker, VecWorker, WorkerFactory
from rollout_cli.workers.rules import EpisodeRules, OnInvalidAction
from tests.support.envs import ChainEnv

BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))


class ActedEnv(ChainEnv):
    """Tells which action it got."""

    def __init__(self, action_space: Any) -> None:
        super().__init__()
        self.action_space = action_space

    def draw_length(self) -> int:
        return 3

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(0)
        return observation, reward, terminated, truncated, {"got": action}


def run(rule: OnInvalidAction, space: Any, action: Any, worker_class: type[Any], **arguments: Any) -> Any:
    """Return the chunk and the error of four episodes with this one action."""
    rules = EpisodeRules(invalid_action=rule)
    factory = WorkerFactory(n_workers=1, seed=3, worker_class=worker_class, worker_args=arguments, rules=rules)
    worker = factory(0)
    worker.update_env(ActedEnv(space))
    worker.update_agent(lambda observation: action)
    worker.assign(range(4))
    while worker.has_work:
        worker.advance(-1.0)
    return factory.take(worker)


KINDS = pytest.mark.parametrize(("kind", "arguments"), [(DefaultWorker, {}), (VecWorker, {"n_envs": 2})])


@KINDS
def test_actions_are_moved_to_their_bounds(kind: type[Any], arguments: dict[str, Any]) -> None:
    """The environment gets what is recorded, in its space's own type."""
    chunk, error = run("clip", BOX, np.array([7.0, -2.0]), kind, **arguments)
    assert error is None
    assert np.float32 == chunk.actions[0].dtype
    assert [[1.0, 0.0]] * chunk.n_steps == chunk.actions[0].tolist()
    (got,) = chunk.env_infos.columns
    np.testing.assert_array_equal(chunk.actions[0], got.values)


@KINDS
@pytest.mark.parametrize("rule", ["error", "clip"])
def test_nan_has_no_nearest_bound(kind: type[Any], arguments: dict[str, Any], rule: OnInvalidAction) -> None:
    """It is an error under both rules."""
    chunk, error = run(rule, BOX, np.array([np.nan, 1.0]), kind, **arguments)
    assert chunk is None
    assert isinstance(error, PolicyError)
    assert 0 == error.episode


@KINDS
def test_actions_are_left_to_the_environment(kind: type[Any], arguments: dict[str, Any]) -> None:
    """With `warn` they are recorded as they are."""
    chunk, error = run("warn", BOX, np.array([7.0, -2.0]), kind, **arguments)
    assert error is None
    assert [[7.0, -2.0]] * chunk.n_steps == chunk.actions[0].tolist()


@KINDS
@pytest.mark.parametrize("rule", ["error", "clip"])
def test_a_choice_that_there_is_not_is_refused_at_once(
    kind: type[Any], arguments: dict[str, Any], rule: OnInvalidAction
) -> None:
    """Before the environment gets it."""
    with pytest.raises(PolicyError, match=r"bad action: got 5, expected a number of Discrete\(3\)"):
        run(rule, spaces.Discrete(3), 5, kind, **arguments)


@KINDS
def test_a_choice_that_there_is_not_can_be_let_through(kind: type[Any], arguments: dict[str, Any]) -> None:
    """The environment may know what to do with it."""
    chunk, error = run("warn", spaces.Discrete(3), 5, kind, **arguments)
    assert error is None
    assert {5} == set(chunk.actions[0].tolist())


def test_one_bad_episode_does_not_cost_the_others() -> None:
    """The error names it, and the others are handed on."""
    factory = WorkerFactory(n_workers=1, seed=3)
    worker = factory(0)
    worker.update_env(ActedEnv(BOX))
    count = 0

    def policy(observation: Any) -> Any:
        nonlocal count
        count += 1
        return np.array([9.0 if 4 <= count <= 6 else 0.0, 1.0], np.float32)

    worker.update_agent(policy)
    worker.assign(range(4))
    while worker.has_work:
        worker.advance(-1.0)
    chunk, error = factory.take(worker)
    assert isinstance(error, PolicyError)
    assert chunk is not None
    assert 3 == chunk.n_episodes
    assert {0, 1, 2, 3} == {*chunk.numbers.tolist(), error.episode}


def test_big_observations_end_an_episode_earlier() -> None:
    """Bytes count as well as steps."""
    rules = EpisodeRules()
    assert (1_000_000, GUARD_BYTES // 100_000, 1) == tuple(map(rules.most_steps, (32, 100_000, GUARD_BYTES * 2)))
