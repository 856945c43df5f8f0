"""The schema window: which info columns there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.dataset.holdback import Holdback
from rollout_cli.dataset.window import InfoSchema, SchemaWindow
from tests.support.chunks import episode, in_parts


def observed(*chunks: Chunk, min_steps: int = 10) -> tuple[SchemaWindow, dict[str, str]]:
    window = SchemaWindow(min_steps)
    for chunk in chunks:
        window.observe(chunk)
    return window, {field.key: field.kind for field in window.result().env}


def with_values(*values: Any) -> Chunk:
    """Return an episode whose steps have these values at `x`."""
    return episode(0, len(values), env_info=lambda _, step: {"x": values[step]})


def test_it_closes_at_the_end_of_the_episode_that_fills_it() -> None:
    """Nine steps leave it open, ten close it."""
    assert not observed(episode(0, 9))[0].closed
    assert observed(episode(0, 4), episode(1, 6))[0].closed


def test_what_lies_behind_it_in_the_same_chunk_is_not_looked_at() -> None:
    """Episodes 0 and 1 fill it; the key of episode 2 has no column, however they travelled."""
    episodes = [episode(n, 5, env_info=lambda n, _: {f"k{n}": 1}) for n in range(3)]
    expected = {"k0": "int64", "k1": "int64"}
    assert expected == observed(concatenate(episodes))[1]
    assert expected == observed(*episodes)[1]


def test_a_long_episode_belongs_to_it_whole() -> None:
    """A key at the last step of an episode in parts has a column."""
    whole = episode(0, 50, env_info=lambda _, step: {"end": 1.0} if step == 49 else {})
    parts = in_parts(whole, [20, 40, 50])
    assert not observed(*parts[:2])[0].closed
    window, kinds = observed(*parts)
    assert window.closed
    assert {"end": "float64"} == kinds


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2), "int64"),
        ((1, 2.5), "float64"),
        ((2**53 + 1, 2.5), None),
        ((2**60, 2.5), "float64"),
        ((2**63 - 1, 2.5), None),
        ((np.int8(1), np.int32(2)), "int32"),
        ((np.uint8(1), np.int8(2)), "int16"),
        ((np.uint64(1), np.int64(2)), None),
        ((np.float32(1), 2.5), "float64"),
        ((np.float16(1), np.float32(2)), "float32"),
        ((np.int32(1), np.float32(2)), "float64"),
        ((True, 1), None),
        (("a", 1), None),
        (("a", "b"), "string"),
        ((None, 1), "int64"),
        (([1, 2], None), None),
        ((np.zeros(2, np.int32), np.zeros(2)), "float64[2]"),
        ((np.zeros(2), np.zeros(3)), None),
        ((np.zeros(1), 1.0), None),
    ],
)
def test_a_path_gets_the_type_that_holds_all_its_values_exactly(values: tuple[Any, ...], kind: str | None) -> None:
    """Mixed widths join in the widest; what has no common exact type has no column."""
    assert ({"x": kind} if kind else {}) == observed(with_values(*values))[1]


def test_exactness_is_asked_of_all_values_of_the_window() -> None:
    """An inexact integer in one chunk and a float in another."""
    assert {} == observed(with_values(2**53 + 1), with_values(0.5))[1]
    assert {} == observed(with_values(0.5), with_values(1), with_values(2**53 + 1))[1]


def test_columns_are_sorted_and_the_first_of_two_equal_names_wins() -> None:
    """`{"a.b": …}` and `{"a": {"b": …}}` read alike once dotted."""
    chunk = episode(0, 2, env_info=lambda *_: {"z": 1, "a.b": "text", "a": {"b": 1.0}})
    window = SchemaWindow(1)
    window.observe(chunk)
    assert [(("a", "b"), "float64"), (("z",), "int64")] == [(f.path, f.kind) for f in window.result().env]


def test_agent_and_episode_infos_have_columns_of_their_own() -> None:
    """Three groups."""

    def info(name: str) -> Callable[[int, int], Mapping[Any, Any]]:
        return lambda *_: {name: 1}

    window = SchemaWindow(1)
    window.observe(episode(0, 2, env_info=info("e"), agent_info=info("a"), episode_info=info("r")))
    result: InfoSchema = window.result()
    assert [["e"], ["a"], ["r"]] == [[f.key for f in group] for group in (result.env, result.agent, result.episode)]


def test_with_lanes_it_follows_the_numbers() -> None:
    """Lane 1 begins where lane 0 ends, so its early chunks wait for lane 0."""
    holdback = Holdback(n_lanes=2, base=0)
    keyed = [episode(n, 400, env_info=lambda n, _: {f"k{n}": 1}) for n in range(4)]
    holdback.hold(keyed[2], 1)
    holdback.hold(keyed[3], 1)
    holdback.hold(keyed[0], 0)
    waiting = holdback.closed
    holdback.hold(keyed[1], 0)
    assert (False, True) == (waiting, holdback.closed)
    assert ["k0", "k1", "k2"] == [field.key for field in holdback.result().env]
    assert [(2, 1), (3, 1), (0, 0), (1, 0)] == [(int(c.numbers[0]), lane) for c, lane in holdback.release()]


def test_episodes_that_are_not_kept_take_part() -> None:
    """A plan that begins at episode 2 has the columns of episodes 0 and 1."""
    holdback = Holdback(n_lanes=1, base=0)
    for number in range(2):
        holdback.observe(episode(number, 600, env_info=lambda n, _: {f"k{n}": 1}))
    holdback.hold(episode(2, 10, env_info=lambda *_: {"late": 1}), 0)
    assert ["k0", "k1"] == [field.key for field in holdback.result().env]
