"""Both state machines and their shells, as rules of single events that may come in any order, and what always holds."""

from __future__ import annotations

import math
import sys
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollout_cli.samplers import Episodes, EpisodesPerWorker, MinTimesteps, MultiprocessingSampler, Plan
from rollout_cli.samplers import multiprocessing_sampler as shell
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.samplers.worker_machine import WorkerState
from tests.support.envs import ChainEnv
from tests.unit.samplers.delivery import Delivery
from tests.unit.samplers.stepped_calls import SteppedCalls
from tests.unit.samplers.stepping import SteppedWorld
from tests.unit.samplers.tasks import AddToTask, Given, TaskWorker

MOST_ROUNDS = 3000
"""Rounds in which every worker takes a turn and the sampler hears everybody, until a call has surely ended."""

ONE_IN_FOUR = st.sampled_from([False, False, False, True])

PICKS = st.integers(0, 119)
"""Which of those that a rule may choose from; divisible by the size of any small list."""

plans = st.one_of(
    st.tuples(st.integers(1, 250), st.integers(0, 3)).map(lambda pair: MinTimesteps(*pair)),
    st.tuples(st.integers(0, 5), st.integers(1, 30)).map(lambda pair: Episodes(pair[0], sum(pair))),
    st.integers(1, 10).map(EpisodesPerWorker),
    st.tuples(st.integers(2, 8), st.integers(0, 1)).map(lambda pair: EpisodesPerWorker(pair[0], (pair[1],) * 5)),
)
one_policy = st.one_of(st.integers(1, 9).map(float), st.integers(1, 9).map(lambda value: {"parameters": float(value)}))
one_env = st.one_of(st.integers(1, 9).map(AddToTask), st.just(ChainEnv))


