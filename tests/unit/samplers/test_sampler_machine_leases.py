"""The sampler's machine, lease by lease: who gets which numbers, what a ceiling drops, what waits for a full buffer."""

from __future__ import annotations

import pytest

from rollout_cli.samplers.instructions import Keep, SendTo
from rollout_cli.samplers.messages import Continue, Returned
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps
from rollout_cli.samplers.sampler_machine import BufferDrained, Known
from tests.unit.samplers.begun_machines import BASE, VERSION, batch, leases, machine_of, open_offsets


def test_busy_batch_is_kept_and_answered_with_more() -> None:
    """What comes is kept; whoever is down to one lease gets the next one."""
    machine = machine_of(Episodes(0, 20))
    event = batch(0, [0, 1])
    instructions = machine.handle(event, 1.0)
    assert Keep(event) == instructions[0]
    assert {0: [4, 5]} == leases(instructions)
    assert {4, 5} == open_offsets(machine, 0)


def test_a_ceiling_is_told_to_those_who_are_above_it() -> None:
    """Whoever has numbers above the new ceiling drops them; whoever has none above it hears nothing."""
    machine = machine_of(MinTimesteps(100), n_workers=3)
    instructions = machine.handle(batch(1, [2], 100), 1.0)
    assert [SendTo(1, Continue((), BASE + 2)), SendTo(2, Continue((), BASE + 2))] == instructions[1:3]
    assert [{0, 1}, set(), set()] == [open_offsets(machine, worker) for worker in range(3)]
    assert [Known.BUSY, Known.IDLE, Known.IDLE] == machine._known


def test_a_lower_ceiling_is_told_again() -> None:
    """What ends later may lower the ceiling once more."""
    machine = machine_of(MinTimesteps(100), n_workers=1, lease=9)
    machine.handle(batch(0, [7], 100), 1.0)
    instructions = machine.handle(batch(0, [3], 100), 2.0)
    assert SendTo(0, Continue((), BASE + 3)) in instructions
    assert {0, 1, 2} == open_offsets(machine, 0)


@pytest.mark.parametrize("known", [Known.BUSY, Known.IDLE])
def test_returned_numbers_are_leased_again(known: Known) -> None:
    """What comes back is free at once, and goes to whoever is idle."""
    machine = machine_of(Episodes(0, 4))
    if known is Known.BUSY:
        machine.handle(batch(1, [2, 3]), 1.0)
        instructions = machine.handle(Returned(0, VERSION, (BASE + 1,)), 2.0)
        assert {1: [1]} == leases(instructions)
        assert {0} == open_offsets(machine, 0)
    else:
        machine.handle(batch(0, [0, 1]), 1.0)
        assert [] == machine.handle(Returned(0, VERSION, ()), 2.0)


def test_only_what_a_worker_has_can_come_back() -> None:
    """What was dropped or finished before it came back stays so: nobody is leased it again."""
    machine = machine_of(MinTimesteps(100), n_workers=2, lease=3)
    machine.handle(batch(0, [1, 2], 100), 1.0)
    assert [] == machine.handle(Returned(1, VERSION, (BASE + 3, BASE + 4, BASE + 5)), 2.0)
    assert {0: [0]} == leases(machine.handle(Returned(0, VERSION, (BASE, BASE + 1, BASE + 2)), 3.0))
    assert (0, {0}) == (machine.plan.n_returned(0), open_offsets(machine, 0))


def test_no_number_is_begun_while_the_buffer_is_full() -> None:
    """With a full buffer nothing new is leased as long as somebody runs what it waits for; then the leases come."""
    machine = machine_of(Episodes(0, 20))
    machine.buffer_is_full = True
    assert {} == leases(machine.handle(batch(1, [2, 3]), 1.0))
    machine.buffer_is_full = False
    assert {0: [4, 5], 1: [6, 7]} == leases(machine.handle(BufferDrained(), 2.0))


def test_the_lowest_missing_number_is_leased_though_the_buffer_is_full() -> None:
    """When all that was leased is done, one number goes out, or the buffer would stay full for ever."""
    machine = machine_of(Episodes(0, 20), n_workers=1)
    machine.buffer_is_full = True
    assert {0: [2]} == leases(machine.handle(batch(0, [0, 1]), 1.0))


def test_with_a_full_buffer_only_the_owner_of_the_lowest_number_goes_on() -> None:
    """Where offsets belong to workers, the one that is ahead waits, and the one that is behind goes on."""
    machine = machine_of(Episodes(0, 20), by_worker=True)
    machine.buffer_is_full = True
    assert {} == leases(machine.handle(batch(1, [1, 3]), 1.0))
    assert {0: [4]} == leases(machine.handle(batch(0, [0, 2]), 2.0))


def test_with_a_full_buffer_the_one_that_is_behind_does_not_wait_for_the_others() -> None:
    """The owner of the lowest missing number goes on at once, though the ones ahead still have numbers."""
    machine = machine_of(Episodes(0, 20), by_worker=True)
    assert {1: [5, 7]} == leases(machine.handle(batch(1, [1, 3]), 1.0))
    machine.buffer_is_full = True
    assert {0: [4]} == leases(machine.handle(batch(0, [0, 2]), 2.0))
    assert {5, 7} == open_offsets(machine, 1)


def test_a_full_buffer_does_not_hold_back_what_came_back() -> None:
    """A number that was given back lies below what others run, so it is leased whatever the buffer holds."""
    machine = machine_of(Episodes(0, 20))
    machine.handle(batch(0, [0, 1]), 1.0)
    machine.buffer_is_full = True
    machine.handle(batch(0, [4, 5]), 2.0)
    assert machine._known[0] is Known.IDLE
    assert {0: [2, 3]} == leases(machine.handle(Returned(1, VERSION, (BASE + 2, BASE + 3)), 3.0))


def test_leases_end_where_the_mean_length_says() -> None:
    """With 10 steps missing and 5 steps an episode so far, two more episodes are leased, however large a lease is."""
    machine = machine_of(MinTimesteps(20), n_workers=1, lease=2)
    instructions = machine.handle(batch(0, [0, 1], 5), 1.0)
    assert {0: [2, 3]} == leases(instructions)


def test_lanes_have_no_common_ceiling() -> None:
    """Under EpisodesPerWorker nothing is dropped, and each worker keeps to its own range."""
    machine = machine_of(EpisodesPerWorker(3), lease=2)
    assert {0: [2]} == leases(machine.handle(batch(0, [0, 1]), 1.0))
    assert {} == leases(machine.handle(batch(0, [2]), 2.0))
    assert {3, 4} == open_offsets(machine, 1)
