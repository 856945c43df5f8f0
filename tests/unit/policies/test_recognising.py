"""Policies, their classes and factories are recognised; what is none, or breaks the protocol, is refused clearly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies import adapt_policy, check_policy, policy_class
from rollout_cli.policies.adapters import instantiate
from tests.support import policies as samples
from tests.unit.policies.candidates import BATCH, ENV_SPEC, OBSERVATION, Lone


@pytest.mark.parametrize(
    "kind",
    [
        samples.LinearPolicy,
        samples.GlobalNoisePolicy,
        samples.OwnGeneratorPolicy,
        samples.RecurrentPolicy,
        samples.EditingPolicy,
    ],
)
def test_a_complete_policy_is_used_as_it_is(kind: type[samples.GaragePolicy]) -> None:
    """Nothing stands between the worker and a policy with the whole protocol."""
    policy = kind(ENV_SPEC)
    assert adapt_policy(policy, ENV_SPEC) is policy
    check_policy(policy, ENV_SPEC, [OBSERVATION.copy() for _ in range(4)])


def test_what_is_no_policy() -> None:
    """The error names what the object offers and what is accepted."""

    class Odd:
        def act(self) -> None:
            pass

    with pytest.raises(PolicyLoadError, match=r"Odd, which offers act, is no policy") as caught:
        adapt_policy(Odd(), ENV_SPEC)
    assert "get_action" in caught.value.hint
    with pytest.raises(PolicyLoadError, match="the class LinearPolicy is no policy"):
        adapt_policy(samples.LinearPolicy, ENV_SPEC)
    with pytest.raises(PolicyLoadError, match=r"\(a, b\) cannot be called with an observation alone"):
        adapt_policy(lambda a, b: 0, ENV_SPEC)


def test_instantiate() -> None:
    """Classes and factories are called, with the spaces where they want them; policies are left alone."""

    class Optional(Lone):
        def __init__(self, gain: float = 1.0, env_spec: EnvSpec | None = None) -> None:
            self.env_spec = env_spec

    class Positional(Lone):
        def __init__(self, spec: EnvSpec) -> None:
            self.env_spec = spec

    class Called(Lone):
        def __call__(self) -> None:
            raise AssertionError

    linear, both = samples.LinearPolicy(ENV_SPEC), Called()
    assert isinstance(instantiate(samples.LinearPolicy, ENV_SPEC), samples.LinearPolicy)
    assert isinstance(instantiate(samples.make_linear, ENV_SPEC), samples.LinearPolicy)
    assert instantiate(samples.make_plain, ENV_SPEC) is samples.plain_policy
    assert instantiate(samples.plain_policy, ENV_SPEC) is samples.plain_policy
    assert instantiate(linear, ENV_SPEC) is linear
    assert instantiate(both, ENV_SPEC) is both
    assert isinstance(instantiate(Lone, ENV_SPEC), Lone)
    assert instantiate(Optional, ENV_SPEC).env_spec is ENV_SPEC
    assert instantiate(Positional, ENV_SPEC).env_spec is ENV_SPEC


def test_instantiate_says_how_it_called() -> None:
    """A class that needs more, or raises, is a clear error with the user's traceback."""

    class Greedy:
        def __init__(self, env_spec: EnvSpec, size: int) -> None:
            raise AssertionError

    class Broken:
        def __init__(self, env_spec: EnvSpec) -> None:
            raise RuntimeError("no weights")

    with pytest.raises(PolicyLoadError, match="needs the arguments env_spec, size"):
        instantiate(Greedy, ENV_SPEC)
    with pytest.raises(PolicyLoadError, match="called with the EnvSpec, raised an error: RuntimeError: no weight") as e:
        instantiate(Broken, ENV_SPEC)
    assert "Traceback" in e.value.details


def test_policy_class_is_the_users_own() -> None:
    """The recorded class is that of the wrapped object, or the function."""
    assert "tests.support.policies.LinearPolicy" == policy_class(samples.LinearPolicy(ENV_SPEC))
    assert "tests.support.policies.plain_policy" == policy_class(adapt_policy(samples.plain_policy, ENV_SPEC))
    predict = adapt_policy(samples.PredictPolicy(ENV_SPEC), ENV_SPEC)
    assert "tests.support.policies.PredictPolicy" == policy_class(predict)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"get_action": lambda observation: 0}, "gave int, not"),
        ({"get_action": lambda observation: (9, {})}, "not in Discrete"),
        ({"get_actions": lambda observations: (np.zeros(1, int), {})}, "expected \\(2,\\)"),
        ({"get_actions": lambda observations: (np.zeros(2, int), {"x": np.zeros(3)})}, "3 values of info 'x'"),
        ({"reset": None}, "has no reset"),
    ],
)
def test_the_check_finds_faults(broken: dict[str, Any], message: str) -> None:
    """check_policy names what a policy does wrong."""
    policy: Any = samples.LinearPolicy(ENV_SPEC)
    vars(policy).update(broken)
    with pytest.raises(PolicyError, match=message):
        check_policy(policy, ENV_SPEC, list(BATCH))
