"""EpisodeBatch with fragments: where they begin is kept, checked, and told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec, EpisodeBatch, derive_step_types
from tests.support.chunks import episode

SPEC = EnvSpec(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))


def fragments(lengths: list[int], first_steps: list[int]) -> EpisodeBatch:
    chunks = [episode(at, length, spec=SPEC) for at, length in enumerate(lengths)]
    return EpisodeBatch.from_chunks(SPEC, chunks, first_steps=np.array(first_steps, np.int64))


def test_whole_episodes_begin_with_step_0() -> None:
    """Without first steps they are zeros, one an episode."""
    batch = EpisodeBatch.from_chunks(SPEC, [episode(0, 3, spec=SPEC), episode(1, 2, spec=SPEC)])
    assert ("int64", [0, 0]) == (batch.first_steps.dtype.name, batch.first_steps.tolist())
    fields = {name: value for name, value in vars(batch).items() if name != "first_steps"}
    assert [0, 0] == EpisodeBatch(**fields).first_steps.tolist()


def test_only_an_episodes_own_begin_is_first() -> None:
    """A fragment from further on begins with MID."""
    types = derive_step_types(np.array([2, 2]), np.zeros(2, bool), np.zeros(2, bool), np.array([0, 5]))
    assert [0, 1, 1, 1] == types.tolist()


def test_they_go_through_lists_and_pieces() -> None:
    """Splitting, joining and lists keep them."""
    batch = fragments([2, 3], [4, 0])
    assert [[4], [0]] == [piece.first_steps.tolist() for piece in batch.split()]
    assert [4, 0, 4, 0] == EpisodeBatch.concatenate(batch, batch).first_steps.tolist()
    assert [4, 0] == [one["first_step"] for one in batch.to_list()]
    assert [4, 0] == EpisodeBatch.from_list(SPEC, batch.to_list()).first_steps.tolist()


@pytest.mark.parametrize(
    ("first_steps", "message"),
    [
        (np.array([-1, 0]), r"first_steps\[0\] is -1: the first step of an episode is step 0"),
        (np.array([0.0, 1.0]), r"first_steps is float64 of shape \(2,\), expected int64 of shape \(2,\)"),
        (np.array([0]), r"first_steps is int64 of shape \(1,\), expected int64 of shape \(2,\)"),
        (np.array([0, 3]), r"step_types\[2\] is 0, but .* episode 1 .*, first step 3\) give 1"),
    ],
)
def test_what_cannot_be_is_refused(first_steps: Any, message: str) -> None:
    """Dtype, length, sign, and step types that do not fit."""
    with pytest.raises(ValueError, match=message):
        replace(fragments([2, 3], [0, 0]), first_steps=first_steps)
