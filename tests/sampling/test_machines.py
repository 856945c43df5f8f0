"""The sampler and its workers under every interleaving: a run always ends, and equals the serial run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_cli.cli.output import report
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import EnvError, InternalError, UsageError, WorkerError
from rollout_cli.samplers.facts import WorkerFacts
from rollout_cli.samplers.leases import LeaseSize
from rollout_cli.samplers.messages import Batch, Continue, Exit, Failed, Judged, Start, Started, Stop, Update
from rollout_cli.samplers.plan import (
    NO_END,
    Episodes,
    EpisodesPerWorker,
    MinTimesteps,
    Plan,
    PlanState,
)
from rollout_cli.samplers.pool import Died, Warn
from rollout_cli.samplers.reorder import ReorderBuffer
from rollout_cli.samplers.sampler_machine import MOST_STORY, Fail, SamplerMachine, Send, StartWorker
from rollout_cli.samplers.supervision import Decision, Supervision, Supervisor
from rollout_cli.samplers.worker_loop import WorkerLoop
from rollout_cli.workers.factory import WorkerFactory
from tests.helpers.chunks import BOX_SPEC
from tests.helpers.fake_worker import Script, bare_episode
from tests.helpers.simulation import SimulatedSampler, simulated_time
from tests.helpers.thorough import usually

EXAMPLES = settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
MANY_RESTARTS = 10**6


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    first = draw(st.integers(0, 100))
    return draw(
        st.one_of(
            st.integers(1, 300).map(lambda timesteps: MinTimesteps(timesteps, first)),
            st.integers(1, 60).map(lambda count: Episodes(first, first + count)),
            st.builds(
                lambda timesteps, count: MinTimesteps(timesteps, first, first + count),
                st.integers(1, 300),
                st.integers(1, 60),
            ),
            st.integers(1, 20).map(lambda count: EpisodesPerWorker(count, first)),
        )
    )


@st.composite
def samplers(draw: st.DrawFn, /, **options: Any) -> SimulatedSampler:
    """Return a sampler with 1 to 5 workers of one or several episodes at once, narrow ways back and small buffers."""
    table = draw(st.lists(st.one_of(st.integers(1, 3), st.integers(1, 60)), min_size=1, max_size=20))
    n_workers = draw(st.integers(1, 5))
    script = Script(
        lengths=lambda number: table[number % len(table)],
        n_envs=draw(st.sampled_from([1, 1, 3, 8])),
        speeds=tuple(draw(st.lists(st.integers(1, 50), min_size=n_workers, max_size=n_workers))),
        is_vague=draw(st.booleans()),
    )
    mortality = draw(st.sampled_from(options.pop("mortalities", [0.0])))
    most_turns = -(-max(table) // min(script.speeds))  # Of an episode: most of them must survive theirs.
    pool_options = {
        "seed": draw(st.integers(0, 2**32)),
        "weights": draw(st.lists(st.floats(0.05, 20), min_size=n_workers + 1, max_size=n_workers + 1)),
        "capacity": draw(st.integers(1, 4)),
        "mortality": min(mortality, 1 / most_turns),
    }
    return SimulatedSampler(
        script,
        n_workers,
        pool_options=pool_options,
        policy=[0.0] * n_workers if draw(st.booleans(), label="by worker") else 0.0,
        memory_limit=draw(st.sampled_from([1, 4000, 1 << 20])),
        lease_size=LeaseSize(draw(st.sampled_from([0.01, 0.2, 5.0])), draw(st.sampled_from([1, 2]))),
        **options,
    )


def serial(plan: Plan, n_workers: int, lengths: Callable[[int], int]) -> list[int]:
    """Return the numbers of a plan's episodes, found one after another."""
    match plan:
        case MinTimesteps(timesteps, first, stop):
            numbers: list[int] = []
            while sum(map(lengths, numbers)) < timesteps and first + len(numbers) < stop:
                numbers.append(first + len(numbers))
            return numbers
        case Episodes(first, stop):
            return list(range(first, stop))
        case EpisodesPerWorker(episodes, first):
            return list(range(first, first + episodes * n_workers))


