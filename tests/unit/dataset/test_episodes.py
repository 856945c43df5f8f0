"""The facts of episodes."""

from __future__ import annotations

import numpy as np

from rollout_cli.dataset.episodes import episode_returns


def test_returns_are_the_same_bits_wherever_the_rewards_lie() -> None:
    """A message's columns lie at any address; numpy sums unaligned ones in blocks, which rounds otherwise."""
    rewards = np.random.default_rng(0).standard_normal(100_000)
    buffer = bytearray(1 + rewards.nbytes)
    moved = np.frombuffer(memoryview(buffer)[1:], np.float64)
    moved[:] = rewards
    lengths = np.array([99_000, 1_000])
    assert not moved.flags.aligned
    assert episode_returns(rewards, lengths).tolist() == episode_returns(moved, lengths).tolist()
