"""What a NativeVecWorker does about vector environments and policies that keep to their contracts only nearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollout_cli.errors import EnvError, PolicyError
from tests.support import vector_envs
from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy
from tests.unit.workers.making_native import DISABLED, SAME_STEP, each_mode
from tests.unit.workers.native_under_rules import N_ENVS, FixedPolicy, run

Parts = list[Any]


class BentVectorEnv(SyncVectorEnv):
    """Rows of ChainEnv; what a step gives is changed by `bend`, from the second step on."""

    def __init__(self, mode: AutoresetMode, bend: Callable[[Parts], Any], make: Callable[[], Any] = ChainEnv) -> None:
        super().__init__([make] * N_ENVS, autoreset_mode=mode)
        self._bend, self._steps = bend, 0

    def step(self, actions: Any) -> Any:
        parts = list(super().step(actions))
        self._steps += 1
        # An environment that resets nothing by itself is tried out when it is taken, by a few steps.
        return self._bend(parts) if self._steps > (4 if self.metadata["autoreset_mode"] is DISABLED else 1) else parts


def with_part(at: int, value: Any) -> Callable[[Parts], Any]:
    """Put a value in place of one part of a step."""

    def bend(parts: Parts) -> Any:
        parts[at] = value(parts[at]) if callable(value) else value
        return tuple(parts)

    return bend


OLD = r"env.step did not give \(observation, reward, terminated, truncated, info\)"
BENT: dict[str, tuple[Callable[[Parts], Any], str]] = {
    "gym's old step": (lambda parts: tuple(parts[:4]), OLD),
    "nothing": (lambda parts: None, OLD + ": cannot unpack"),
    "few rewards": (with_part(1, np.zeros(2)), r"the rewards are not one number a row: got float64\(2,\), expected fl"),
    "texts": (with_part(1, np.array(["a", "b", "c"])), r"the rewards are not one number a row: got <U1\(3,\)"),
    "no reward": (with_part(1, None), r"the rewards are not one number a row: got object\(\)"),
    "columns": (with_part(1, np.zeros((3, 1))), r"the rewards are not one number a row: got float64\(3, 1\)"),
    "odd rewards": (with_part(1, [[1.0], 2.0, 3.0]), r"the rewards are not one number a row: got list \[\[1.0\], 2.0"),
    "few flags": (with_part(2, np.zeros(2, bool)), r"terminated is not one bool a row: got bool\(2,\), expected bool"),
    "one flag": (with_part(3, False), r"truncated is not one bool a row: got bool False, expected bool\(3,\)"),
    "numbers": (with_part(2, np.full(3, 0.5)), r"terminated is not one bool a row: got float64\(3,\)"),
    "twos": (with_part(3, np.full(3, 2)), r"truncated is not one bool a row: got int64\(3,\)"),
    "odd flags": (with_part(3, [[True], False, True]), r"truncated is not one bool a row: got list \[\[True\]"),
    "few rows": (with_part(0, lambda seen: seen[:2]), r"the observation is not of its space: got float32\(2, 3\), ex"),
    "flat rows": (with_part(0, lambda seen: seen[:, :2]), r"the observation is not of its space: got float32\(3, 2\)"),
    "other numbers": (with_part(0, lambda seen: seen.astype(complex)), r"the observation is not of its space: got co"),
    "ragged": (with_part(0, lambda seen: [[1.0], 2.0, 3.0]), r"the observation is not of its space: got list \[\[1.0"),
    "no mapping": (with_part(4, [1]), r"infos are a mapping, not list \[1\]"),
    "short masks": (with_part(4, {"x": np.zeros(3), "_x": np.ones(2, bool)}), "the infos of env.step cannot be told"),
}


class Named(gymnasium.ObservationWrapper[Any, Any, Any]):
    """ChainEnv, whose observation is the one entry of a dictionary."""

    def __init__(self) -> None:
        super().__init__(ChainEnv())
        self.observation_space = spaces.Dict(chain=self.env.observation_space)

    def observation(self, observation: Any) -> Any:
        return {"chain": observation}


@each_mode
def test_an_array_is_no_dictionary_of_it(mode: AutoresetMode) -> None:
    """Also where shape and type are those of its only entry."""
    bend = with_part(0, lambda seen: seen["chain"])
    with pytest.raises(EnvError, match=r"^the observation raised IndexError: .*\(worker 0, "):
        run(BentVectorEnv(mode, bend, Named), LinearPolicy)


@each_mode
@pytest.mark.parametrize("name", BENT)
def test_what_is_not_of_the_interface_is_told(mode: AutoresetMode, name: str) -> None:
    """One line with both sides, whose step it was, and a hint."""
    bend, message = BENT[name]
    with pytest.raises(EnvError, match=rf"^{message}.* \(worker 0, episodes 0 to \d, step \d of 3 rows\)$") as caught:
        run(BentVectorEnv(mode, bend), LinearPolicy)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@each_mode
@pytest.mark.parametrize("kind", [np.int8, list, np.asarray])
def test_what_is_as_good_as_bools_will_do(mode: AutoresetMode, kind: Any) -> None:
    """Zeros and ones, and lists of bools."""
    convert = (lambda flags: flags.astype(np.int8)) if kind is np.int8 else kind
    expected, _ = run(BentVectorEnv(mode, tuple), LinearPolicy)
    actual, _ = run(BentVectorEnv(mode, with_part(2, convert)), LinearPolicy)
    assert expected.lengths.tolist() == actual.lengths.tolist()
    assert expected.terminated.tolist() == actual.terminated.tolist()


def test_last_observations_of_another_shape_are_told() -> None:
    """Those that an environment hands on beside the first ones of the next episodes."""

    def bend(parts: Parts) -> Any:
        found = parts[4].get("final_obs", ())
        for row, last in enumerate(found):
            if last is not None:
                found[row] = last[:2]
        return tuple(parts)

    with pytest.raises(EnvError, match=r"the last observation is not of its space: got the shape \(2,\), expected \(3"):
        run(BentVectorEnv(SAME_STEP, bend), LinearPolicy)


# -- policies ----------------------------------------------------------------------------------------------------------

POLICIES: dict[str, tuple[Any, str]] = {
    "few rows": (
        (np.zeros(2, int), {}),
        r"the policy gave bad actions: got int64\(2,\), expected int64\(3,\), one for",
    ),
    "many rows": ((np.zeros(4, int), {}), r"the policy gave bad actions: got int64\(4,\), expected int64\(3,\), one f"),
    "one action": ((1, {}), r"the policy gave bad actions: got int64\(\), expected int64\(3,\), one for each of the 3"),
    "ragged": (([[1], 1, 1], {}), r"the policy gave bad actions: got list \[\[1\], 1, 1\], expected int64"),
    "no infos": (np.zeros(3, int), "policy.get_actions raised ValueError"),
    "short masks": (
        (np.zeros(3, int), {"x": np.ma.MaskedArray(np.zeros((2, 1)), np.zeros((2, 1), bool))}),
        "the infos of policy.get_actions cannot be told by row",
    ),
}


@each_mode
@pytest.mark.parametrize("name", POLICIES)
def test_policies_that_do_not_act_for_each_row(mode: AutoresetMode, name: str) -> None:
    """The policy's error, with both sides and whose step it was."""
    given, message = POLICIES[name]
    policy = type("Given", (FixedPolicy,), {"given": given})
    with pytest.raises(PolicyError, match=rf"^{message}.* \(worker 0, episodes 0 to 2, step 0 of 3 rows\)$") as caught:
        run(vector_envs.chain(N_ENVS, mode), policy)
    assert caught.value.hint
