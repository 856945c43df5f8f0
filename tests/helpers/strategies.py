"""Hypothesis strategies: spaces, info values, and whole episodes of them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

Space = gymnasium.Space[Any]

_SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
_KEYS = st.text("abc.", min_size=1, max_size=3)


@st.composite
def _box(draw: st.DrawFn) -> Space:
    dtype = draw(st.sampled_from([np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64]))
    return spaces.Box(0, draw(st.integers(1, 100)), draw(_SHAPES), dtype)


@st.composite
def _multi_discrete(draw: st.DrawFn) -> Space:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    return spaces.MultiDiscrete(
        np.full(shape, draw(st.integers(1, 5))), dtype=draw(st.sampled_from([np.int8, np.int64]))
    )


def _has_elements(space: Space) -> bool:
    return 0 not in (space.shape or (0,))


def _elements() -> st.SearchStrategy[Space]:
    return _box().filter(_has_elements) | st.just(spaces.Discrete(3, start=-1))


LEAF_SPACES: st.SearchStrategy[Space] = st.one_of(
    _box(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    _multi_discrete(),
    st.builds(spaces.MultiBinary, st.lists(st.integers(1, 3), min_size=1, max_size=2)),
    st.builds(spaces.Text, st.integers(1, 6)),
    st.builds(spaces.Sequence, _elements(), stack=st.booleans()),
)


def any_space() -> st.SearchStrategy[Space]:
    """Spaces of every supported kind, nested."""
    return st.recursive(
        LEAF_SPACES,
        lambda parts: st.one_of(
            st.dictionaries(_KEYS, parts, max_size=3).map(spaces.Dict),
            st.lists(parts, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=5,
    ).filter(_has_leaf)


def _has_leaf(space: Space) -> bool:
    if isinstance(space, spaces.Dict):
        return any(map(_has_leaf, space.spaces.values()))
    return not isinstance(space, spaces.Tuple) or any(map(_has_leaf, space.spaces))


def info_dicts(*, max_size: int = 8) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows of info dictionaries: sparse keys, whose values change their type from row to row."""
    values = st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=4),
        st.none(),
        st.lists(st.integers(0, 9), max_size=3),
        st.floats(width=32, allow_nan=False).map(np.float32),
        st.lists(st.integers(0, 255), min_size=2, max_size=2).map(lambda pair: np.array(pair, np.uint8)),
    )
    keys = st.sampled_from(["a", "b", "c"])
    rows = st.dictionaries(keys, values | st.dictionaries(keys, values, min_size=1, max_size=2), max_size=3)
    return st.lists(rows, max_size=max_size)
