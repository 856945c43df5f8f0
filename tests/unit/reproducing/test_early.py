"""Which early episodes are kept, and which are chosen to be run again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.reproducing import early
from rollout_cli.reproducing.early import EarlyEpisodes, number_of
from tests.support.chunks import episode, in_parts


def kept(chunks: Sequence[Chunk]) -> EarlyEpisodes:
    episodes = EarlyEpisodes()
    for chunk in chunks:
        episodes.keep(chunk)
    return episodes


def numbers(episodes: Sequence[Chunk]) -> list[int]:
    return [number_of(chunk) for chunk in episodes]


def run_by(*workers: int, length: int = 5) -> list[Chunk]:
    """Return one chunk of episodes 0, 1, 2, … of these workers."""
    return [concatenate([episode(number, length, worker=worker) for number, worker in enumerate(workers)])]


def test_two_of_each_worker_are_kept() -> None:
    """The first two of each, of which nothing is shared with the chunk."""
    chunks = run_by(0, 0, 0, 1, 0, 2, 1, 1)
    found = kept(chunks).kept
    assert [0, 1, 3, 6, 5] == numbers(found)
    assert not any(np.shares_memory(chunk.rewards, chunks[0].rewards) for chunk in found)
    np.testing.assert_array_equal(found[2].observations[0], episode(3, 5).observations[0])


def test_episodes_of_other_workers_are_preferred() -> None:
    """Worker 0 runs them again; the one with the higher number comes first, so that no predecessor is the same."""
    assert [6, 3] == numbers(kept(run_by(0, 0, 0, 1, 0, 0, 1, 1)).chosen(100))
    assert [3, 0] == numbers(kept(run_by(0, 0, 0, 1)).chosen(100))
    assert [1, 0] == numbers(kept(run_by(0, 0, 0)).chosen(100))
    assert [0] == numbers(kept(run_by(0)).chosen(100))


def test_they_may_not_be_too_long() -> None:
    """Of the pairs within the limit the most preferred one is chosen; none where none is."""
    lengths = {0: 2, 1: 3, 2: 9, 3: 4}
    chunk = concatenate([episode(number, n, worker=number // 2) for number, n in lengths.items()])
    episodes = kept([chunk])
    assert [[3, 2], [2, 0], [3, 0], [1, 0], []] == [numbers(episodes.chosen(most)) for most in (13, 12, 6, 5, 4)]


def test_big_episodes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes in parts, and what is more than there is room for."""
    monkeypatch.setattr(early, "KEPT_BYTES", 5_000)
    chunks = [*in_parts(episode(0, 6), [3, 6]), episode(1, 1000), *run_by(0, 0)]
    assert [0, 1] == numbers(kept(chunks).kept)
    assert [] == EarlyEpisodes().chosen(100)


def test_later_chunks_are_not_looked_at() -> None:
    """Nothing is kept of what comes after the first chunks, nor more than a few episodes."""
    chunks = [episode(number, 2, worker=0) for number in range(early.CHUNKS_LOOKED_AT)]
    assert [0, 1] == numbers(kept([*chunks, episode(99, 2, worker=1)]).kept)
    assert early.KEPT_EPISODES == len(kept(run_by(*range(50))).kept)
