"""The worker's machine, cell by cell: what it does, where it stands afterwards, and what cannot happen."""

from __future__ import annotations

import pytest

from rollout_cli.errors import InternalError
from rollout_cli.samplers.messages import Continue, Exit, Start, Stop
from rollout_cli.samplers.worker_machine import (
    Assign,
    BatchDue,
    EpisodeFailed,
    EpisodesFinished,
    OutboxFull,
    OutboxWritable,
    Retract,
    SendFailed,
    SendFinished,
    SendReturned,
    ShutDown,
    Update,
    WorkerEvent,
    WorkerMachine,
    WorkerState,
)

IDLE, STREAMING, FAILED, EXITED = WorkerState

EVENTS: tuple[WorkerEvent, ...] = (
    Start(2),
    Continue(),
    Stop(),
    Exit(),
    EpisodesFinished((4,)),
    BatchDue(),
    EpisodeFailed(b"error"),
    OutboxFull(),
    OutboxWritable(),
)

IMPOSSIBLE = (
    {(IDLE, EpisodesFinished), (IDLE, BatchDue), (STREAMING, OutboxWritable)}
    | {(FAILED, EpisodesFinished), (FAILED, BatchDue)}
    | {(EXITED, type(event)) for event in EVENTS}
)  # fmt: skip


def machine_in(state: WorkerState) -> WorkerMachine:
    """Return a machine in `state`; a streaming one has numbers 4, 5 and 9 open."""
    machine = WorkerMachine()
    if state is STREAMING:
        machine.handle(Start(1, lease=(range(4, 6), range(9, 10))))
    elif state is FAILED:
        machine.handle(EpisodeFailed(b"error"))
    elif state is EXITED:
        machine.handle(Exit())
    assert state is machine.state
    return machine


def keeping_machine(numbers: range) -> WorkerMachine:
    """Return an idle machine that keeps a message and has open `numbers`."""
    machine = WorkerMachine()
    machine.handle(Start(1, lease=(numbers,)))
    machine.handle(OutboxFull())
    return machine


@pytest.mark.parametrize("state", WorkerState)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_pair_is_in_the_table_or_impossible(state: WorkerState, event: WorkerEvent) -> None:
    """A pair that cannot come raises and names event, state and story; every other one is taken."""
    machine = machine_in(state)
    if (state, type(event)) not in IMPOSSIBLE:
        machine.handle(event)
        return
    with pytest.raises(InternalError, match=f"{type(event).__name__} while {state.value}") as caught:
        machine.handle(event)
    assert f"{state.value}: {event!r}" == caught.value.details.splitlines()[-1]


def test_the_error_carries_the_last_fifty_events() -> None:
    """The story of an impossible event is the last 50 events, itself included, no more."""
    machine = WorkerMachine()
    for _ in range(80):
        machine.handle(Continue())
    with pytest.raises(InternalError) as caught:
        machine.handle(BatchDue())
    lines = caught.value.details.splitlines()
    assert (50, f"idle: {Continue()!r}", f"idle: {BatchDue()!r}") == (len(lines), lines[0], lines[-1])


def test_idle_start_with_a_lease_updates_and_streams() -> None:
    """Updates come before the first number; what lies above the ceiling is never begun."""
    machine = WorkerMachine()
    start = Start(1, lease=(range(3, 8),), ceiling=5)
    assert [Retract(None), Update(start), Assign((range(3, 6),))] == machine.handle(start)
    assert (STREAMING, {3, 4, 5}) == (machine.state, set(machine.open_numbers))


def test_idle_start_without_a_lease_updates_and_waits() -> None:
    """With no number there is nothing to stream."""
    machine = WorkerMachine()
    assert [Retract(None), Update(Start(1))] == machine.handle(Start(1))
    assert machine.state is IDLE


def test_idle_start_forgets_what_is_kept() -> None:
    """A batch of the version before is dropped: nobody wants it any more, and its numbers are open no longer."""
    machine = keeping_machine(range(3))
    machine.handle(Start(2, lease=(range(7, 8),)))
    assert (STREAMING, False, {7}) == (machine.state, machine.keeping, set(machine.open_numbers))


