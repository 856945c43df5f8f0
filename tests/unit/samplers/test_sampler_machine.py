"""The sampler's machine, cell by cell: who is leased what, what becomes of what comes, and what cannot come."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from rollout_cli.chunk import Part
from rollout_cli.errors import EnvError, InternalError, WorkerError
from rollout_cli.samplers.instructions import Fail, Instructions, Keep, Learn, Rebuild, Restart, SendTo, Skip, Tell
from rollout_cli.samplers.leasing import FixedLeases
from rollout_cli.samplers.messages import (
    Batch,
    Continue,
    Failed,
    Pickled,
    Returned,
    Start,
    Started,
    Stop,
    lease_numbers,
)
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.ranges import contiguous_ranges
from rollout_cli.samplers.reports import pack_error
from rollout_cli.samplers.sampler_machine import BufferDrained, Known, SamplerEvent, SamplerMachine
from rollout_cli.samplers.supervision import Died, Supervision, Supervisor
from rollout_cli.seeding import derive_seed
from tests.unit.samplers.simulation import SPEC

BASE, VERSION = 1000, 5


def machine_of(
    plan: Plan,
    *,
    n_workers: int = 2,
    lease: int = 2,
    started: bool = True,
    by_worker: bool = False,
    rules: Supervision | None = None,
) -> SamplerMachine:
    """Return a machine that has begun; with `started`, all workers have answered."""
    state = begin_plan(plan, n_workers=n_workers, by_worker=by_worker)
    machine = SamplerMachine(
        state,
        base=BASE,
        version=VERSION,
        n_workers=n_workers,
        sizer=FixedLeases(lease),
        supervisor=Supervisor(rules or Supervision(), seed=0),
    )
    machine.begin([(None, None)] * n_workers, 0.0)
    for worker in range(n_workers if started else 0):
        machine.handle(Started(worker, VERSION, SPEC), 0.0)
    return machine


def batch(worker: int, offsets: Sequence[int], length: int = 1, version: int = VERSION) -> Batch:
    numbers = contiguous_ranges(BASE + np.array(offsets))
    return Batch(worker, version, numbers, np.full(len(offsets), length), ())


def leases(instructions: Instructions) -> dict[int, list[int]]:
    """Return the offsets that each worker is leased by `instructions`."""
    return {
        one.worker: [number - BASE for number in lease_numbers(one.message.lease)]
        for one in instructions
        if isinstance(one, SendTo) and isinstance(one.message, Start | Continue) and one.message.lease
    }


def open_offsets(machine: SamplerMachine, worker: int) -> set[int]:
    return {number - BASE for number in machine._open[worker]}


def machine_where(known: Known) -> SamplerMachine:
    """Return a machine to which worker 0 is `known`."""
    machine = machine_of(Episodes(0, 4), started=known is not Known.STARTING)
    if known is Known.IDLE:
        machine.handle(batch(0, [0, 1]), 1.0)
    elif known is Known.GONE:
        machine = machine_of(Episodes(0, 4), rules=Supervision(max_worker_restarts=0))
        machine.handle(Died(0, "was killed"), 1.0)
    assert known is machine._known[0]
    return machine


ERROR = pack_error(EnvError("env.step raised ValueError"))

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


def test_busy_batch_is_kept_and_answered_with_more() -> None:
    """What comes is kept; whoever is down to one lease gets the next one."""
    machine = machine_of(Episodes(0, 20))
    event = batch(0, [0, 1])
    instructions = machine.handle(event, 1.0)
    assert Keep(event) == instructions[0]
    assert {0: [4, 5]} == leases(instructions)
    assert {4, 5} == open_offsets(machine, 0)


def test_a_part_that_is_not_the_last_settles_nothing() -> None:
    """An episode in parts counts with its last part; until then its worker still owns it."""
    machine = machine_of(MinTimesteps(6))
    first, last = (replace(batch(0, [0], 6), part=Part(at, 2, 3 * at, 6, 0)) for at in range(2))
    assert [Keep(first)] == machine.handle(first, 1.0)
    assert ({0, 1}, None) == (open_offsets(machine, 0), machine.plan.ceiling)
    assert Keep(last) == machine.handle(last, 1.0)[0]
    assert (set(), True) == (open_offsets(machine, 0), machine.plan.done)


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


def test_idle_batch_is_kept() -> None:
    """A worker may end a number before it hears that it was dropped: that counts for nothing, and is no error."""
    machine = machine_of(MinTimesteps(100), n_workers=2)
    machine.handle(batch(0, [0, 1], 100), 1.0)
    assert machine._known[1] is Known.IDLE
    late = batch(1, [2], 100)
    assert Keep(late) == machine.handle(late, 2.0)[0]
    assert (0, True) == (machine.plan.ceiling, machine.plan.done)


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


def test_messages_of_an_older_call_are_discarded() -> None:
    """What belongs to the call before changes nothing: not its episodes, not its failures."""
    machine = machine_of(Episodes(0, 4), started=False)
    old = VERSION - 1
    for event in (Started(0, old, SPEC), batch(0, [0], version=old), Returned(0, old, (BASE,)), Failed(0, old, b"")):
        assert [] == machine.handle(event, 1.0)
    assert ({0, 1}, Known.STARTING) == (open_offsets(machine, 0), machine._known[0])


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


def test_ending_early_stops_whoever_has_numbers() -> None:
    """Closing a call tells the busy workers to stop, and leaves the idle ones alone."""
    machine = machine_of(Episodes(0, 3), n_workers=3)
    assert [SendTo(0, Stop()), SendTo(1, Stop())] == machine.end()


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


def dead(worker: int, *offsets: int, busy: bool = True, **facts: Any) -> Died:
    """Return the death of a worker that was running these offsets."""
    return Died(worker, "was killed", begun=tuple(BASE + offset for offset in offsets), busy=busy, **facts)


def failed(worker: int, *offsets: int) -> Failed:
    return Failed(worker, VERSION, ERROR, tuple(BASE + offset for offset in offsets))


def restarted(machine: SamplerMachine, worker: int, event: SamplerEvent) -> Instructions:
    """Let a worker die or fail and be ready again; return what the sampler does in all."""
    instructions = machine.handle(event, 2.0)
    assert [worker] == [one.worker for one in instructions if isinstance(one, Restart | Rebuild)]
    assert machine._known[worker] is Known.STARTING
    return instructions + machine.handle(Started(worker, VERSION, SPEC), 3.0)


@pytest.mark.parametrize("known", [Known.STARTING, Known.BUSY, Known.IDLE])
def test_a_dead_worker_is_started_again(known: Known) -> None:
    """It gets this call's `Start`, with the end as it is known by now, and its numbers run again."""
    machine = machine_where(known)
    held = open_offsets(machine, 0)
    instructions = machine.handle(dead(0), 2.0)
    assert Restart(0, Start(VERSION, ceiling=BASE + 3)) in instructions
    assert 1 == sum(isinstance(one, Tell) for one in instructions)
    machine.handle(Started(0, VERSION, SPEC), 3.0)
    assert held <= open_offsets(machine, 0) | open_offsets(machine, 1)


