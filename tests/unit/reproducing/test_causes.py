"""What is guessed from the fields that differ."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_cli.comparing import Difference
from rollout_cli.reproducing.causes import likely_cause

NORMALISED = {"class": "my.Env", "wrappers": ["gymnasium.wrappers.stateful_observation.NormalizeObservation"]}
PLAIN: dict[str, Any] = {"class": "my.pkg.Env", "wrappers": ["my.Wrapper"]}


def cause(env: dict[str, Any], *fields: str, step: int = 2) -> str:
    found = [Difference(field, step, (), (1, 2)) for field in fields]
    told = likely_cause(found, env, "my.Policy")
    return f"{told.reason} -> {told.hint}"


@pytest.mark.parametrize(
    ("env", "fields", "words"),
    [
        (PLAIN, ["env_info.episode.t"], ["how long", "RecordEpisodeStatistics", "--drop-info episode.t"]),
        (PLAIN, ["agent_info.step_time", "env_info.wall.seconds"], ["--drop-info step_time --drop-info wall.seconds"]),
        (PLAIN, ["env_info.games"], ["a count over episodes", "--drop-info games"]),
        (PLAIN, ["env_info.a", "agent_info.a"], ["leave it out: --drop-info a"]),
        (NORMALISED, ["observation", "action"], ["NormalizeObservation keeps running statistics", "freeze"]),
        (NORMALISED, ["action", "reward"], ["the policy (my.Policy) acted otherwise", "reset"]),
        # An info that differs earlier than what counts.
        (PLAIN, ["agent_info.calls", "action"], ["the policy (my.Policy) acted otherwise"]),
        (PLAIN, ["observation.camera"], ["Env (in Wrapper) answered the same actions otherwise", "np_random"]),
        (PLAIN, ["terminated", "length"], ["answered the same actions otherwise"]),
        (PLAIN, ["seed"], ["worker class"]),
        ({}, ["reward"], ["the environment answered"]),
    ],
)
def test_causes(env: dict[str, Any], fields: list[str], words: list[str]) -> None:
    """Infos alone, then policy or environment, whichever differs first; normalising wrappers by name."""
    for word in words:
        assert word in cause(env, *fields)


def test_a_reset_that_differs() -> None:
    """At step 0 nothing was done yet: the reset itself does not follow from its seed."""
    assert "with the same seed" in cause(PLAIN, "observation", step=0)
