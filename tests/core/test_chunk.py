"""Chunks: cut, joined, split into parts, pickled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate, episode_returns, for_transport, sum_of
from tests.helpers.chunks import BOX_SPEC, episode
from tests.helpers.contents import chunk_contents

TREE_SPEC = EnvSpec(
    spaces.Dict({"box": spaces.Box(-1, 1, (3,), np.float32), "say": spaces.Text(4)}),
    spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
)


def info(number: int, step: int) -> Mapping[Any, Any]:
    """Return infos that some steps lack, of a type that changes, with one value that cannot be stored."""
    value = "text" if number % 2 else float(step)
    return {"always": step, "mixed": value, "odd": len} if step % 3 != 1 else {"always": step}


def episodes(lengths: list[int], *, spec: EnvSpec = TREE_SPEC) -> list[Chunk]:
    return [
        episode(at, n, spec=spec, env_info=info, agent_info=info, episode_info=info)
        for at, n in enumerate(lengths)
    ]


LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@given(LENGTHS, st.data())
def test_cut_and_join(lengths: list[int], data: st.DataObject) -> None:
    """Any run of episodes of a joined chunk is those episodes joined, and joining the runs gives the chunk."""
    single = episodes(lengths)
    whole = concatenate(single)
    assert (len(lengths), sum(lengths)) == (whole.n_episodes, whole.n_steps)
    start = data.draw(st.integers(0, len(lengths) - 1))
    stop = data.draw(st.integers(start + 1, len(lengths)))
    run = concatenate(single[start:stop])
    cut = chunk_contents(whole.episodes(start, stop))
    for name in ("env_infos", "agent_infos", "episode_infos"):
        # Columns keep the order in which the whole chunk met them.
        assert _as_set(chunk_contents(run).pop(name)) == _as_set(cut.pop(name))
    assert cut == {name: value for name, value in chunk_contents(run).items() if name in cut}
    pieces = [whole.episodes(a, b) for a, b in ((0, start), (start, stop), (stop, len(lengths))) if a < b]
    assert chunk_contents(whole) == chunk_contents(concatenate(pieces))


def _as_set(table: Any) -> Any:
    n_rows, columns, dropped = table
    return n_rows, sorted(columns, key=repr), dropped


def test_episodes_are_views() -> None:
    """Cutting copies no column."""
    whole = concatenate(episodes([3, 2]))
    cut = whole.episodes(1, 2)
    assert np.shares_memory(whole.rewards, cut.rewards)
    assert np.shares_memory(whole.observations[0], cut.observations[0])
    assert whole.episodes(0, 2) is whole
    assert concatenate([whole]) is whole


def test_no_episodes() -> None:
    """An empty run has the columns' types and no rows, wherever it stands."""
    whole = concatenate(episodes([3, 2]))
    for at in range(3):
        empty = whole.episodes(at, at)
        assert (0, 0, 0) == (empty.n_episodes, empty.n_steps, empty.env_infos.n_rows)
        assert [(0, 3), (0,)] == [column.shape for column in empty.observations]


def test_nothing_cannot_be_joined() -> None:
    """It would have no columns."""
    with pytest.raises(ValueError, match="no chunk"):
        concatenate([])


@given(LENGTHS)
def test_variable_bytes_are_those_of_texts_and_infos(lengths: list[int]) -> None:
    """They depend on an episode alone: however chunks are joined or cut, each episode counts the same."""
    single = episodes(lengths)
    alone = [int(chunk.variable_bytes[0]) for chunk in single]
    whole = concatenate(single)
    assert alone == whole.variable_bytes.tolist()
    assert alone[-1:] == whole.episodes(len(lengths) - 1, len(lengths)).variable_bytes.tolist()
    assert sum(alone) == whole.variable_bytes.sum()


def test_variable_bytes_by_hand() -> None:
    """Texts count their UTF-8 bytes and numbers eight; what the length tells does not count."""
    chunk = episode(0, 2, env_info=lambda _, step: {"x": np.zeros(3, np.float32), "t": "äb"} if step else {})
    assert 3 * 8 + 3 == chunk.variable_bytes.sum()
    odd = {"json": [1, None, "äb", {"key": 0.5}], "nan": [math.nan, "nan"], "escaped": "\udc80"}
    assert (8 + 8 + 3 + 3 + 8) + (8 + 8) + 6 == episode(0, 1, env_info=lambda *_: odd).variable_bytes.sum()
    reset = concatenate([episode(n, 2, episode_info=lambda n, _: {"prompt": "x" * n}) for n in (0, 5)])
    assert [0, 5] == reset.variable_bytes.tolist()
    texts = EnvSpec(spaces.Text(9, min_length=0), BOX_SPEC.action_space)
    spoken = episode(0, 2, spec=texts)
    read = [*spoken.observations[0], *spoken.last_observations[0]]
    assert sum(len(text) for text in read) == spoken.variable_bytes.sum()


def test_transport_keeps_a_small_chunk_whole() -> None:
    """A chunk of many short episodes travels as it is; over the limit in halves, down to one episode."""
    single = episodes([2, 9, 2])
    whole = concatenate(single)
    assert [whole] == for_transport(whole)
    limit = whole.n_bytes - 1
    assert [[0], [1, 2]] == [chunk.numbers.tolist() for chunk in for_transport(whole, limit)]
    assert chunk_contents(whole) == chunk_contents(concatenate(for_transport(whole, limit)))


def test_sizes() -> None:
    """Bytes count the columns' memory; a text counts as the reference it is."""
    (chunk,) = episodes([4])
    assert 4 * (3 * 4 + 8) + (3 * 4 + 8) + 4 * (8 + 2) + 4 * 8 == chunk.n_bytes


def test_sums_that_no_float_can_say() -> None:
    """Without a warning, which a run would show: large rewards stand for never."""
    assert [math.inf, -math.inf] == [sum_of(np.full(2, sign * 1.7e308)) for sign in (1, -1)]
    assert math.isnan(sum_of(np.array([math.inf, -math.inf])))


def test_returns_that_no_float_can_say() -> None:
    """They are nan or infinite, and numpy does not warn: whoever records them does."""
    rewards = np.array([1e308, 1e308, math.inf, -math.inf, 2.0])
    assert ["inf", "nan", "2.0"] == [str(value) for value in episode_returns([rewards], np.array([2, 2, 1]))]