def test_others_take_what_a_dead_worker_had() -> None:
    """Whoever is idle does not wait for the new process."""
    machine = machine_of(Episodes(0, 4))
    machine.handle(batch(1, [2, 3]), 1.0)
    assert {1: [0, 1]} == leases(machine.handle(dead(0, 0), 2.0))


def test_what_only_a_dead_worker_may_run_waits_for_it() -> None:
    """Where numbers belong to workers, nobody else takes them."""
    machine = machine_of(EpisodesPerWorker(2))
    machine.handle(batch(1, [2, 3]), 1.0)
    assert {0: [0, 1]} == leases(restarted(machine, 0, dead(0, 0)))


def test_suspects_of_two_deaths_run_one_at_a_time() -> None:
    """Of three episodes that ran at two deaths the third death says which it was; what runs well is no suspect."""
    machine = machine_of(EpisodesPerWorker(6), n_workers=1, lease=6)
    restarted(machine, 0, dead(0, 0, 1, 2))
    assert {0: [0]} == leases(restarted(machine, 0, dead(0, 0, 1, 2)))
    assert {0: [1]} == leases(machine.handle(batch(0, [0]), 4.0))
    (failure,) = machine.handle(dead(0, 1), 5.0)
    assert isinstance(failure, Fail)
    assert isinstance(failure.error, WorkerError)
    name = f"episode {BASE + 1} (seed {derive_seed(0, BASE + 1, 'env')})"
    assert failure.error.message.startswith(f"{name} killed its worker 3 times: worker 0 was killed")


