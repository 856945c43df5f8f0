"""The schemes `constant:` and `mix:`: what they read, how they act, and what they refuse."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.policy import AdaptedPolicy, recorded_spec
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.policies.source import policy_source
from tests.helpers.errors import raises
from tests.policies.checking import check_policy

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
OBSERVATION = np.zeros(3, np.float32)
FOUR = EnvSpec(OBSERVATIONS, spaces.Discrete(4))
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Tuple((BOX, spaces.Text(4)))})


def loaded(spec: str, env_spec: EnvSpec, options: dict[str, Any] | None = None) -> Any:
    """What a worker makes of a SPEC."""
    return pickle.loads(cloudpickle.dumps(policy_source(spec, options))).load(env_spec)


# -- constant --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("3", spaces.Discrete(4)),
        ("[0.5, -1]", BOX),
        ("0.25", spaces.Box(0.0, 1.0, ())),
        ("[1, 0]", spaces.MultiDiscrete([2, 2])),
        ("[true, false]", spaces.MultiBinary(2)),
        ("[3, 255]", spaces.Box(0, 255, (2,), np.uint8)),
        ("[1, 2]", spaces.MultiDiscrete([3, 4], dtype=np.uint8)),
        ('{a = 3, b = [[0, 0.5], "up"]}', NESTED),
    ],
)
def test_a_constant_action(text: str, space: Any) -> None:
    """It is one of the space, each time a new one."""
    policy = loaded(f"constant:{text}", EnvSpec(OBSERVATIONS, space))
    check_policy(policy, EnvSpec(OBSERVATIONS, space), [OBSERVATION] * 3)
    first, second = (policy.get_action(OBSERVATION)[0] for _ in range(2))
    if isinstance(first, np.ndarray):
        first[...] = 0
        assert second.any()
        assert policy.get_action(OBSERVATION)[0].tolist() == second.tolist()


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("4", spaces.Discrete(4)),
        ("0.5", spaces.Discrete(4)),
        ("[0.5]", BOX),
        ("[0.5, 1.5]", BOX),
        ("[[1], [1, 2]]", BOX),
        ('"up"', BOX),
        ("{a = 3}", NESTED),
        ('{a = 3, b = [[0, 0.5], "up"], c = 1}', NESTED),
        ('{a = 3, b = [[0, 0.5], "up", 3]}', NESTED),
        ("[1, 2]", NESTED),
        ("1", spaces.Tuple((BOX,))),
        ("[-1, 3]", spaces.Box(0, 255, (2,), np.uint8)),
        ("[300, 1]", spaces.Box(-100, 100, (2,), np.int8)),
        ("9223372036854775808", spaces.Discrete(4)),
    ],
)
def test_what_is_no_action_is_refused(text: str, space: Any) -> None:
    with raises(PolicyLoadError, "policy-action"):
        loaded(f"constant:{text}", EnvSpec(OBSERVATIONS, space))


def test_what_is_no_value_is_refused() -> None:
    for text in ("", "up", "[1,"):
        with raises(PolicyLoadError, "policy-spec"):
            policy_source(f"constant:{text}")
    with raises(PolicyLoadError, "policy-options"):
        policy_source("constant:1", {"a": 1})


# -- mix -------------------------------------------------------------------------------------------------------------


def components(policy: AdaptedPolicy, seeds: range) -> np.ndarray[Any, Any]:
    assert policy.seed is not None
    chosen = []
    for seed in seeds:
        policy.seed(seed)
        policy.reset()
        action, info = policy.get_action(OBSERVATION)
        assert (action == 3) == (info["component"] == 0)
        chosen.append(info["component"])
    return np.array(chosen)


def test_an_episodes_seed_chooses_the_component() -> None:
    """By the weights, whatever was chosen before: within five standard deviations."""
    spec = "mix:0.7*constant:3+2e-1*constant:0+.1*constant:1"
    chosen = components(loaded(spec, FOUR), range(5000))
    assert (components(loaded(spec, FOUR), range(4000, 4500)) == chosen[4000:4500]).all()
    for place, weight in enumerate((0.7, 0.2, 0.1)):
        assert abs((chosen == place).mean() - weight) < 5 * np.sqrt(weight * (1 - weight) / 5000)


def test_a_component_acts_as_alone() -> None:
    """It gets the seed that it would get alone."""
    alone, mixed = RandomPolicy(FOUR.action_space), loaded("mix:0.5*random+0.5*random", FOUR)
    for seed in range(20):
        alone.seed(seed)
        mixed.seed(seed)
        mixed.reset()
        acted = [(alone.get_action(0)[0], mixed.get_action(0)[0]) for _ in range(10)]
        assert all(first == second for first, second in acted)


@pytest.mark.parametrize(
    ("spec", "code", "value"),
    [
        ("mix:0.5*random+0.4*random", "mix-weights", "0.9"),
        ("mix:0.5*random+0.5*random+1e-8*random", "mix-weights", "1.00000001"),
        ("mix:0.5*random+0.5*mix:0.5*random+0.5*constant:1", "mix-weights", "1.5"),
        ("mix:random", "policy-spec", "random"),
        ("mix:", "policy-spec", ""),
        ("mix:1*", "policy-spec", "1*"),
        ("mix:0.5*random+0.5*missing.zip", "spec-file-missing", "'missing.zip'"),
    ],
)
def test_what_is_no_mixture_is_refused(spec: str, code: str, value: str) -> None:
    with raises(PolicyLoadError, code, value):
        policy_source(spec)


def test_options_are_given_by_component() -> None:
    refused: list[dict[str, Any]] = [{"scale": 2}, {"component1": 3}, {"component2": {}}]
    for options in refused:
        with raises(PolicyLoadError, "policy-options"):
            policy_source("mix:0.5*random+0.5*random", options)
    with raises(PolicyLoadError, "policy-options"):
        policy_source("mix:0.5*constant:1+0.5*random", {"component1": {"scale": 2}})


def test_the_record_of_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It means the same in any folder; its hash follows contents and weights, and not places."""
    monkeypatch.chdir(tmp_path)
    for name, action in (("a+b.pkl", 1), ("c.pkl", 2)):
        Path(name).write_bytes(cloudpickle.dumps(lambda observation, action=action: action))
    record = policy_source("mix:0.25*a+b.pkl+0.75*random").describe()
    assert f"mix:0.25*{tmp_path}/a+b.pkl+0.75*random" == recorded_spec(record)
    assert ["a+b.pkl", "random"] == [component["spec"] for component in record["components"]]
    monkeypatch.chdir("/")
    again = policy_source(recorded_spec(record)).describe()
    assert {**record, "components": 0} == {**again, "components": 0}
    monkeypatch.chdir(tmp_path)
    others = ("0.75*a+b.pkl+0.25*random", "0.25*c.pkl+0.75*random", "0.25*a+b.pkl+0.75*constant:1")
    hashes = {record["sha256"], *(policy_source(f"mix:{spec}").describe()["sha256"] for spec in others)}
    assert 4 == len(hashes)