def numbers_of(chunks: Sequence[Chunk]) -> list[int]:
    return [int(number) for chunk in chunks for number in chunk.numbers]


def check_delivery(plan: Plan, sampler: SimulatedSampler, chunks: Sequence[Chunk], policy: float) -> None:
    """Check that the plan's episodes came, each once, in the order of each partition, under the policy of the call."""
    lengths, numbers = sampler.script.lengths, numbers_of(chunks)
    assert serial(plan, sampler.n_workers, lengths) == sorted(numbers)
    assert [lengths(number) for number in numbers] == [
        int(length) for chunk in chunks for length in chunk.lengths
    ]
    assert {policy} == {reward for chunk in chunks for reward in chunk.rewards.tolist()}
    state = PlanState(plan, n_workers=sampler.n_workers)
    for partition in range(len(state.stops)):
        mine = [number for number in numbers if state.partition(number) == partition]
        assert sorted(mine) == mine


def check_owners(plan: Plan, sampler: SimulatedSampler) -> None:
    """Check that each worker began only numbers that it may run, and none above a plan's last number."""
    for worker, numbers in sampler.script.begun.items():
        if isinstance(plan, EpisodesPerWorker):
            assert {worker} >= {(number - plan.first) // plan.episodes for number in numbers}
        elif sampler.by_worker:
            assert {worker} >= {number % sampler.n_workers for number in numbers}
        if isinstance(plan, Episodes):
            assert all(plan.first <= number < plan.stop for number in numbers)


@given(sampler=samplers(), plan=plans())
@EXAMPLES
def test_every_interleaving_ends_with_the_episodes_of_the_serial_run(
    sampler: SimulatedSampler, plan: Plan
) -> None:
    """Whatever the leases, speeds, orders of arrival and full ways back, the episodes are those of the serial run."""
    with simulated_time(sampler):
        chunks = list(sampler.stream(plan, agent_update=3.0))
    check_delivery(plan, sampler, chunks, 3.0)
    check_owners(plan, sampler)


@given(data=st.data(), sampler=samplers(), plan=plans(), other=plans())
@EXAMPLES
def test_workers_may_begin_before_the_stream(
    data: st.DataObject, sampler: SimulatedSampler, plan: Plan, other: Plan
) -> None:
    """Whether the stream goes on with what they have begun, or has another plan."""
    with simulated_time(sampler):
        sampler.start_worker(data.draw(st.sampled_from([plan, other]), label="begun"))
        if data.draw(st.booleans(), label="wait first"):
            assert BOX_SPEC == sampler.wait_until_started()
        chunks = list(sampler.stream(plan))
    check_delivery(plan, sampler, chunks, 0.0)


@given(data=st.data(), sampler=samplers(), plans=st.lists(plans(), min_size=2, max_size=4))
@EXAMPLES
def test_a_call_that_is_closed_early_leaves_nothing_to_the_next(
    data: st.DataObject, sampler: SimulatedSampler, plans: list[Plan]
) -> None:
    """The calls after one that was closed get their own episodes, under their own policy, and none of the old ones."""
    with simulated_time(sampler):
        if data.draw(st.booleans(), label="wait first"):
            assert BOX_SPEC == sampler.wait_until_started()
        for index, plan in enumerate(plans):
            early = st.none() if plan is plans[-1] else st.one_of(st.none(), st.integers(0, 3))
            keep = data.draw(early, label="chunks taken before closing")
            chunks = taken(sampler.stream(plan, agent_update=float(index)), keep)
            if keep is None:
                check_delivery(plan, sampler, chunks, float(index))


def taken(stream: Iterator[Chunk], count: int | None) -> list[Chunk]:
    """Return all chunks of a stream, or its first `count`, and close it."""
    generator: Any = stream
    chunks = (
        [chunk for chunk, _ in zip(generator, range(count), strict=False)]
        if count is not None
        else list(generator)
    )
    generator.close()
    return chunks


MERCIFUL = Supervision(max_worker_restarts=MANY_RESTARTS, on_worker_death="skip", on_env_error="retry")


@given(sampler=samplers(mortalities=[0.0, 0.02, 0.1], supervision=MERCIFUL), plan=plans(), data=st.data())
@EXAMPLES
def test_deaths_and_failures_change_nothing_but_what_they_cost(
    data: st.DataObject, sampler: SimulatedSampler, plan: Plan
) -> None:
    """Workers die at random, some episodes kill theirs and some fail for a while: the others are the same."""
    script = sampler.script
    script.deadly = data.draw(st.sets(st.integers(0, 140), max_size=6), label="deadly")
    failing = data.draw(st.dictionaries(st.integers(0, 140), st.integers(1, 3), max_size=6), label="failing")
    script.failing = Counter(
        {number: times for number, times in failing.items() if number not in script.deadly}
    )
    with simulated_time(sampler):
        chunks = list(sampler.stream(plan, agent_update=3.0))
    lengths, skipped = script.lengths, set(sampler.skipped)
    if not sampler.pool_options["mortality"]:
        assert skipped <= set(script.deadly)
    expected = serial(plan, sampler.n_workers, lambda number: 0 if number in skipped else lengths(number))
    assert [number for number in expected if number not in skipped] == sorted(numbers_of(chunks))
    assert {3.0} >= {reward for chunk in chunks for reward in chunk.rewards.tolist()}


@given(data=st.data(), sampler=samplers(), plan=plans())
@EXAMPLES
def test_a_call_fails_only_while_its_plan_is_not_complete(
    data: st.DataObject, sampler: SimulatedSampler, plan: Plan
) -> None:
    """What fails or kills its worker above the plan's end may do so as long as that is not reached."""
    script, expected = sampler.script, serial(plan, sampler.n_workers, sampler.script.lengths)
    above = range(expected[-1] + 1, expected[-1] + 200)
    script.deadly = above if data.draw(st.booleans(), label="deadly") else ()
    script.failing = Counter({number: 1000 for number in above if number not in script.deadly})
    chunks, error = list[Chunk](), None
    with simulated_time(sampler):
        try:
            for chunk in sampler.stream(plan, agent_update=3.0):
                chunks.append(chunk)
        except (EnvError, WorkerError) as caught:
            error = caught
    assert sampler.is_done == (error is None)
    # One worker that runs one episode at a time sends all of the plan's before one of these fails.
    assert sampler.is_done or script.deadly or sampler.n_workers > 1 or script.n_envs > 1
    if error is None:
        check_delivery(plan, sampler, chunks, 3.0)


@given(
    sampler=samplers(mortalities=[0.0, 0.02], supervision=MERCIFUL),
    episodes=st.one_of(st.none(), st.integers(1, 30)),
    timesteps=st.one_of(st.none(), st.integers(1, 300)),
    cap=st.integers(1, 80),
    least=st.integers(1, 4),
)
@settings(EXAMPLES, max_examples=settings().max_examples)
def test_every_interleaving_keeps_the_same_episodes(
    sampler: SimulatedSampler, episodes: int | None, timesteps: int | None, cap: int, least: int
) -> None:
    """With deaths, too: as many as are asked for, or those of all episodes up to the cap; no rejected one comes."""
    sampler.script.keep = f"length >= {least}"
    plan: Plan
    with simulated_time(sampler):
        plan = Episodes(3, 3 + cap, episodes)
        if timesteps is not None:
            plan = MinTimesteps(timesteps, 3, 3 + cap, episodes)
        chunks = list(sampler.stream(plan))
    lengths = {n: 0 if n in sampler.skipped else sampler.script.lengths(n) for n in range(3, 3 + cap)}
    expected, stop = list[int](), 3
    while (
        stop < 3 + cap
        and (episodes is None or len(expected) < episodes)
        and (timesteps is None or sum(lengths[number] for number in expected) < timesteps)
    ):
        expected += [stop] if lengths[stop] >= least else []
        stop += 1
    assert expected == numbers_of(chunks)
    assert (stop, True) == (sampler.next_number, sampler.is_done)


@given(
    sampler=samplers(),
    plan=plans(),
    after=st.integers(1, 5),
    grace=st.sampled_from([0.0, 0.5, 100.0]),
    delay=st.sampled_from([0.0, 0.0, 0.3]),
)
@EXAMPLES
def test_a_stopped_call_gives_a_prefix_of_each_partition(
    sampler: SimulatedSampler, plan: Plan, after: int, grace: float, delay: float
) -> None:
    """A call that is asked to stop, now or later, has given the first episodes of each partition, without a gap."""
    with simulated_time(sampler):
        chunks = []
        for chunk in sampler.stream(plan, agent_update=3.0):
            chunks.append(chunk)
            if len(chunks) == after:
                sampler.request_stop(grace=grace, after=delay)
    assert sampler.is_done <= (
        sorted(numbers_of(chunks)) == serial(plan, sampler.n_workers, sampler.script.lengths)
    )
    expected, numbers = serial(plan, sampler.n_workers, sampler.script.lengths), sorted(numbers_of(chunks))
    state = PlanState(plan, n_workers=sampler.n_workers)
    for partition in range(len(state.stops)):
        wanted = [number for number in expected if state.partition(number) == partition]
        mine = [number for number in numbers if state.partition(number) == partition]
        assert wanted[: len(mine)] == mine


@given(sampler=samplers(), grace=st.sampled_from([0.0, 0.5]), limit=st.floats(0.05, 1.0))
@settings(EXAMPLES, max_examples=settings().max_examples // 2)
def test_a_plan_without_an_end_is_ended_by_a_stop(
    sampler: SimulatedSampler, grace: float, limit: float
) -> None:
    """It gives a run of episodes without a gap; an earlier request counts, and the next call is not affected."""
    with simulated_time(sampler):
        sampler.request_stop(grace=grace, after=limit)
        sampler.request_stop(grace=grace, after=100 * limit)
        chunks = list(sampler.stream(Episodes(7, NO_END), agent_update=3.0))
        assert sampler.clock() <= limit + grace + 0.12
        done = [sampler.is_done]
        assert list(range(5)) == sorted(numbers_of(list(sampler.stream(Episodes(0, 5)))))
        assert [False, True] == [*done, sampler.is_done]
    numbers = sorted(numbers_of(chunks))
    assert list(range(7, 7 + len(numbers))) == numbers


@pytest.mark.parametrize("by_worker", [False, True])
def test_a_full_buffer_keeps_fast_workers_from_running_ahead(
    by_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once memory and disk are used up, only what is leased already and the lowest missing numbers are run."""
    script = Script(lengths=lambda number: 3, speeds=(5, 1))
    sampler = SimulatedSampler(
        script,
        2,
        policy=[0.0, 0.0] if by_worker else 0.0,
        pool_options={"weights": (1.0, 0.01, 5.0), "capacity": 4},
        memory_limit=6000,
        lease_size=LeaseSize(seconds=0.0, ahead=1),
    )
    waiting = []
    add = ReorderBuffer.add

    def counted(buffer: ReorderBuffer, chunk: Chunk) -> None:
        add(buffer, chunk)
        waiting.append(buffer.n_waiting)

    monkeypatch.setattr(ReorderBuffer, "add", counted)
    with simulated_time(sampler):
        chunks = list(sampler.stream(Episodes(0, 300)))
    assert 300 == sum(chunk.n_episodes for chunk in chunks)
    assert max(waiting) < 60


@pytest.mark.parametrize(
    ("timesteps", "n_seeds"),
    usually([(40, 600), (400, 60), (400, 200), (4000, 30)], lambda row: row[1] == 60),
)
def test_short_episodes_are_not_favoured(timesteps: int, n_seeds: int) -> None:
    """Over many seeds one half of the episodes is long, within 99 % confidence, as a fair coin decided."""
    n_long = n_episodes = 0
    for seed in range(n_seeds):
        coins = np.random.default_rng([seed, timesteps]).random(timesteps + 2000) < 0.5
        script = Script(lengths=lambda number, coins=coins: 40 if coins[number] else 1, speeds=(7, 7, 5, 11))  # type: ignore[misc]
        options = {"seed": seed, "weights": (1.0, 1.0, 0.5, 1.5, 2.0)}
        sampler = SimulatedSampler(script, 4, pool_options=options)
        with simulated_time(sampler):
            numbers = numbers_of(list(sampler.stream(MinTimesteps(timesteps))))
        n_long += sum(script.lengths(number) == 40 for number in numbers)
        n_episodes += len(numbers)
    assert abs(n_long / n_episodes - 0.5) < 2.576 * 0.5 / math.sqrt(n_episodes)


# -- what the interleavings do not reach -------------------------------------------------------------------------------


HISTORY = (Update(b"policy", b"environment"),)


class Updates:
    """What all workers were given, in place of an UpdateLog."""

    by_worker = False

    def history(self, worker: int) -> tuple[Update, ...]:
        return HISTORY


def new_machine(plan: Plan = Episodes(0, 100), **options: Any) -> SamplerMachine:  # noqa: B008
    """Return the machine of call 5: a hundred episodes, of which its two workers are leased one at a time."""
    updates: Any = Updates()
    options = {"n_workers": 2, "lease_size": LeaseSize(seconds=0.0, ahead=1), **options}
    return SamplerMachine(5, plan, updates, Supervisor(Supervision(), 0), WorkerFacts(), **options)


def begun(**options: Any) -> SamplerMachine:
    """Return a machine whose workers have been told to start."""
    machine = new_machine(**options)
    machine.begin()
    return machine


def test_an_info_is_missing_until_any_worker_has_met_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After enough episodes the call fails with the error of one that none has met, once."""
    monkeypatch.setattr("rollout_cli.samplers.sampler_machine.MOST_UNMET", 3)
    machine, errors = begun(), {name: UsageError(name) for name in ("met", "unmet")}
    later = {"unmet": errors["unmet"]}
    assert [] == machine.handle(Judged(0, 5, np.array([0]), errors), 0.0)
    assert [] == machine.handle(Judged(1, 5, np.array([1]), later), 0.0)
    assert [Fail(errors["unmet"])] == machine.handle(Judged(0, 5, np.array([2]), errors), 0.0)
    assert [] == machine.handle(Judged(1, 5, np.array([3]), errors), 0.0)
    assert [] == list(machine.buffer.ready())
    assert 4 == machine.buffer.stop


def test_a_call_begins_with_new_workers_and_those_of_earlier_calls() -> None:
    """A new worker gets all that was given so far, one that runs what this call gives; both get their first lease."""
    change = Update(agent=b"parameters")
    known, *new = new_machine(n_running=1, first_number=7).begin([change, change])
    assert Send(0, Start(5, (change,), (range(1),), salt=(5, 7))) == known
    assert [StartWorker(1), Send(1, Start(5, HISTORY, (range(1, 2),), salt=(5, 7), rebuild=True))] == new


def test_a_worker_that_is_ready_is_leased_more_as_its_episodes_end() -> None:
    """Before it has started it gets nothing; afterwards the numbers that nobody has."""
    machine = begun()
    assert [] == machine.handle(Batch(0, 5, bare_episode(0, 3)), 0.0) == machine.top_up()
    assert [] == machine.handle(Started(0, 5, BOX_SPEC), 0.0)
    assert [Send(0, Continue((range(2, 3),)))] == machine.top_up()
    assert [0] == numbers_of([chunk.load() for chunk in machine.buffer.ready()])


def test_messages_of_an_older_call_are_discarded() -> None:
    """A batch or an answer of an older generation changes nothing."""
    machine = begun()
    for event in (Batch(0, 4, bare_episode(0, 3)), Started(0, 4, BOX_SPEC)):
        assert [] == machine.handle(event, 0.0)
    assert ([], 0) == (machine.top_up(), machine.buffer.n_waiting)


def test_a_worker_that_failed_in_an_older_call_is_rebuilt() -> None:
    """It has ignored this call's `Start`, so it gets another one, which rebuilds it."""
    instructions = begun().handle(Failed(1, 4, EnvError("broken"), (7,)), 0.0)
    assert [Send(1, Start(5, HISTORY, salt=(5, 0, 1), rebuild=True))] == instructions


def test_a_worker_that_died_is_started_again() -> None:
    """The user hears of it first; its numbers are leased to whoever is ready."""
    machine = begun()
    warning, *others = machine.handle(Died(1, "was killed"), 0.0)
    assert Warn("worker 1 was killed while it was starting; restarting it (1 of 10)") == warning
    assert [StartWorker(1), Send(1, Start(5, HISTORY, salt=(5, 0, 1), rebuild=True))] == others
    machine.handle(Started(0, 5, BOX_SPEC), 0.0)
    assert [Send(0, Continue((range(1, 2),)))] == machine.handle(Batch(0, 5, bare_episode(0, 3)), 0.0)


def test_a_command_that_fails_does_not_take_the_next_one_along() -> None:
    """A worker whose update fails hears the Exit that arrived with it, rather than waiting until it is killed."""
    loop = WorkerLoop(lambda: WorkerFactory(n_workers=1), 0, owns_process=False)
    (failed,) = loop.turn([Start(1, (Update(agent=b"no pickle"),)), Exit()])
    assert isinstance(failed, Failed)
    assert loop.ended


def test_after_a_failure_finished_episodes_still_count() -> None:
    """A call that has failed takes the batches that follow, and brings nobody up again."""
    machine, error = begun(), EnvError("broken")
    for worker in (0, 1):
        machine.handle(Started(worker, 5, BOX_SPEC), 0.0)
    assert [Fail(error)] == machine.handle(Failed(1, 5, error, ()), 0.0)
    for event in (Died(1, "was killed"), Batch(0, 5, bare_episode(0, 3)), Failed(0, 5, error, ())):
        assert [] == machine.handle(event, 0.0)
    assert (1, []) == (machine.buffer.n_waiting, machine.top_up())


@pytest.mark.parametrize("event", [Failed(1, 5, EnvError("broken"), (1,)), Died(1, "was killed", (1,))])
def test_what_lies_above_the_end_of_a_plan_may_fail(event: Failed | Died) -> None:
    """Nobody needs it: the worker is brought up again without a word, for the calls that follow."""
    machine = begun(plan=MinTimesteps(3))
    for worker in (0, 1):
        machine.handle(Started(worker, 5, BOX_SPEC), 0.0)
    machine.handle(Batch(0, 5, bare_episode(0, 3)), 0.0)
    first = [StartWorker(1)] if isinstance(event, Died) else []
    again = Send(1, Start(5, HISTORY, salt=(5, 0, 1), due_rows=1, rebuild=True))
    assert (True, [*first, again]) == (machine.is_done, machine.handle(event, 0.0))


def test_a_call_that_stops_drops_what_lies_above_the_highest_that_ended() -> None:
    """The others run on, and the call is over when they have ended; what is left then is told to stop."""
    machine = begun()
    for worker in (0, 1):
        machine.handle(Started(worker, 5, BOX_SPEC), 0.0)
    assert [Send(1, Continue((range(2, 3),)))] == machine.handle(Batch(1, 5, bare_episode(1, 3)), 0.0)
    assert [Send(1, Continue((), last_needed=1))] == machine.stop()
    assert [] == machine.stop()
    assert (False, [Send(0, Stop())]) == (machine.is_over, machine.end())
    assert [] == machine.handle(Batch(0, 5, bare_episode(0, 3)), 0.0)
    assert (True, []) == (machine.is_over, machine.end())


def test_what_a_pool_notices_is_a_warning() -> None:
    """It changes nothing else."""
    assert [Warn("no place")] == begun().handle(Warn("no place"), 0.0)


class TestSupervisor:
    def died(self, supervisor: Supervisor, numbers: tuple[int, ...] | None, **death: Any) -> Any:
        starting = death.pop("starting", False)
        return supervisor.died(
            Died(1, "was killed by SIGSEGV", numbers, **death), [range(4, 9)], starting=starting
        )

    def test_an_episode_that_kills_three_times_ends_the_call(self) -> None:
        """The suspects of a second death run alone; the third death of one that ran alone names it and its seed."""
        supervisor = Supervisor(Supervision(), 0)
        assert () == self.died(supervisor, (5, 6)).isolated
        assert (5, 6) == self.died(supervisor, (5, 6)).isolated
        error = self.died(supervisor, (5,), details="Fatal Python error", hint="").error
        assert isinstance(error, WorkerError)
        assert "episode-kills-worker" == error.code
        assert all(part in error.message for part in ("episode 5 (seed ", "3", "worker 1", "SIGSEGV"))
        assert 1 == error.details.count("Fatal Python error")
        assert 2 == supervisor.restarts

    def test_an_unknown_death_suspects_all_that_was_in_flight(self) -> None:
        """Where nobody knows what ran, each leased episode may have done it."""
        supervisor = Supervisor(Supervision(), 0)
        self.died(supervisor, None)
        assert (4, 5, 6, 7, 8) == self.died(supervisor, None).isolated

    @pytest.mark.parametrize(("rule", "isolated", "skipped"), [("retry", (5,), []), ("skip", (), [5])])
    def test_a_late_episode_is_a_failure(
        self, rule: Any, isolated: tuple[int, ...], skipped: list[int]
    ) -> None:
        """An episode that exceeded its time is run again, skipped, or ends the call as an EnvError."""
        supervisor = Supervisor(Supervision(on_env_error=rule, episode_timeout=2.0), 0)
        decision = self.died(supervisor, (5,), late=(5,))
        assert (isolated, skipped) == (decision.isolated, list(decision.skipped or ())[:1])
        error = self.died(Supervisor(Supervision(episode_timeout=2.0), 0), (5,), late=(5,)).error
        assert isinstance(error, EnvError)
        assert "episode-timeout" == error.code
        assert all(part in error.message for part in ("episode 5", "2 s", "worker 1"))

    @pytest.mark.parametrize("rule", ["fail", "retry", "skip"])
    def test_a_late_episode_of_an_older_call_is_none_of_this_one(self, rule: Any) -> None:
        """A worker that has not taken its `Start` runs what the call before left: maybe another policy's."""
        rules = Supervision(on_env_error=rule, episode_timeout=2.0, max_worker_restarts=0)
        assert Decision() == self.died(Supervisor(rules, 0), (5,), late=(5,), starting=True)


def test_the_story_has_the_last_events_and_instructions_in_order() -> None:
    """It is bounded, since a run may last for weeks."""
    machine = begun(n_workers=1)
    machine.handle(Started(0, 5, BOX_SPEC), 0.0)
    kinds = [line.split()[0] for line in machine.story]
    assert kinds[:3] == ["StartWorker", "Start", "Started"]
    for _ in range(2 * MOST_STORY):
        machine.handle(Warn("a long text " * 100), 0.0)
    assert {line.split()[0] for line in machine.story} == {"Warn"}
    assert len(machine.story) == MOST_STORY
    assert max(map(len, machine.story)) < 200


def test_an_internal_error_shows_the_story_under_verbose_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise InternalError("a fault")

    script = Script(lengths=lambda _: 1)
    sampler = SimulatedSampler(script, 1, pool_options={"seed": 0})
    monkeypatch.setattr(SamplerMachine, "_handle", fails)
    with pytest.raises(InternalError) as caught:
        list(sampler.stream(Episodes(0, 2)))
    report(caught.value, as_json=False, verbose=False)
    assert "Started" not in capsys.readouterr().err
    report(caught.value, as_json=False, verbose=True)
    assert "\nStarted 0" in capsys.readouterr().err
