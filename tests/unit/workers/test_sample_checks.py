"""Actions that are not of their space and rewards that are no numbers are found in a chunk, and named."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvError, PolicyError
from rollout_cli.workers.sample_checks import Fault, SampleChecks
from tests.support.chunks import episode, in_parts, narrowed

OBSERVATIONS = spaces.Box(-1, 1, (2,), np.float32)
TREE = spaces.Dict({"gear": spaces.Discrete(3), "wheel": spaces.Box(-1, 1, (2,), np.float32)})

BAD: list[tuple[gymnasium.Space[Any], int, Any, str]] = [
    (spaces.Discrete(3), 0, 3, "an action that is not of its space: 3 of Discrete(3)"),
    (spaces.Discrete(3), 0, -1, "an action that is not of its space: -1"),
    (spaces.Discrete(3, start=2), 0, 1, "an action that is not of its space: 1 of Discrete(3, start=2)"),
    (spaces.MultiDiscrete([2, 3]), 0, [0, 3], "an action that is not of its space: [0, 3]"),
    (spaces.MultiBinary(2), 0, [0, 2], "an action that is not of its space: [0, 2]"),
    (spaces.Box(-1, 1, (2,), np.float32), 0, [0.0, 1.5], "an action that is not of its space: [0.0, 1.5]"),
    (spaces.Box(-1, 1, (2,), np.float32), 0, [math.nan, 0.0], "an action that is not of its space: [nan, 0.0]"),
    (spaces.Box(-math.inf, math.inf, (1,), np.float64), 0, [math.nan], "an action that is not of its space: [nan]"),
    (spaces.Box(0, 9, (1,), np.uint8), 0, [10], "an action that is not of its space: [10]"),
    (spaces.Box(-1, 1, (), np.float32), 0, 2.0, "an action that is not of its space: 2.0"),
    (spaces.Text(3, charset="ab"), 0, "abc", "an action that is not of its space: 'abc'"),
    (TREE, 1, [0.0, -7.0], "an action at 'wheel' that is not of its space: [0.0, -7.0]"),
    (TREE, 0, 5, "an action at 'gear' that is not of its space: 5"),
]


def chunk_of(space: gymnasium.Space[Any], *lengths: int) -> tuple[EnvSpec, Chunk]:
    """Return episodes 10, 11, … of these lengths, with actions of `space`."""
    spec = EnvSpec(OBSERVATIONS, space)
    return spec, concatenate([episode(10 + at, length, spec=spec) for at, length in enumerate(lengths)])


def with_action(chunk: Chunk, leaf: int, row: int, value: Any) -> Chunk:
    columns = [column.copy() for column in chunk.actions]
    columns[leaf][row] = value
    return replace(chunk, actions=tuple(columns))


@pytest.mark.parametrize(("space", "leaf", "value", "message"), BAD, ids=lambda value: str(value)[:40])
def test_an_action_that_is_not_of_its_space_is_named(
    space: gymnasium.Space[Any], leaf: int, value: Any, message: str
) -> None:
    """The error says which action, of which space, and in which episode and step; a good chunk has none."""
    spec, chunk = chunk_of(space, 3, 4, 2)
    checks = SampleChecks(spec, actions=True)
    assert checks.first_fault(chunk) is None
    bad = with_action(chunk, leaf, 5, value)
    for kept in (bad, narrowed(bad)):
        fault = checks.first_fault(kept)
        assert fault is not None
        assert 1 == fault.at
        assert isinstance(fault.error, PolicyError)
        assert message in fault.error.message
        assert fault.error.message.endswith("(worker 0, episode 11, seed 1011, step 2)")
        assert "--invalid-action" in (fault.error.hint or "")


def test_actions_are_left_alone_where_they_may_be_anything() -> None:
    """With `actions=False` nothing is said of them."""
    spec, chunk = chunk_of(spaces.Discrete(3), 3)
    assert SampleChecks(spec, actions=False).first_fault(with_action(chunk, 0, 1, 9)) is None


@pytest.mark.parametrize("rewards", [[math.inf, 1.0, -math.inf], [math.inf, 0.0, 0.0], [0.0, 1.0, -2.0]])
def test_infinite_rewards_are_numbers(rewards: list[float]) -> None:
    """Also where they cancel out in a sum."""
    spec, chunk = chunk_of(spaces.Discrete(2), 3)
    assert SampleChecks(spec, actions=True).first_fault(replace(chunk, rewards=np.array(rewards))) is None


@pytest.mark.parametrize("kind", ["?", "u1", "i2", "f2", "f4"])
def test_rewards_are_looked_at_in_the_types_that_they_are_kept_in(kind: str) -> None:
    """Bools and integers are numbers; a float of any size may be none."""
    spec, chunk = chunk_of(spaces.Discrete(2), 2, 2)
    checks = SampleChecks(spec, actions=True)
    rewards = np.array([0, 1, 1, 0]).astype(kind)
    assert checks.first_fault(replace(chunk, rewards=rewards)) is None
    if rewards.dtype.kind == "f":
        rewards[3] = math.nan
        fault = checks.first_fault(replace(chunk, rewards=rewards))
        assert fault is not None
        assert "(worker 0, episode 11, seed 1011, step 1)" in fault.error.message


def test_a_reward_that_is_not_a_number_is_the_environments_fault() -> None:
    """It is named like an action."""
    spec, chunk = chunk_of(spaces.Discrete(2), 3, 4)
    rewards = chunk.rewards.copy()
    rewards[[4, 6]] = math.nan
    fault = SampleChecks(spec, actions=False).first_fault(replace(chunk, rewards=rewards))
    assert fault is not None
    assert isinstance(fault.error, EnvError)
    assert "the reward is not a number (nan) (worker 0, episode 11, seed 1011, step 1)" == fault.error.message


def test_the_first_of_several_faults_is_told() -> None:
    """Whatever is wrong with later episodes."""
    spec, chunk = chunk_of(TREE, 2, 2, 2)
    chunk = with_action(with_action(chunk, 0, 5, 7), 1, 2, math.nan)
    fault = SampleChecks(spec, actions=True).first_fault(chunk)
    assert isinstance(fault, Fault)
    assert 1 == fault.at
    assert "step 0" in fault.error.message


def test_steps_of_a_part_are_those_of_its_episode() -> None:
    """A part's rows begin at its first step."""
    spec, chunk = chunk_of(spaces.Discrete(2), 10)
    part = in_parts(chunk, [6, 10])[1]
    fault = SampleChecks(spec, actions=True).first_fault(with_action(part, 0, 1, 4))
    assert fault is not None
    assert "step 7" in fault.error.message
