"""Infos that are not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_cli.info_filter import InfoFilter
from rollout_cli.workers import WorkerFactory
from tests.support.chunks import BOX_SPEC, episode

INFO = {"episode": {"t": 0.5, "r": 1.0}, "step_time": 2, "bad": lambda: None, "plain": 3}


def names(*patterns: str) -> list[str]:
    """Return the env infos that are left with these patterns."""
    chunk = InfoFilter(patterns).without(episode(0, 2, env_info=lambda _, __: INFO))
    return sorted(".".join(column.path) for column in chunk.env_infos.columns)


ALL = ["episode.r", "episode.t", "plain", "step_time"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("episode.t", ["episode.r", "plain", "step_time"]),
        ("episode", ["plain", "step_time"]),
        ("episode.*", ["plain", "step_time"]),
        ("*t*", ["episode.r", "plain"]),
        ("env_info.plain", ["episode.r", "episode.t", "step_time"]),
        ("agent_info.plain", ALL),
        ("epi", ALL),
        ("EPISODE", ALL),
        ("t", ALL),
    ],
)
def test_patterns(pattern: str, left: list[str]) -> None:
    """A dotted path or a glob of it, and all below; the name of a group may stand before it."""
    assert left == names(pattern)


def test_all_three_groups_are_filtered_and_counted() -> None:
    """A name means infos of steps, policies and resets; what was left out is counted by its path."""
    chunk = episode(0, 3, env_info=lambda _, __: INFO, agent_info=lambda _, __: INFO, episode_info=lambda _, __: INFO)
    kept = InfoFilter(("plain",)).without(chunk)
    tables = (kept.env_infos, kept.agent_infos, kept.episode_infos)
    assert [{"bad": n, "plain": n} for n in (3, 3, 1)] == [dict(table.dropped) for table in tables]
    assert all(("plain",) != column.path for table in tables for column in table.columns)


def test_what_is_left_is_the_same() -> None:
    """A chunk with no such info keeps its tables as they are."""
    chunk = episode(0, 3, env_info=lambda _, __: INFO)
    assert chunk.env_infos is InfoFilter(("nothing",)).without(chunk).env_infos


def test_patterns_that_matched_nothing() -> None:
    """They are found from the names that something was dropped of."""
    dropped = ["env_info.episode.t", "agent_info.p"]
    patterns = ("episode", "p", "env_info.p", "x")
    assert ["env_info.p", "x"] == InfoFilter(patterns).never_met(dropped)


def test_a_factory_without_patterns_hands_chunks_on() -> None:
    """Nothing is looked at then."""

    class Stub:
        env_spec = BOX_SPEC

        def take(self) -> Any:
            return chunk

    chunk = episode(0, 2, env_info=lambda _, __: INFO)
    stub: Any = Stub()
    assert (chunk, None) == WorkerFactory(n_workers=1).take(stub)
    taken, _ = WorkerFactory(n_workers=1, drop_infos=["plain"]).take(stub)
    assert taken is not None
    assert 3 == len(taken.env_infos.columns)
