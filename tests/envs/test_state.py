"""Which environments have a state, and what a wrong one is called."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from rollout_cli.envs.state import state_reader, state_setter
from rollout_cli.errors import EnvError, EnvLoadError
from tests.helpers.envs import StateEnv
from tests.helpers.errors import raises


class TwoArguments(StateEnv):
    """`set_state` as in gymnasium's MuJoCo environments."""

    def set_state(self, position: Any, velocity: Any) -> None:  # type: ignore[override]
        self.state = np.array([position, velocity])


class Lookalike(gymnasium.Env[Any, Any]):
    """Has `model` and `data`, which are not MuJoCo's."""

    model = data = "a name"


class Hidden(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that has the methods."""

    def get_state(self) -> Any:
        return [1, 2]

    def set_state(self, state: Any, which: int = 0) -> None:
        self.restored = (state, which)


def test_methods_are_found_through_wrappers() -> None:
    inner = StateEnv()
    env: Any = gymnasium.wrappers.TimeLimit(inner, 5)
    env.reset(seed=1)
    read = state_reader(env)
    before = read()
    env.step(1)
    assert (before[1], read()[1]) == (0, 1)
    state_setter(env)(before)
    assert before.tolist() == inner.state.tolist()
    wrapped: Any = Hidden(Lookalike())
    assert [1, 2] == state_reader(wrapped)().tolist()
    state_setter(wrapped)(before)
    assert 0 == wrapped.restored[1]


@pytest.mark.parametrize("env", [TwoArguments(), Lookalike(), gymnasium.make("CartPole-v1")])
def test_an_environment_without_a_state(env: Any) -> None:
    for find in (state_reader, state_setter):
        with raises(EnvLoadError, "env-no-state", type(env.unwrapped).__name__):
            find(env)


@pytest.mark.parametrize(
    ("value", "found"), [({"a": 1}, r"object\[\]"), ([], r"float64\[0\]"), ("x", r"<U1\[\]")], ids=str
)
def test_a_state_that_is_not_an_array_of_numbers(value: Any, found: str) -> None:
    env = StateEnv()
    env.get_state = lambda: value  # type: ignore[method-assign]
    with pytest.raises(EnvError, match=found) as caught:
        state_reader(env)()
    assert "env-state-value" == caught.value.code


def test_methods_that_raise() -> None:
    env = StateEnv()  # It was not reset.
    with raises(EnvError, "env-raised", "get_state", "AttributeError"):
        state_reader(env)()
    with raises(EnvError, "env-raised", "set_state", "AttributeError"):
        state_setter(env)(None)  # type: ignore[arg-type]