def test_streaming_start_drops_the_running_episode() -> None:
    """A new version drops all episodes of the old one before its updates."""
    machine = machine_in(STREAMING)
    start = Start(2, lease=(range(20, 21),))
    assert [Retract(None), Update(start), Assign((range(20, 21),))] == machine.handle(start)
    assert (STREAMING, {20}) == (machine.state, set(machine.open_numbers))


def test_idle_continue_with_a_lease_streams() -> None:
    """A lease ends the waiting; an empty one does not."""
    machine = WorkerMachine()
    assert [] == machine.handle(Continue())
    assert machine.state is IDLE
    assert [Assign((range(1, 3),))] == machine.handle(Continue((range(1, 3),)))
    assert machine.state is STREAMING


def test_idle_continue_waits_until_what_is_kept_is_sent() -> None:
    """With a kept message, a lease is taken on, but no episode begins before the way is free."""
    machine = keeping_machine(range(1))
    assert [Assign((range(8, 9),))] == machine.handle(Continue((range(8, 9),)))
    assert (IDLE, {0, 8}) == (machine.state, set(machine.open_numbers))
    assert [] == machine.handle(OutboxWritable())
    assert machine.state is STREAMING


def test_streaming_continue_adds_to_the_lease() -> None:
    """More numbers are added to those that are open."""
    machine = machine_in(STREAMING)
    assert [Assign((range(11, 13),))] == machine.handle(Continue((range(11, 13),)))
    assert {4, 5, 9, 11, 12} == set(machine.open_numbers)


def test_streaming_continue_drops_what_is_above_the_ceiling() -> None:
    """A ceiling takes back what lies above it and leaves the rest running."""
    machine = machine_in(STREAMING)
    assert [Retract(5)] == machine.handle(Continue((), 5))
    assert (STREAMING, {4, 5}) == (machine.state, set(machine.open_numbers))


def test_a_ceiling_below_everything_ends_the_streaming() -> None:
    """If nothing is left to do, what is finished is sent at once."""
    machine = machine_in(STREAMING)
    assert [Retract(3), SendFinished()] == machine.handle(Continue((), 3))
    assert (IDLE, set()) == (machine.state, set(machine.open_numbers))


def test_idle_stop_returns_what_did_not_begin() -> None:
    """A worker that waits with a kept message keeps it, and gives its numbers back behind it."""
    machine = keeping_machine(range(3))
    assert [Retract(None), SendFinished(), SendReturned((0, 1, 2))] == machine.handle(Stop())
    assert (IDLE, True) == (machine.state, machine.keeping)
    assert [] == machine.handle(OutboxWritable())
    assert machine.state is IDLE


def test_streaming_stop_sends_what_is_finished_and_returns_the_rest() -> None:
    """Running and unstarted numbers come back, after the episodes that ended."""
    machine = machine_in(STREAMING)
    machine.handle(EpisodesFinished((4,)))
    assert [Retract(None), SendFinished(), SendReturned((5, 9))] == machine.handle(Stop())
    assert (IDLE, set()) == (machine.state, set(machine.open_numbers))


@pytest.mark.parametrize("state", [IDLE, STREAMING])
def test_exit_shuts_the_worker_down(state: WorkerState) -> None:
    """From everywhere, `Exit` is the end."""
    machine = machine_in(state)
    assert [ShutDown()] == machine.handle(Exit())
    assert machine.state is EXITED


def test_the_history_does_not_spell_out_all_numbers() -> None:
    """Of thousands that ended at once it has the first and the last; there is no time for the others."""
    machine = machine_in(STREAMING)
    machine.handle(EpisodesFinished(tuple(range(3000, 9000))))
    assert "streaming: EpisodesFinished(6000 from 3000 to 8999)" == machine.history[-1]


