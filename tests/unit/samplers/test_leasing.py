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
    for turn in range(1, 200):
        sizer.finished(0, 10, 10.0 + turn / 10)
    ahead = sizer.wanted(0, 0) // 2
    assert 0.95 < ahead / (100 * AHEAD_SECONDS) <= 1
    assert [2 * ahead, ahead, 0] == [sizer.wanted(0, open_numbers) for open_numbers in (0, ahead, ahead + 1)]
    assert 2 == sizer.wanted(1, 0)


def test_pace_is_forgotten_within_a_few_messages() -> None:
    """After a worker became a hundred times slower, its leases follow within some seconds."""
    sizer = ThroughputLeases()
    sizer.began(0, 0.0)
    sizer.finished(0, 1000, 1.0)
    sizes = []
    for turn in range(3):
        sizer.finished(0, 10, 2.0 + turn)
        sizes.append(sizer.wanted(0, 0) // 2)
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 1.5 * 10 * AHEAD_SECONDS + 1


def test_messages_that_are_read_in_one_go_are_no_burst_of_speed() -> None:
    """Ten messages a second of ten episodes each are 100 a second, also where two are always read at once."""
    sizer = ThroughputLeases()
    sizer.began(0, 0.0)
    for turn in range(1, 100):
        sizer.finished(0, 10, turn / 5)
        sizer.finished(0, 10, turn / 5)
    assert sizer.wanted(0, 0) <= 2 * 1.3 * 100 * AHEAD_SECONDS


def test_no_lease_is_larger_than_the_limit() -> None:
    """Where a message takes no time that a clock can tell, leases still end somewhere."""
    sizer = ThroughputLeases()
    sizer.began(0, 0.0)
    sizer.finished(0, 10**6, 0.0)
    assert 2 * MAX_LEASE == sizer.wanted(0, 0)


@pytest.mark.parametrize(
    ("left", "own", "by_all", "expected"),
    [
        (800, 0, 0, 100),  # An eighth: half of what would be fair among four.
        (800, 60, 200, 65),  # What it has counts, and so does what the others have.
        (800, 200, 200, 0),
        (8, 0, 0, 1),
        (1, 0, 7, 1),
        (0, 0, 9, 0),
    ],
)
def test_nobody_has_the_last_numbers_to_himself(left: int, own: int, by_all: int, expected: int) -> None:
    """Of what is still to be run by all, one worker may have half of an equal share; at least one number."""
    sizer = ThroughputLeases(n_workers=4)
    assert expected == sizer.share(0, left=left, open_numbers=own, open_by_all=by_all)


def test_the_last_leases_hold_some_milliseconds_of_work() -> None:
    """A worker of 10,000 episodes a second is not asked to come back for each of the last ones."""
    sizer = ThroughputLeases(n_workers=4)
    sizer.began(0, 0.0)
    for turn in range(1, 100):
        sizer.finished(0, 1000, turn / 10)
    assert 90 <= sizer.share(0, left=200, open_numbers=0, open_by_all=0) <= 100


def test_workers_of_any_pace_end_together() -> None:
    """Simulated: a fast worker and a slow one that tell every 50 ms what they did end within 50 ms of each other."""
    sizer = ThroughputLeases(n_workers=2)
    rates, left, ends = [1000, 300], 10_000, [0.0, 0.0]
    owned = [0, 0]
    for worker in (0, 1):
        sizer.began(worker, 0.0)
    for tick in range(1, 400):
        now = tick * 0.05
        for worker, rate in enumerate(rates):
            ran = min(owned[worker], int(rate * 0.05))
            owned[worker] -= ran
            if ran:
                sizer.finished(worker, ran, now)
                ends[worker] = now
            share = sizer.share(worker, left=left, open_numbers=owned[worker], open_by_all=sum(owned))
            lease = min(sizer.wanted(worker, owned[worker]), share)
            owned[worker] += lease
            left -= lease
    assert [0, 0, 0] == [left, *owned]
    assert abs(ends[0] - ends[1]) <= 0.11
