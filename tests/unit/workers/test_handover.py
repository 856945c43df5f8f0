"""Handover: neither policy nor environment sees its array change under its hands, and nothing is copied in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError
from rollout_cli.workers.handover import Handover
from tests.support.policies import LinearPolicy
from tests.support.vector_envs import QuietVectorEnv, ScriptedVectorEnv
from tests.unit.workers.making_native import NEXT_STEP, SAME_STEP, Make, native, run

Array = npt.NDArray[Any]
N_ENVS = 3
SPEC = EnvSpec(spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-1, 1, (2,), np.float32))
PAIRS = EnvSpec(spaces.Dict(a=SPEC.observation_space), spaces.Dict(a=SPEC.action_space))


def made() -> Array:
    return np.arange(2.0 * N_ENVS, dtype=np.float32).reshape(N_ENVS, 2).copy()


def test_an_observation_that_nobody_else_holds_is_handed_on_itself() -> None:
    """The one of an environment that makes a new array in each step."""
    leaves = [made()]
    place = leaves[0].ctypes.data
    assert place == Handover(SPEC, hands_off=False).to_policy(leaves).ctypes.data


def test_an_action_that_nobody_else_holds_is_handed_on_itself() -> None:
    """The one of a policy that makes a new array in each step."""
    leaves = (made(),)
    place = leaves[0].ctypes.data
    assert place == Handover(SPEC, hands_off=False).to_env(leaves).ctypes.data


@pytest.mark.parametrize("spec", [SPEC, PAIRS], ids=["leaf", "dictionary"])
@pytest.mark.parametrize("part", [lambda array: array, lambda array: array[:], lambda array: array.T.T])
def test_what_somebody_may_hold_is_copied(spec: EnvSpec, part: Callable[[Array], Array]) -> None:
    """An array that a variable elsewhere refers to, or a view of one."""
    hands = Handover(spec, hands_off=False)
    held = made()
    for value in (hands.to_policy([part(held)]), hands.to_env([part(held)])):
        given = value["a"] if isinstance(value, dict) else value
        assert held.tolist() == given.tolist()
        assert not np.shares_memory(held, given)


@pytest.mark.parametrize("spec", [SPEC, PAIRS], ids=["leaf", "dictionary"])
def test_a_policy_that_leaves_them_alone_gets_no_copy(spec: EnvSpec) -> None:
    """It has said so of itself."""
    hands = Handover(spec, hands_off=True)
    held = made()
    for value in (hands.to_policy([held]), hands.to_env([held])):
        assert held is (value["a"] if isinstance(value, dict) else value)


class Untidy(LinearPolicy):
    """Edits what it sees, and gives its actions in one array that it fills anew each time."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self._buffer: Array | None = None

    def get_actions(self, observations: Any) -> Any:
        actions, infos = super().get_actions(observations)
        if self._buffer is None:
            self._buffer = np.array(actions)
        self._buffer[:] = actions
        observations[:] = 77
        return self._buffer, infos


class Keeping(ScriptedVectorEnv):
    """Its observations are its state; the reward tells the action before, which it kept."""

    _kept: Any = None

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        rewards = rewards if self._kept is None else rewards + 10 * self._kept
        self._kept = actions
        return observations, rewards.astype(np.float32), *rest


class Fresh(ScriptedVectorEnv):
    """Gives new arrays, which are nobody else's."""

    def step(self, actions: Any) -> Any:
        observations, *rest = super().step(actions)
        return observations.copy(), *rest


@pytest.mark.parametrize("kind", [Keeping, Fresh])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_untidy_policies_get_the_episodes_of_tidy_ones(kind: type[ScriptedVectorEnv], mode: Any) -> None:
    """In environments that hold on to what they gave and were given, and in others."""

    def columns(policy: Make) -> list[Any]:
        env = kind(N_ENVS, lambda row, k: 1 + (3 * row + 5 * k) % 7, mode)
        chunk = run(native(env, policy), range(20), steps=3)
        return [
            array.tolist() for array in (*chunk.observations, *chunk.actions, chunk.rewards, *chunk.last_observations)
        ]

    assert columns(LinearPolicy) == columns(Untidy)


class EditsAndFails:
    """Fails in a step, after it has edited what it sees; it need not be told of episodes."""

    def __init__(self, env_spec: EnvSpec) -> None:
        del env_spec
        self._left = 4

    def get_actions(self, observations: Any) -> Any:
        observations[:] = 77
        self._left -= 1
        if not self._left:
            raise ValueError("no more")
        return np.zeros(len(observations), np.int64), {}


class QuietFresh(QuietVectorEnv):
    """Gives new arrays, and tells nothing that would have to be looked at in the same step."""

    def step(self, actions: Any) -> Any:
        observations, *rest = super().step(actions)
        return observations.copy(), *rest


def test_what_ended_before_a_policy_failed_has_the_last_observations_that_were_recorded() -> None:
    """They are looked up in the step in which it had them, and where they are recorded."""
    worker = native(QuietFresh(N_ENVS, lambda row, k: 3, NEXT_STEP), EditsAndFails)
    worker.assign(range(N_ENVS))
    with pytest.raises(PolicyError, match="no more"):
        worker.advance(np.inf)
    worker._release()
    chunk = worker.take()
    assert chunk is not None
    assert [[row, 0, 3] for row in range(N_ENVS)] == chunk.last_observations[0].tolist()
