"""The sampler's machine after deaths and failures: what runs again, what is skipped, and what ends the call."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from rollout_cli.errors import EnvError, WorkerError
from rollout_cli.samplers.instructions import Fail, Instructions, Rebuild, Restart, Skip, Tell
from rollout_cli.samplers.messages import Failed, Start, Started
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps
from rollout_cli.samplers.reports import pack_error
from rollout_cli.samplers.sampler_machine import Known, SamplerEvent, SamplerMachine
from rollout_cli.samplers.supervision import Died, Supervision
from rollout_cli.seeding import derive_seed
from tests.unit.samplers.begun_machines import (
    BASE,
    ERROR,
    VERSION,
    batch,
    leases,
    machine_of,
    machine_where,
    open_offsets,
)
from tests.unit.samplers.counting_worker import SPEC


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


def test_deaths_while_starting_in_other_calls_do_not_count() -> None:
    """Others may have done all of a call's work before a worker was ready that died in it, and in the next one."""
    machine = machine_of(Episodes(0, 4), started=False)
    for _ in range(3):
        machine._supervisor.begin_call()
        for _ in range(2):
            assert any(isinstance(one, Restart) for one in machine.handle(dead(1, busy=False), 1.0))


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