def updates(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return none, one for all workers, or a list with one a worker (of which as many are taken as there are)."""
    return st.one_of(st.none(), one, one, st.lists(one, min_size=5, max_size=5))


class Machines(SteppedCalls, RuleBasedStateMachine):
    """Runs calls of one sampler; every rule is one event."""

    @initialize(
        table=st.lists(st.one_of(st.integers(1, 3), st.integers(1, 120)), min_size=1, max_size=12),
        n_workers=st.integers(1, 5),
        speeds=st.lists(st.integers(1, 40), min_size=1, max_size=5),
        capacity=st.integers(1, 3),
        at_once=st.sampled_from([1, 1, 3]),
        limits=st.sampled_from([(0, 1), (0, 3000), (4000, 4000), (1 << 20, 1 << 20)]),
        lease=st.sampled_from([1, 3, 16, None]),
        restarts=st.sampled_from([1, 1000, 1000, 1000]),
        on_death=st.sampled_from(["fail", "skip"]),
        on_error=st.sampled_from(["fail", "retry", "skip", "skip"]),
    )
    def build(
        self,
        *,
        table: list[int],
        n_workers: int,
        speeds: list[int],
        capacity: int,
        at_once: int,
        limits: tuple[int, int],
        lease: int | None,
        restarts: int,
        on_death: Any,
        on_error: Any,
    ) -> None:
        self.world = SteppedWorld(lambda number: table[number % len(table)], speeds, at_once, capacity, *limits)
        self.world.patch(self.patch)
        self.patch.setattr(shell, "Call", self.note_call)
        self.supervision = Supervision(max_worker_restarts=restarts, on_worker_death=on_death, on_env_error=on_error)
        self.sampler = MultiprocessingSampler(
            1.0,
            ChainEnv,
            n_workers=n_workers,
            seed=0,
            worker_class=TaskWorker,
            worker_args={"at_once": at_once},
            supervision=self.supervision,
            lease_size=lease,
        )
        self.sampler.tell = lambda text: None
        self.given = [Given(1.0, 0.0, 0.0)] * n_workers

    # -- the sampler and its caller --------------------------------------------------------------------------------

    @precondition(lambda self: self.stream is None)
    @rule(plan=plans, agent=updates(one_policy), env=updates(one_env), arrival=st.sampled_from([False, False, True]))
    def a_call_begins(self, plan: Plan, agent: Any, env: Any, arrival: bool) -> None:
        n_workers = self.sampler.n_workers
        agent, env = (update[:n_workers] if isinstance(update, list) else update for update in (agent, env))
        agents, envs = (update if isinstance(update, list) else [update] * n_workers for update in (agent, env))
        self.given = [given.after(*both) for given, *both in zip(self.given, agents, envs, strict=True)]
        self.failures, self.disturbed, self.stop_grace = 0, False, None
        self.world.failing.clear()
        self.world.unblamed.clear()
        self.stream = self.sampler.stream(
            plan, agent_update=agent, env_update=env, order="arrival" if arrival else "index"
        )
        self.by_worker = self.sampler._updates.by_worker or isinstance(agent, list) or isinstance(env, list)
        self.delivery = Delivery(
            plan,
            base=self.sampler.next_number,
            rewards=[given.reward for given in self.given],
            lengths=self.world.lengths,
            by_worker=self.by_worker,
            arrival=arrival,
        )
        self.go_on()

    @precondition(lambda self: self.has_chunk)
    @rule(chunks=st.integers(1, 4))
    def the_caller_goes_on(self, chunks: int) -> None:
        for _ in range(chunks):
            if self.has_chunk:
                self.go_on()

    @precondition(lambda self: self.senders())
    @rule(pick=PICKS, count=st.sampled_from([1, 1, 2, 9]))
    def the_sampler_takes_messages(self, pick: int, count: int) -> None:
        senders = self.senders()
        self.take(senders[pick % len(senders)], count)

    @precondition(lambda self: self.stream is not None)
    @rule(now=ONE_IN_FOUR)
    def the_caller_closes_the_call(self, now: bool) -> None:
        assert self.stream is not None
        if now:
            self.stream.close()
            self.disturbed = True
            self.ended(done=False)

    @precondition(lambda self: self.stream is not None and self.stop_grace is None)
    @rule(grace=st.sampled_from([0.0, 0.2, math.inf]), now=ONE_IN_FOUR)
    def the_sampler_is_asked_to_stop(self, grace: float, now: bool) -> None:
        if not now:
            return
        self.stop_grace, self.heard = grace, set(self.world.heard)
        self.sampler.request_stop(grace=grace)
        if not self.has_chunk:
            self.go_on()

    @precondition(lambda self: self.stop_grace is not None)
    @rule(turns=st.integers(1, 30))
    def time_passes(self, turns: int) -> None:
        self.world.clock.turns += turns
        if self.stream is not None and not self.has_chunk and self.is_over():
            self.go_on()

    @precondition(lambda self: self.stream is None and self.pool is not None)
    @rule(now=ONE_IN_FOUR)
    def the_workers_are_shut_down(self, now: bool) -> None:
        if now:
            self.sampler.shutdown_worker()
            self.kills = 0

    # -- the workers -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.actors())
    @rule(pick=PICKS, turns=st.integers(1, 6))
    def a_worker_takes_turns(self, pick: int, turns: int) -> None:
        process = self.actors()[pick % len(self.actors())]
        for _ in range(turns):
            self.turn(process)

    @precondition(lambda self: self.actors())
    @rule(pick=PICKS)
    def a_way_back_fills_up(self, pick: int) -> None:
        process = self.actors()[pick % len(self.actors())]
        for _ in range(60):
            self.turn(process)

    @precondition(lambda self: self.stream is not None)
    @rule(rounds=st.integers(1, 4))
    def everybody_goes_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round()

    @precondition(lambda self: self.living())
    @rule(pick=PICKS, at_work=st.booleans(), busy=st.booleans(), told=st.booleans())
    def a_worker_is_killed(self, pick: int, at_work: bool, busy: bool, told: bool) -> None:
        living = self.living()
        chosen = [process for process in living if process.at_work or process.keeps] if at_work else living
        process = (chosen or living)[pick % len(chosen or living)]
        process.kill(busy=busy, told=told)
        self.kills += 1
        self.disturbed = True

    @precondition(lambda self: self.stream is not None and any(one.open_numbers for one in self.living()))
    @rule(pick=PICKS, blamed=st.booleans())
    def an_episode_fails(self, pick: int, blamed: bool) -> None:
        """Let an episode raise in its next step, which may be its first one."""
        numbers = [number for process in self.living() for number in sorted(process.open_numbers)[:2]]
        number = numbers[pick % len(numbers)]
        self.world.failing[number] += 1
        self.world.unblamed.difference_update([number])
        if not blamed:
            self.world.unblamed.add(number)
        self.failures += 1
        self.disturbed = True

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def something_can_happen(self) -> None:
        """While a call waits, a worker has something to do or has sent something."""
        if self.stream is not None and not self.has_chunk:
            assert self.actors() or self.senders(), "nothing can happen any more: the call hangs"

    @invariant()
    def who_keeps_messages_runs_nothing(self) -> None:
        """A worker that is not listened to waits, rather than heap up episodes."""
        assert not any(process.keeps and process.state is WorkerState.STREAMING for process in self.living())

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None and hasattr(self, "sampler"):
                self.come_to_the_end()
        finally:
            self.patch.undo()

    def come_to_the_end(self) -> None:
        """Let what runs end within some rounds of fair turns; a last call has its episodes too, and all workers end."""
        self.finish()
        self.a_call_begins(Episodes(0, 7), None, AddToTask(1), arrival=False)
        self.finish()
        self.sampler.shutdown_worker()

    def finish(self) -> None:
        for _ in range(MOST_ROUNDS):
            if self.stream is None:
                return
            self.round()
            self.something_can_happen()
        raise AssertionError("the call does not come to its end")
