"""EpisodeBatch: step types follow from lengths and flags, and a field that does not fit is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollout_cli.episode_batch import StepType, derive_step_types
from tests.unit.batches import make

# -- step types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terminated", "truncated", "last"),
    [
        (True, False, StepType.TERMINAL),
        (False, True, StepType.TIMEOUT),
        (True, True, StepType.TERMINAL),
        (False, False, StepType.MID),
    ],
)
def test_the_last_step(terminated: bool, truncated: bool, last: StepType) -> None:
    """Termination wins over truncation; a fragment that ended by neither ends with MID."""
    types = derive_step_types(np.array([3]), np.array([terminated]), np.array([truncated]))
    assert ("uint8", [0, 1, last]) == (types.dtype.name, types.tolist())


@pytest.mark.parametrize(("terminated", "truncated", "only"), [(True, False, 2), (False, True, 3), (False, False, 0)])
def test_an_episode_of_one_step(terminated: bool, truncated: bool, only: int) -> None:
    """Its ending wins over FIRST."""
    assert [only] == derive_step_types(np.array([1]), np.array([terminated]), np.array([truncated])).tolist()


def test_step_types_of_several_episodes() -> None:
    """Each episode has its own; none at all gives no rows; an empty one takes none."""
    flags = np.array([True, False, True, True, False]), np.array([False, True, False, False, True])
    assert [0, 2, 3, 2] == derive_step_types(np.array([2, 1, 0, 1, 0]), *flags).tolist()
    nothing = np.zeros(0, bool)
    assert [] == derive_step_types(np.zeros(0, np.int64), nothing, nothing).tolist()


# -- checks ---------------------------------------------------------------------------------------------------------

FLOAT32 = np.float32


def _box(rows: int, *, dtype: Any = FLOAT32, width: int = 2) -> Any:
    return np.zeros((rows, width), dtype)


def _pair(rows: int) -> Any:
    return np.zeros(rows, np.int64), np.full(rows, "a", object)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("lengths", np.array([2, 4]), "observations.box is float32 of shape (5, 2), expected float32 of shape (6, 2)"),
        ("lengths", np.array([5, 0]), "lengths[1] is 0: an episode has at least one step"),
        ("lengths", np.zeros(0, np.int64), "lengths is empty"),
        ("lengths", np.array([[2], [3]]), "lengths is int64 of shape (2, 1), expected int64 of shape (episodes,)"),
        ("lengths", np.array([2.0, 3.0]), "lengths is float64 of shape (2,), expected int64"),
        ("lengths", [2, 3], "lengths is a list, expected int64"),
        ("rewards", np.zeros(6), "rewards is float64 of shape (6,), expected float64 of shape (5,)"),
        ("rewards", np.zeros((5, 1)), "rewards is float64 of shape (5, 1), expected float64 of shape (5,)"),
        ("rewards", np.zeros(5, np.float32), "rewards is float32 of shape (5,), expected float64 of shape (5,)"),
        ("rewards", [0.0] * 5, "rewards is a list, expected float64 of shape (5,)"),
        ("step_types", np.zeros(4, np.uint8), "step_types is uint8 of shape (4,), expected uint8 of shape (5,)"),
        ("step_types", np.zeros(5, np.int64), "step_types is int64 of shape (5,), expected uint8 of shape (5,)"),
        ("terminated", np.array([True]), "terminated is bool of shape (1,), expected bool of shape (2,)"),
        ("terminated", np.array([1, 0]), "terminated is int64 of shape (2,), expected bool of shape (2,)"),
        ("truncated", np.array([True] * 3), "truncated is bool of shape (3,), expected bool of shape (2,)"),
        ("numbers", np.zeros(3, np.int64), "numbers is int64 of shape (3,), expected int64 of shape (2,)"),
        ("numbers", np.zeros(2), "numbers is float64 of shape (2,), expected int64 of shape (2,)"),
        ("seeds", np.zeros((2, 1), np.int64), "seeds is int64 of shape (2, 1), expected int64 of shape (2,)"),
        ("first_steps", np.array([0, -1]), "first_steps[1] is -1: the first step of an episode is step 0"),
        ("first_steps", np.zeros(3, np.int64), "first_steps is int64 of shape (3,), expected int64 of shape (2,)"),
        ("actions", _box(5), "actions is float32 of shape (5, 2), expected int64 of shape (5, 2)"),
        ("observations", _box(5), "observations is float32 of shape (5, 2), expected a dict of ['box', 'pair']"),
        ("observations", {"box": _box(5)}, "observations is a dict of ['box'], expected a dict of ['box', 'pair']"),
        (
            "observations",
            {"box": _box(5), "pair": _pair(5), "more": _box(5)},
            "observations is a dict of ['box', 'pair', 'more'], expected a dict of ['box', 'pair']",
        ),
        (
            "observations",
            {"box": _box(5), "pair": (*_pair(5), _box(5))},
            "observations.pair is a tuple of 3, expected a tuple of 2",
        ),
        (
            "observations",
            {"box": _box(5), "pair": np.zeros((5, 2))},
            "observations.pair is float64 of shape (5, 2), expected a tuple of 2",
        ),
        (
            "observations",
            {"box": _box(5, width=3), "pair": _pair(5)},
            "observations.box is float32 of shape (5, 3), expected float32 of shape (5, 2)",
        ),
        (
            "observations",
            {"box": _box(5, dtype=np.float64), "pair": _pair(5)},
            "observations.box is float64 of shape (5, 2), expected float32 of shape (5, 2)",
        ),
        (
            "observations",
            {"box": _box(5), "pair": (_pair(5)[0], np.full(5, "a"))},
            "observations.pair.1 is <U1 of shape (5,), expected object of shape (5,)",
        ),
        (
            "observations",
            {"box": _box(5), "pair": (_pair(5)[0], np.array(["a", "b", 3, "c", "d"], object))},
            "observations.pair.1[2] is a int, expected a text",
        ),
        (
            "last_observations",
            {"box": _box(5), "pair": _pair(2)},
            "last_observations.box is float32 of shape (5, 2), expected float32 of shape (2, 2)",
        ),
        ("env_infos", {"x": np.zeros((6, 2))}, "env_infos['x'] is float64 of shape (6, 2), expected shape (5, 2)"),
        ("env_infos", {"x": np.float64(1)}, "env_infos['x'] is a float64, expected shape (5,)"),
        ("agent_infos", {"x": [1] * 5}, "agent_infos['x'] is a list, expected shape (5,)"),
        ("episode_infos", {"x": np.zeros(5)}, "episode_infos['x'] is float64 of shape (5,), expected shape (2,)"),
    ],
)
def test_what_does_not_fit_is_named(field: str, value: Any, message: str) -> None:
    """Each field is checked; the error names it and prints what it is and what was expected."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  The message is compared as a whole below.
        replace(make([2, 3]), **{field: value})
    assert message == str(caught.value)[: len(message)]


@pytest.mark.parametrize(
    ("row", "value", "message"),
    [
        (1, 3, "step_types[1] is 3, but the lengths and flags of episode 0 (terminated True, truncated False) give 2"),
        (4, 2, "step_types[4] is 2, but the lengths and flags of episode 1 (terminated False, truncated True) give 3"),
        (3, 0, "step_types[3] is 0, but the lengths and flags of episode 1 (terminated False, truncated True) give 1"),
    ],
)
def test_step_types_must_follow_from_the_flags(row: int, value: int, message: str) -> None:
    """The error names row, episode and flags, and prints both types."""
    batch = make([2, 3])
    types = batch.step_types.copy()
    types[row] = value
    with pytest.raises(ValueError) as caught:  # noqa: PT011  The message is compared as a whole below.
        replace(batch, step_types=types)
    assert message == str(caught.value)
