"""Calls of one sampler in a stepped world: how they go on by single events, and what is checked of what they give."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, cast

import pytest

from rollout_cli.chunk import Chunk
from rollout_cli.errors import EnvError, RolloutError, WorkerError
from rollout_cli.samplers import MultiprocessingSampler, call
from rollout_cli.samplers.supervision import MOST_FALSE_STARTS, MOST_KILLS, MOST_RETRIES, Supervision
from tests.unit.samplers.delivery import Delivery
from tests.unit.samplers.stepping import PAUSE, SteppedPool, SteppedProcess, SteppedWorld
from tests.unit.samplers.tasks import Given


class SteppedCalls:
    """One sampler and the call that it runs; it goes on when it is told to, and whatever is wrong is seen at once.

    Attributes:
        stream: The call, while it runs.
        has_chunk: Whether the call waits for its caller, who has a chunk, rather than for its workers.
        kills: Workers that were killed since the pool that there is was begun.
        failures: Episodes of this call that were made to fail.
        disturbed: Whether a worker was killed, an episode failed, or the caller closed this call.
        stop_grace: The grace time, where this call was asked to stop.
        heard: The episodes that the sampler had heard of when it was asked to stop.
        given: By worker, what it works with.
        by_worker: Whether offset i of this call belongs to worker i % n.
        delivery: The account of what this call gives.
    """

    world: SteppedWorld
    supervision: Supervision
    sampler: MultiprocessingSampler
    given: list[Given]
    by_worker: bool
    delivery: Delivery

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.stream: Generator[Chunk, None, None] | None = None
        self.has_chunk = False
        self.kills = self.failures = self.false_starts = 0
        self.disturbed = False
        self.stop_grace: float | None = None
        self.heard: set[int] = set()

    def note_call(self, *args: Any) -> call.Call:
        self.call = call.Call(*args)
        return self.call

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def pool(self) -> SteppedPool | None:
        pool: Any = self.sampler._pool
        return cast("SteppedPool | None", pool)

    def actors(self) -> list[SteppedProcess]:
        return self.pool.actors if self.pool else []

    def senders(self) -> list[SteppedProcess]:
        return self.pool.senders if self.pool and self.stream and not self.has_chunk else []

    def living(self) -> list[SteppedProcess]:
        return [process for process in self.pool.processes.values() if process.killed is None] if self.pool else []

    def is_over(self) -> bool:
        """Return whether the call would end, or note that it is asked to, rather than wait."""
        machine = self.call._machine
        asked = self.sampler._grace is not None and not machine.stopping
        ended = machine.plan.done or machine.stopped or self.world.clock() >= self.call._ends_at
        return self.call.has_failed or asked or ended

    # -- how it goes on --------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Let the sampler go on up to the next chunk, the next waiting, or the end."""
        assert self.stream is not None
        try:
            item = next(self.stream)
            while item is PAUSE and self.is_over():
                item = next(self.stream)
        except StopIteration:
            assert self.stop_grace is not None or self.call._machine.plan.done
            self.ended(done=self.call._machine.plan.done)
        except RolloutError as error:
            self.failed(error)
        else:
            self.has_chunk = item is not PAUSE
            if self.has_chunk:
                self.delivery.take(item)

    def take(self, sender: SteppedProcess, count: int) -> None:
        assert self.pool is not None
        self.pool.load(sender, count)
        self.go_on()

    def turn(self, process: SteppedProcess) -> None:
        self.world.clock.turns += 1
        if process.may_act:
            process.turn()

    def round(self) -> None:
        """Let the caller take what there is, every worker take a turn, and the sampler hear what they have sent."""
        while self.has_chunk:
            self.go_on()
        for process in self.actors():
            self.turn(process)
        for process in self.senders():
            while process in self.senders():
                self.take(process, 1)

    # -- what is checked at its end --------------------------------------------------------------------------------

    def ended(self, *, done: bool) -> None:
        self.stream, self.has_chunk = None, False
        self.delivery.check_end(self.sampler.skipped, self.sampler.next_number, done=done)
        if self.stop_grace == math.inf and not self.disturbed:
            self.check_stop(done=done)
        if self.pool is None:
            self.kills = 0  # The workers of a later call are new ones, and their account is.

    def check_stop(self, *, done: bool) -> None:
        """Check that what the sampler had heard of when it was asked to stop, and what lies below it, was handed on.

        What ends while the stop is on its way may be dropped; so may be, where each worker has numbers of its own, what
        lies above numbers that their worker was not leased yet.
        """
        if not done and (self.delivery.has_lanes or not self.by_worker):
            assert self.heard <= set(self.delivery.numbers)

    def failed(self, error: RolloutError) -> None:
        """Check that there was a reason, and that all that came before is in order."""
        if type(error) is WorkerError:
            assert self.kills > min(MOST_KILLS - 1, MOST_FALSE_STARTS - 1, self.supervision.max_worker_restarts)
        else:
            assert type(error) is EnvError, f"{error.message}: {error.details}"
            assert self.failures > {"fail": 0, "retry": MOST_RETRIES, "skip": math.inf}[self.supervision.on_env_error]
        assert self.pool is None
        self.stream, self.has_chunk, self.kills = None, False, 0
        self.delivery.check_end(self.sampler.skipped, self.sampler.next_number, done=False)
