"""The sampler's machine, cell by cell: how it begins and ends, what becomes of what comes, and what cannot come."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from rollout_cli.chunk import Part
from rollout_cli.errors import InternalError
from rollout_cli.samplers.instructions import Fail, Keep, Learn, SendTo
from rollout_cli.samplers.leasing import FixedLeases
from rollout_cli.samplers.messages import Batch, Failed, Pickled, Returned, Start, Started, Stop
from rollout_cli.samplers.plan import Episodes, MinTimesteps
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.sampler_machine import Known, SamplerEvent, SamplerMachine
from rollout_cli.samplers.supervision import Died, Supervision, Supervisor
from tests.unit.samplers.begun_machines import BASE, ERROR, VERSION, batch, machine_of, machine_where, open_offsets
from tests.unit.samplers.counting_worker import SPEC

EVENTS: tuple[SamplerEvent, ...] = (
    Started(0, VERSION, SPEC),
    batch(0, [0]),
    Returned(0, VERSION, (BASE,)),
    Failed(0, VERSION, ERROR),
    Died(0, "was killed"),
)
IMPOSSIBLE = {
    *((known, Started) for known in (Known.BUSY, Known.IDLE)),
    *itertools.product([Known.STARTING], [Batch, Returned]),
    *((Known.GONE, type(event)) for event in EVENTS),
}


@pytest.mark.parametrize("known", Known)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_pair_is_in_the_table_or_impossible(known: Known, event: SamplerEvent) -> None:
    """An event that cannot come from such a worker raises, and tells the story; every other one is taken."""
    machine = machine_where(known)
    if (known, type(event)) not in IMPOSSIBLE:
        machine.handle(event, 2.0)
        return
    with pytest.raises(
        InternalError, match=f"{type(event).__name__} came from a worker that is {known.value}"
    ) as caught:
        machine.handle(event, 2.0)
    assert caught.value.details.splitlines()[-1].startswith(f"worker 0 {known.value}: {type(event).__name__}(")


def test_the_error_carries_the_last_fifty_events() -> None:
    """The story of an impossible event is the last 50 events, itself included."""
    machine = machine_of(Episodes(0, 200), n_workers=1, lease=64)
    for offset in range(60):
        machine.handle(batch(0, [offset]), 1.0)
    with pytest.raises(InternalError) as caught:
        machine.handle(Started(0, VERSION, SPEC), 2.0)
    lines = caught.value.details.splitlines()
    assert 50 == len(lines)
    assert f"numbers=({range(BASE + 11, BASE + 12)},)" in lines[0]


def test_begin_gives_everyone_updates_and_a_first_lease() -> None:
    """Each worker's `Start` has its own updates, the version, the plan's end and its first numbers."""
    state = begin_plan(Episodes(0, 10), n_workers=2)
    machine = SamplerMachine(
        state,
        base=BASE,
        version=VERSION,
        n_workers=2,
        sizer=FixedLeases(3),
        supervisor=Supervisor(Supervision(), seed=0),
    )
    policies = Pickled(b"a"), Pickled(b"b")
    instructions = machine.begin([(policies[0], None), (None, policies[1])], 0.0)
    assert [
        SendTo(0, Start(VERSION, policies[0], None, (range(BASE, BASE + 3),), BASE + 9)),
        SendTo(1, Start(VERSION, None, policies[1], (range(BASE + 3, BASE + 6),), BASE + 9)),
    ] == instructions


def test_starting_started_is_busy_or_idle() -> None:
    """A worker that has begun is busy where it has numbers; what it learnt is passed on."""
    machine = machine_of(Episodes(0, 2), started=False)
    events = [Started(worker, VERSION, SPEC) for worker in range(2)]
    assert [[Learn(event)] for event in events] == [machine.handle(event, 1.0) for event in events]
    assert [Known.BUSY, Known.IDLE] == machine._known


@pytest.mark.parametrize("known", [Known.STARTING, Known.BUSY, Known.IDLE])
@pytest.mark.parametrize("event", [Failed(0, VERSION, ERROR), Died(0, "was killed")], ids=["failed", "died"])
def test_what_cannot_be_got_over_gives_the_numbers_back_and_fails_the_call(known: Known, event: Failed | Died) -> None:
    """Whenever a worker fails, or dies once too often, its open numbers are free again, and the call is told."""
    machine = machine_where(known)
    machine._supervisor = Supervisor(Supervision(max_worker_restarts=0), seed=0)
    held = open_offsets(machine, 0)
    (instruction,) = machine.handle(event, 2.0)
    assert isinstance(instruction, Fail)
    assert (set(), len(held)) == (open_offsets(machine, 0), machine.plan.n_returned(0))
    assert (machine._known[0] is Known.GONE) == isinstance(event, Died)


def test_a_part_that_is_not_the_last_settles_nothing() -> None:
    """An episode in parts counts with its last part; until then its worker still owns it."""
    machine = machine_of(MinTimesteps(6))
    first, last = (replace(batch(0, [0], 6), part=Part(at, 2, 3 * at, 6, 0)) for at in range(2))
    assert [Keep(first)] == machine.handle(first, 1.0)
    assert ({0, 1}, None) == (open_offsets(machine, 0), machine.plan.ceiling)
    assert Keep(last) == machine.handle(last, 1.0)[0]
    assert (set(), True) == (open_offsets(machine, 0), machine.plan.done)


def test_idle_batch_is_kept() -> None:
    """A worker may end a number before it hears that it was dropped: that counts for nothing, and is no error."""
    machine = machine_of(MinTimesteps(100), n_workers=2)
    machine.handle(batch(0, [0, 1], 100), 1.0)
    assert machine._known[1] is Known.IDLE
    late = batch(1, [2], 100)
    assert Keep(late) == machine.handle(late, 2.0)[0]
    assert (0, True) == (machine.plan.ceiling, machine.plan.done)


def test_messages_of_an_older_call_are_discarded() -> None:
    """What belongs to the call before changes nothing: not its episodes, not its failures."""
    machine = machine_of(Episodes(0, 4), started=False)
    old = VERSION - 1
    for event in (Started(0, old, SPEC), batch(0, [0], version=old), Returned(0, old, (BASE,)), Failed(0, old, b"")):
        assert [] == machine.handle(event, 1.0)
    assert ({0, 1}, Known.STARTING) == (open_offsets(machine, 0), machine._known[0])


def test_ending_early_stops_whoever_has_numbers() -> None:
    """Closing a call tells the busy workers to stop, and leaves the idle ones alone."""
    machine = machine_of(Episodes(0, 3), n_workers=3)
    assert [SendTo(0, Stop()), SendTo(1, Stop())] == machine.end()
