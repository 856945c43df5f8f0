"""Call: the shell of the sampler's state machine, for one call of a sampler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import RolloutError
from rollout_cli.samplers import instructions as do
from rollout_cli.samplers.messages import Start
from rollout_cli.samplers.reorder import EpisodeBuffer
from rollout_cli.samplers.sampler_machine import BufferDrained, SamplerMachine
from rollout_cli.samplers.updates import Update

_clock = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a call asks of its sampler.

    Attributes:
        learn: Takes what a worker told of its environment and policy.
        note_reason: Takes why a worker's episodes cannot be reproduced, where it says so.
        restart: Starts a worker's process again, brings it to where the others are, and sends it a `Start`.
        rebuild: Lets a worker build everything anew, brings it to where the others are, and sends it a `Start`.
        note_skipped: Takes the number of an episode that is left out, and the reason.
        tell: Tells the user of a fault that was got over.
    """

    learn: Callable[[EnvSpec, dict[str, Any]], None]
    note_reason: Callable[[str | None], None]
    restart: Callable[[int, Start], None]
    rebuild: Callable[[int, Start], None]
    note_skipped: Callable[[int, str], None]
    tell: Callable[[str], None]


class Pool(Protocol):
    """The workers of a call."""

    def send(self, worker: int, message: Any) -> None:
        """Send a message to a worker; never waits."""

    def wait(self, timeout: float | None = None) -> Iterator[Any]:
        """Wait until a worker sent something or died; give what came."""


class Call:
    """Carries out one machine's instructions.

    Args:
        machine: Decides.
        buffer: Puts the episodes in order; closed at the end.
        pool: The workers.
        hooks: What the sampler does.
    """

    def __init__(self, machine: SamplerMachine, buffer: EpisodeBuffer, pool: Pool, hooks: Hooks) -> None:
        self._machine, self._buffer, self._pool, self._hooks = machine, buffer, pool, hooks
        self._failure: RolloutError | None = None
        self._ends_at = math.inf
        self._dropped = 0
        self._skipped: dict[int, str] = {}

    @property
    def dropped(self) -> int:
        """Return how many episodes of a call that is over had ended and were not handed on: one before them had not."""
        return self._dropped

    @property
    def has_failed(self) -> bool:
        """Return whether the call ends with an error, or would have, had its caller gone on."""
        return self._failure is not None

    def run(self, updates: Sequence[Update], *, grace: Callable[[], float | None]) -> Generator[Chunk, None, None]:
        """Yield chunks until the plan is done or stopped; what was finished before a failure comes before its error.

        Args:
            updates: The agent and env updates of each worker.
            grace: None, until the run is asked to end: then the seconds that are left to what holds others up.
        """
        try:
            self._carry_out(self._machine.begin(updates, _clock()))
            while True:
                yield from self._buffer.ready()
                if self._failure is not None:
                    raise self._failure
                seconds = grace()
                if seconds is not None and not self._machine.stopping:
                    self._ends_at = _clock() + seconds
                    self._carry_out(self._machine.stop())
                if self._machine.plan.done or self._machine.stopped or _clock() >= self._ends_at:
                    return
                self._take(self._pool.wait(None if seconds is None else self._ends_at - _clock()))
        finally:
            self._note_skipped()
            self._carry_out(self._machine.end())
            self._dropped = self._buffer.n_waiting
            self._buffer.close()

    def _note_skipped(self) -> None:
        """Tell which episodes are missing in what was handed on; others that were skipped lay behind its end."""
        for number, reason in sorted(self._skipped.items()):
            if self._buffer.passed(number):
                self._hooks.note_skipped(number, reason)

    def _take(self, events: Iterable[Any]) -> None:
        was_full = self._machine.buffer_is_full
        self._machine.buffer_is_full = self._buffer.is_full
        if was_full and not self._machine.buffer_is_full:
            self._carry_out(self._machine.handle(BufferDrained(), _clock()))
        for event in events:
            self._carry_out(self._machine.handle(event, _clock()))

    def _carry_out(self, instructions: do.Instructions) -> None:
        for instruction in instructions:
            match instruction:
                case do.SendTo(worker, message):
                    self._pool.send(worker, message)
                case do.Keep(batch):
                    self._hooks.note_reason(batch.not_reproducible)
                    self._buffer.add(batch)
                case do.Learn(started):
                    self._hooks.learn(started.env_spec, started.facts)
                case do.Restart(worker, start):
                    self._hooks.restart(worker, start)
                case do.Rebuild(worker, start):
                    self._hooks.rebuild(worker, start)
                case do.Skip(number, reason):
                    self._buffer.skip(number)
                    self._skipped[number] = reason
                case do.Tell(text):
                    self._hooks.tell(text)
                case do.Fail(error):
                    self._failure = self._failure or error
