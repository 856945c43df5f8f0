"""How many numbers a worker has ahead of it."""

from __future__ import annotations

import pytest

from rollout_cli.samplers.leasing import AHEAD_SECONDS, MAX_LEASE, FixedLeases, ThroughputLeases


def test_fixed_leases_come_one_at_a_time_and_two_ahead() -> None:
    """A worker with no more than one lease left gets another one, and never has more than two."""
    sizer = FixedLeases(4)
    assert [4, 4, 0, 0] == [sizer.wanted(0, open_numbers) for open_numbers in (0, 4, 5, 8)]


def test_a_lease_of_nothing_is_refused() -> None:
    """A size of 0 would never end."""
    with pytest.raises(ValueError, match="at least 1"):
        FixedLeases(0)


def test_throughput_leases_follow_each_workers_own_pace() -> None:
    """A worker with 100 episodes a second has twice 0.2 s of them ahead; another one's pace does not matter."""
    sizer = ThroughputLeases(n_workers=2)
    sizer.began(0, 10.0)
    sizer.began(1, 10.0)
    sizer.finished(0, 100, 11.0)
    ahead = int(100 * AHEAD_SECONDS)
    assert [2 * ahead, ahead, 0] == [sizer.wanted(0, open_numbers) for open_numbers in (0, ahead, ahead + 1)]
    assert 2 == sizer.wanted(1, 0)


def test_pace_is_forgotten_within_a_few_messages() -> None:
    """After a worker became a hundred times slower, its leases shrink by half with each message."""
    sizer = ThroughputLeases()
    sizer.began(0, 0.0)
    sizer.finished(0, 1000, 1.0)
    sizes = []
    for turn in range(3):
        sizer.finished(0, 10, 2.0 + turn)
        sizes.append(sizer.wanted(0, 0) // 2)
    assert [101, 51, 26] == sizes


def test_no_lease_is_larger_than_the_limit() -> None:
    """Where a message takes no time that a clock can tell, leases still end somewhere."""
    sizer = ThroughputLeases()
    sizer.began(0, 0.0)
    sizer.finished(0, 10**6, 0.0)
    assert 2 * MAX_LEASE == sizer.wanted(0, 0)


def test_nobody_has_the_last_numbers_to_himself() -> None:
    """Of what is left for all, one worker gets a part that leaves as much for the others; at least one number."""
    sizer = ThroughputLeases(n_workers=4)
    assert [100, 1, 1, 0] == [sizer.share(left) for left in (800, 8, 1, 0)]
