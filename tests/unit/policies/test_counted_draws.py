"""CountedDraws: what is drawn faster is what is drawn by the general way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.policies import counted_draws
from rollout_cli.policies.counted_draws import CountedDraws, multiples, stream_keys

SPACES = [spaces.Discrete(count, start=start) for count in (2, 4, 256, 65_536) for start in (0, 3, -5)]


def keys() -> tuple[counted_draws.Words, counted_draws.Words]:
    return stream_keys(np.random.default_rng(0).integers(0, 1 << 62, 50))


@pytest.mark.parametrize("space", [*SPACES, spaces.MultiBinary((2, 3)), spaces.Box(-128, 127, (2,), np.int8)], ids=str)
def test_of_a_power_of_two(space: spaces.Space[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the word's highest bits, as of its upper half times the span."""
    steps = np.arange(50, dtype=np.uint64)
    (found,) = CountedDraws(space).columns(*keys(), steps)
    seen = []

    def by_the_general_way(bounds: Any, _unused: np.uint64, words: counted_draws.Words) -> Any:
        seen.append(bounds)
        return counted_draws._draw_few(bounds, words)

    monkeypatch.setattr(counted_draws, "_draw_bits", by_the_general_way)
    (expected,) = CountedDraws(space).columns(*keys(), steps)
    assert 1 == len(seen)
    assert expected.dtype == found.dtype
    assert expected.tolist() == found.tolist()


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 5])], ids=str)
def test_steps_that_follow_one_another(space: spaces.Space[object]) -> None:
    """As each of them alone, wherever the rows stand."""
    starts, gammas = keys()
    steps = np.arange(50, dtype=np.uint64) * np.uint64(7)
    (found,) = CountedDraws(space).next_columns(starts, gammas, steps, multiples(gammas, 4))
    alone = [CountedDraws(space).columns(starts, gammas, steps + np.uint64(ahead))[0] for ahead in range(4)]
    assert np.concatenate(alone).tolist() == found.tolist()
