"""Spaces survive the way through JSON."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.dataset.space_json import space_from_json, space_to_json
from rollout_cli.errors import DatasetFormatError, UnsupportedSpaceError

SPACES: list[gymnasium.Space[Any]] = [
    spaces.Box(-1, 1, (2, 3)),
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Box(np.array([-np.inf, 0.1], np.float32), np.array([2, np.inf], np.float32)),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(0, 1, (0, 2)),
    spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64),
    spaces.Discrete(5, start=-2),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiDiscrete([2, 3], start=[1, -1]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int32),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    spaces.Text(8, min_length=2, charset="abä"),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple((spaces.Text(3), spaces.Box(0, 1, (1,))))}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back_equal(space: gymnasium.Space[Any]) -> None:
    """Type, bounds, dtype, shape and start."""
    text = json.dumps(space_to_json(space), allow_nan=False)
    back = space_from_json(json.loads(text))
    assert space == back
    assert space.dtype == back.dtype
    assert space.shape == back.shape


def test_dict_keys_keep_their_order_and_type() -> None:
    """The order decides the order of columns."""
    space = spaces.Dict([("z", spaces.Discrete(2)), (1, spaces.Discrete(3))])  # type: ignore[list-item]
    back = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert isinstance(back, spaces.Dict)
    assert ["z", 1] == list(back.spaces)


def test_a_space_without_fixed_columns_is_refused() -> None:
    """Sequence has none."""
    with pytest.raises(UnsupportedSpaceError, match="Sequence"):
        space_to_json(spaces.Sequence(spaces.Discrete(2)))


@pytest.mark.parametrize("document", [{}, {"type": "Nothing"}, {"type": "Box"}, {"type": "Discrete", "n": "x"}])
def test_a_broken_description_is_a_format_error(document: dict[str, Any]) -> None:
    """No KeyError reaches the user."""
    with pytest.raises(DatasetFormatError, match="description of a space"):
        space_from_json(document)