def test_a_killer_is_skipped_where_that_is_asked_for() -> None:
    """It counts as an episode of no steps, and the others come."""
    machine = machine_of(EpisodesPerWorker(2), n_workers=1, rules=Supervision(on_worker_death="skip"))
    for _ in range(2):
        restarted(machine, 0, dead(0, 0))
    instructions = restarted(machine, 0, dead(0, 0))
    assert [BASE] == [one.number for one in instructions if isinstance(one, Skip)]
    assert {0: [1]} == leases(instructions)
    machine.handle(batch(0, [1]), 4.0)
    assert machine.plan.done


def test_a_worker_that_does_not_say_what_it_ran_makes_all_it_had_suspect() -> None:
    """A class of the user's may note nothing; then its numbers run one at a time after the second death."""
    machine = machine_of(EpisodesPerWorker(3), n_workers=1, lease=3)
    unknown = Died(0, "was killed", begun=None, busy=True)
    restarted(machine, 0, unknown)
    assert {0: [0]} == leases(restarted(machine, 0, unknown))


def test_deaths_outside_episodes_accuse_nobody() -> None:
    """A worker that is killed while it waits puts no episode under suspicion."""
    machine = machine_of(EpisodesPerWorker(2), n_workers=1)
    for _ in range(5):
        instructions = restarted(machine, 0, dead(0, 0, busy=False))
        assert {0: [0, 1]} == leases(instructions)


def test_a_worker_that_dies_while_starting_is_given_up_after_the_third_time() -> None:
    """What crashes while it is built would otherwise be built for ever."""
    machine = machine_of(Episodes(0, 4), started=False, rules=Supervision(max_worker_restarts=1000))
    for _ in range(2):
        assert any(isinstance(one, Restart) for one in machine.handle(dead(1, busy=False), 1.0))
    (failure,) = machine.handle(dead(1, busy=False), 1.0)
    assert isinstance(failure, Fail)
    assert "worker 1 died 3 times before it was ready" in failure.error.message


def test_a_ceiling_drops_suspects_above_it() -> None:
    """What nobody needs any more is not run alone either."""
    machine = machine_of(MinTimesteps(10), n_workers=1, lease=4)
    for _ in range(2):
        machine.handle(dead(0, 0, 1, 2), 2.0)
        machine.handle(Started(0, VERSION, SPEC), 3.0)
    assert ({0}, [BASE + 1, BASE + 2]) == (open_offsets(machine, 0), machine._leases.alone[0])
    machine.handle(batch(0, [0], 10), 4.0)
    assert machine.plan.done
    assert (set(), []) == (open_offsets(machine, 0), machine._leases.alone[0])


@pytest.mark.parametrize("rule", ["retry", "skip"])
def test_an_episode_that_fails_is_got_over(rule: Literal["retry", "skip"]) -> None:
    """The worker builds anew in its process; the episode is run again before all others, or left out."""
    machine = machine_of(EpisodesPerWorker(4), n_workers=1, lease=2, rules=Supervision(on_env_error=rule))
    instructions = restarted(machine, 0, failed(0, 1))
    assert Rebuild(0, Start(VERSION, ceiling=BASE + 3)) in instructions
    assert ([BASE + 1] if rule == "skip" else []) == [one.number for one in instructions if isinstance(one, Skip)]
    assert {0: [1] if rule == "retry" else [0, 2]} == leases(instructions)


