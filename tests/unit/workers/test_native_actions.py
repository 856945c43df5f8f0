"""Actions outside of their space, in native rows: refused, moved to their bounds, or left to the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollout_cli.errors import PolicyError
from rollout_cli.workers import DefaultWorker, NativeVecWorker, WorkerFactory
from rollout_cli.workers.rules import EpisodeRules, OnInvalidAction
from tests.support.envs import ChainEnv
from tests.unit.workers.making_native import NEXT_STEP, each_mode
from tests.unit.workers.native_under_rules import N_ENVS, FixedPolicy, run

BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
SMALL = spaces.Box(0, 100, (1,), np.int8)
TREE = spaces.Dict({"gear": spaces.Discrete(3), "wheel": BOX})


def acted(space: Any) -> Any:
    """Return an environment class that tells which action it got."""

    class ActedEnv(ChainEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, _ = super().step(0)
            wheel = action["wheel"] if isinstance(action, dict) else action
            return observation, reward, terminated, truncated, {"got": np.array(wheel)}

    return ActedEnv


def run_action(rule: OnInvalidAction, space: Any, actions: Any, mode: AutoresetMode) -> Any:
    env = SyncVectorEnv([acted(space)] * N_ENVS, autoreset_mode=mode)
    policy = type("Given", (FixedPolicy,), {"given": (actions, {})})
    return run(env, policy, EpisodeRules(invalid_action=rule))


@each_mode
def test_actions_are_moved_to_their_bounds(mode: AutoresetMode) -> None:
    """The environment gets what is recorded, and the policy's own array stays as it is."""
    given = np.array([[7.0, -2.0], [0.5, 9.0], [-0.5, 1.0]])
    before = given.copy()
    chunk, error = run_action("clip", BOX, given, mode)
    assert error is None
    assert np.float32 == chunk.actions[0].dtype
    assert {(1.0, 0.0), (0.5, 5.0), (-0.5, 1.0)} == set(map(tuple, chunk.actions[0].tolist()))
    (got,) = chunk.env_infos.columns
    np.testing.assert_array_equal(chunk.actions[0], got.values)
    np.testing.assert_array_equal(before, given)


@each_mode
def test_numbers_that_their_type_has_no_room_for_are_moved_first(mode: AutoresetMode) -> None:
    """An integer of 300 is over the bound, and not what is left of it in eight bits."""
    chunk, error = run_action("clip", SMALL, np.array([[300], [-300], [7]]), mode)
    assert error is None
    assert {100, 0, 7} == set(chunk.actions[0].ravel().tolist())


@each_mode
def test_boxes_in_a_dictionary_are_moved(mode: AutoresetMode) -> None:
    """What lies beside them is left alone."""
    given = {"gear": np.array([0, 1, 2]), "wheel": np.full((3, 2), 9.0, np.float32)}
    chunk, error = run_action("clip", TREE, given, mode)
    assert error is None
    assert {(1.0, 5.0)} == set(map(tuple, chunk.actions[1].tolist()))
    assert {0, 1, 2} == set(chunk.actions[0].tolist())


@each_mode
@pytest.mark.parametrize("rule", ["error", "clip"])
def test_nan_has_no_nearest_bound(mode: AutoresetMode, rule: OnInvalidAction) -> None:
    """It is an error under both rules."""
    chunk, error = run_action(rule, BOX, np.full((3, 2), np.nan), mode)
    assert chunk is None
    assert isinstance(error, PolicyError)
    assert 0 == error.episode


@each_mode
def test_actions_are_left_to_the_environment(mode: AutoresetMode) -> None:
    """With `warn` they are recorded as they are."""
    chunk, error = run_action("warn", BOX, np.full((3, 2), 9.0), mode)
    assert error is None
    assert {(9.0, 9.0)} == set(map(tuple, chunk.actions[0].tolist()))


@pytest.mark.parametrize("actions", [np.zeros((2, 2)), np.array([["a", "b"]] * 3), None])
def test_what_cannot_be_moved_is_refused(actions: Any) -> None:
    """As it is without clipping."""
    with pytest.raises(PolicyError, match="the policy gave bad actions: got"):
        run_action("clip", BOX, actions, NEXT_STEP)


GIVEN: dict[str, tuple[Any, Any]] = {
    "over the bound": (BOX, np.array([7.0, -2.0])),
    "not a number": (BOX, np.array([np.nan, 1.0])),
    "more than the type has room for": (SMALL, np.array([300])),
    "less than the type has room for": (SMALL, [-300]),
    "floats for integers": (SMALL, np.array([7.9])),
    "nan for integers": (SMALL, np.array([np.nan])),
    "floats for unsigned integers": (spaces.Box(0, 255, (1,), np.uint8), np.array([256.5])),
    "half a choice": (spaces.Discrete(3), 1.5),
    "nan for a choice": (spaces.Discrete(3), float("nan")),
    "truth for a choice": (spaces.Discrete(3), np.True_),
    "no choice": (spaces.Discrete(3), 5),
    "half of many choices": (spaces.MultiDiscrete([3, 4]), [1.5, 2.0]),
    "choices that there are not": (spaces.MultiDiscrete([3, 4]), [9, 2]),
    "halves for bits": (spaces.MultiBinary(2), np.array([0.5, 1.0])),
    "a number for a text": (spaces.Text(3), 7),
    "another shape": (BOX, np.zeros(3)),
    "ragged": (BOX, [[1.0], 2.0]),
    "part of a tree": (TREE, {"wheel": np.zeros(2)}),
    "a tree over its bounds": (TREE, {"gear": 1, "wheel": np.array([1e300, -1e300])}),
    "half a gear": (TREE, {"gear": 1.5, "wheel": np.zeros(2)}),
}


@each_mode
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("rule", ["error", "clip", "warn"])
@pytest.mark.parametrize("name", GIVEN)
def test_a_policy_a_row_is_judged_as_one_alone_is(mode: AutoresetMode, rule: OnInvalidAction, name: str) -> None:
    """By the numbers that it gave, not by what becomes of them in the space's type."""
    space, action = GIVEN[name]
    expected = outcome(DefaultWorker, acted(space)(), rule, action)
    env = SyncVectorEnv([acted(space)] * N_ENVS, autoreset_mode=mode)
    assert expected == outcome(NativeVecWorker, env, rule, action, n_envs=N_ENVS)


def outcome(worker_class: type[Any], env: Any, rule: OnInvalidAction, action: Any, **arguments: Any) -> Any:
    """Return the actions of six episodes, or else that they were refused: at once, or as they are handed on."""
    rules = EpisodeRules(invalid_action=rule)
    factory = WorkerFactory(n_workers=1, seed=3, worker_class=worker_class, worker_args=arguments, rules=rules)
    worker = factory(0)
    worker.update_env(env)
    worker.update_agent(lambda observation: action)
    worker.assign(range(6))
    try:
        while worker.has_work:
            worker.advance(-1.0)
        chunk, error = factory.take(worker)
    except PolicyError:
        return "refused"
    if isinstance(error, PolicyError):
        assert chunk is None
        return "refused"
    assert chunk is not None
    return [str(column[0]) for column in chunk.actions]