def test_finished_episodes_wait_while_there_is_work() -> None:
    """Short episodes are sent together: the end of one sends nothing."""
    machine = machine_in(STREAMING)
    assert [] == machine.handle(EpisodesFinished((4,)))
    assert (STREAMING, {5, 9}) == (machine.state, set(machine.open_numbers))


def test_the_last_finished_episode_sends_all() -> None:
    """When the lease is used up, nothing waits any longer."""
    machine = machine_in(STREAMING)
    machine.handle(EpisodesFinished((4, 5)))
    assert [SendFinished()] == machine.handle(EpisodesFinished((9,)))
    assert machine.state is IDLE


def test_a_due_batch_is_sent_while_episodes_go_on() -> None:
    """Finished episodes leave during a long one."""
    machine = machine_in(STREAMING)
    assert [SendFinished()] == machine.handle(BatchDue())
    assert (STREAMING, {4, 5, 9}) == (machine.state, set(machine.open_numbers))


@pytest.mark.parametrize("state", [IDLE, STREAMING])
def test_a_failure_is_reported_after_what_is_finished(state: WorkerState) -> None:
    """The worker gives up its numbers, sends what ended well, then the error and its episodes, and waits."""
    machine = machine_in(state)
    instructions = machine.handle(EpisodeFailed(b"error", (5,)))
    assert [Retract(None), SendFinished(), SendFailed(b"error", (5,))] == instructions
    assert (FAILED, set()) == (machine.state, set(machine.open_numbers))


@pytest.mark.parametrize("command", [Continue((range(4, 6),)), Stop()])
def test_what_crosses_the_report_of_a_failure_is_ignored(command: Continue | Stop) -> None:
    """A worker whose environment may be in any state runs nothing until it is told to start again."""
    machine = machine_in(FAILED)
    assert [] == machine.handle(command)
    assert (FAILED, set()) == (machine.state, set(machine.open_numbers))
    start = Start(2, lease=(range(7, 8),))
    assert [Retract(None), Update(start), Assign((range(7, 8),))] == machine.handle(start)
    assert STREAMING is machine.state


def test_a_failed_worker_keeps_what_the_pipe_does_not_take() -> None:
    """The report of a failure may have to wait for room, too."""
    machine = machine_in(FAILED)
    machine.handle(OutboxFull())
    assert (FAILED, True) == (machine.state, machine.keeping)
    machine.handle(OutboxWritable())
    assert (FAILED, False) == (machine.state, machine.keeping)


def test_a_full_way_back_stops_the_streaming_and_keeps_the_numbers() -> None:
    """No episode is dropped, none begins, until there is room; then the work goes on where it stood."""
    machine = machine_in(STREAMING)
    assert [] == machine.handle(OutboxFull())
    assert (IDLE, True, {4, 5, 9}) == (machine.state, machine.keeping, set(machine.open_numbers))
    assert [] == machine.handle(OutboxWritable())
    assert (STREAMING, False, {4, 5, 9}) == (machine.state, machine.keeping, set(machine.open_numbers))


def test_a_full_way_back_of_an_idle_worker_is_remembered() -> None:
    """Also a message that is sent while idle may have to wait; with no work left, the worker stays idle afterwards."""
    machine = WorkerMachine()
    assert [] == machine.handle(OutboxFull())
    assert (IDLE, True) == (machine.state, machine.keeping)
    assert [] == machine.handle(OutboxWritable())
    assert (IDLE, False) == (machine.state, machine.keeping)


def test_what_failed_in_an_episode_runs_no_later_call() -> None:
    """A `Start` that crossed the report of the failure is ignored; one that builds anew is not, nor any after it."""
    machine = machine_in(STREAMING)
    machine.handle(EpisodeFailed(b"error", (4,)))
    assert [] == machine.handle(Start(2, lease=(range(7, 9),)))
    assert FAILED is machine.state
    anew = Start(1, anew=True)
    assert [Retract(None), Update(anew)] == machine.handle(anew)
    start = Start(2, lease=(range(7, 9),))
    assert [Retract(None), Update(start), Assign((range(7, 9),))] == machine.handle(start)
    assert STREAMING is machine.state