def test_an_episode_is_run_again_three_times() -> None:
    """Then its error ends the call."""
    machine = machine_of(EpisodesPerWorker(4), n_workers=1, rules=Supervision(on_env_error="retry"))
    for _ in range(3):
        restarted(machine, 0, failed(0, 0))
    (failure,) = machine.handle(failed(0, 0), 2.0)
    assert isinstance(failure, Fail)
    assert isinstance(failure.error, EnvError)
    assert "failed 4 times" in failure.error.hint


@pytest.mark.parametrize("rule", ["retry", "skip"])
def test_of_several_that_may_have_failed_each_runs_alone(rule: Literal["retry", "skip"]) -> None:
    """A policy that acts for all rows at once does not say for which of them it failed."""
    machine = machine_of(EpisodesPerWorker(4), n_workers=1, lease=4, rules=Supervision(on_env_error=rule))
    assert {0: [1]} == leases(restarted(machine, 0, failed(0, 1, 2)))
    assert {0: [2]} == leases(machine.handle(batch(0, [1]), 4.0))


@pytest.mark.parametrize("rule", ["fail", "skip"])
def test_a_failure_above_the_end_is_none(rule: Literal["fail", "skip"]) -> None:
    """An episode that turned out not to be needed cannot fail the call, whenever its error arrives."""
    machine = machine_of(MinTimesteps(100), rules=Supervision(on_env_error=rule))
    machine.handle(batch(0, [1], 100), 1.0)
    instructions = machine.handle(failed(1, 2), 2.0)
    assert Rebuild(1, Start(VERSION, ceiling=BASE + 1)) in instructions
    assert not [one for one in instructions if isinstance(one, Fail | Skip)]


def test_an_error_outside_episodes_always_fails_the_call() -> None:
    """An update that cannot be applied is no episode's fault."""
    machine = machine_of(Episodes(0, 4), rules=Supervision(on_env_error="skip"))
    (failure,) = machine.handle(failed(0), 1.0)
    assert isinstance(failure, Fail)


def test_skipping_everything_comes_to_an_end() -> None:
    """Where no episode ends well, a run that skips them would never be done."""
    machine = machine_of(MinTimesteps(10), n_workers=1, lease=1, rules=Supervision(on_env_error="skip"))
    for offset in range(99):
        restarted(machine, 0, failed(0, offset))
    (failure,) = machine.handle(failed(0, 99), 2.0)
    assert isinstance(failure, Fail)
    assert "100 episodes in a row had to be skipped" in failure.error.message


def test_a_late_episode_is_treated_like_one_that_failed() -> None:
    """Its worker had to be killed for it, which is no death of the worker's own."""
    rules = Supervision(max_worker_restarts=0, on_env_error="skip", episode_timeout=5.0)
    machine = machine_of(EpisodesPerWorker(2), n_workers=1, rules=rules)
    instructions = restarted(machine, 0, dead(0, 0, late=(BASE,)))
    (skip,) = [one for one in instructions if isinstance(one, Skip)]
    assert (BASE, "took longer than 5 s in worker 0") == (skip.number, skip.reason[-32:])


def test_a_worker_that_failed_in_an_earlier_call_is_built_anew() -> None:
    """Its report comes late: what failed does not go on, its lease is free again, and the call does not fail."""
    machine = machine_of(Episodes(0, 100))
    held = open_offsets(machine, 0)
    late = Failed(0, VERSION - 1, pack_error(EnvError("env.step raised")), (BASE - 3,))
    (instruction, *_) = machine.handle(late, 1.0)
    assert Rebuild(0, Start(VERSION, ceiling=BASE + 99)) == instruction
    assert set() == open_offsets(machine, 0)
    machine.handle(Started(0, VERSION, SPEC), 2.0)
    assert min(held) == min(open_offsets(machine, 0))
