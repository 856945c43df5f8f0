"""WorkerLoop: what a worker does, one turn at a time, wherever it runs.

| worker | Start | Continue | Stop | Exit | turn |
| --- | --- | --- | --- | --- | --- |
| ready | update, take the lease | add to the lease, drop above the last needed | drop all numbers | ended | run, send |
| failed | rebuild, then ready; without `rebuild` ignored | ignored | ignored | ended | nothing |

It knows no process and no channel. Whoever drives it calls `turn` only while there is room for more messages, so a
worker never blocks on sending, and never drops a finished episode.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from rollout_cli.episodes.chunk import for_transport
from rollout_cli.errors import EnvLoadError, InternalError, PolicyLoadError, RolloutError, UserCodeError
from rollout_cli.loading import first_line, is_interrupt
from rollout_cli.samplers.messages import (
    Batch,
    Continue,
    Exit,
    Failed,
    Pickled,
    Start,
    Started,
    Stop,
    ToSampler,
    ToWorker,
)
from rollout_cli.samplers.pool import TurnBox
from rollout_cli.samplers.transit_errors import as_reported
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.worker import Worker

TURN_SECONDS = 0.004
"""How long a turn runs episodes: a look for commands after every step would cost as much as a small env's step."""

FLUSH_SECONDS = 0.05
"""How long a finished episode waits at most for others to be sent with it."""

FLUSH_ROWS = 8192
FLUSH_BYTES = 4 << 20
"""Finished episodes of so many rows or bytes are sent at once."""

_log = logging.getLogger("rollout_cli")
_clock = time.perf_counter

Setup = Callable[[], AbstractContextManager[None]]


class WorkerLoop:
    """One worker.

    Args:
        factory: Builds the worker.
        worker_number: Which worker this is.
        crash_box: Where it notes what runs.
        setup: Entered before the worker is built; None where the process belongs to this worker alone, which then sets
            it up as its factory says.
        turn_seconds: How long a turn runs episodes.

    Attributes:
        ended: Whether it was sent `Exit`.
    """

    def __init__(
        self,
        factory: WorkerFactory,
        worker_number: int,
        crash_box: TurnBox | None = None,
        *,
        setup: Setup | None = None,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self.ended = False
        self._turn_seconds = turn_seconds
        self._factory, self._number, self._box = factory, worker_number, crash_box
        self._enter = setup or factory.setup
        self._owns_process = setup is None
        self._setup = ExitStack()
        self._worker: Worker | None = None
        self._generation = 0
        self._failed = False
        self._flush_at = 0.0
        # Rows and bytes that the last look left behind: a lower number still runs.
        self._left = (0, 0)
        self._messages: list[ToSampler] = []

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do before the next command."""
        return self.ended or self._failed or self._worker is None or not self._worker.has_work

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the episodes that run."""
        return self._worker.running_numbers if self._worker is not None else ()

    def turn(self, commands: Sequence[ToWorker] = ()) -> list[ToSampler]:
        """Take commands, run episodes for a while or one step of the environment, and return what is to be sent.

        What is no Exception (a SystemExit of the user's code) leaves the turn: then the worker is as good as dead, and
        the episodes that run are suspects.
        """
        try:
            for command in commands:
                self._take(command)
            if self._messages:
                pass  # `Started` is sent before the first step: a worker that dies in that one has started.
            elif not self.idle:
                self._run()
            elif self._worker is not None and not self._failed and self._worker.finished_rows:
                self._send_finished(everything=True)  # A command has dropped all that it still ran.
        except Exception as error:  # noqa: BLE001  Whatever it is, the sampler must hear of it.
            self._fail(error)
        messages, self._messages = self._messages, []
        return messages

    def rescue(self) -> list[ToSampler]:
        """Return what there is to send of a worker whose turn was left by what is no Exception."""
        self._send_rest()
        messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        """Close the environment and leave the set-up; what these raise is only logged, for the episodes are safe."""
        worker, self._worker = self._worker, None
        setup, self._setup = self._setup, ExitStack()
        for close in (*([worker.shutdown] if worker is not None else []), setup.close):
            try:
                close()
            except BaseException as error:
                if is_interrupt(error):
                    raise
                _log.warning("worker %d could not be closed: %s", self._number, first_line(error))

    # -- commands --------------------------------------------------------------------------------------------------

    def _take(self, command: ToWorker) -> None:
        match command:
            case Exit():
                self.ended = True
            case Start() if command.rebuild or not self._failed:
                self._start(command)
            case Continue() if not self._failed:
                self._continue(command)
            case Stop() if not self._failed:
                self._drop_everything()
            case _:
                pass  # It crossed the report of a failure, by which all numbers are given back.

    def _start(self, start: Start) -> None:
        self._generation = start.generation
        self._failed = False
        if start.rebuild:
            self._give_up()
        if self._worker is None:
            self._worker = self._built()
        self._drop_everything()
        for update in start.updates:
            self._worker.update_env(_unpickled(update.env, "environment", EnvLoadError))
            self._worker.update_agent(_unpickled(update.agent, "policy", PolicyLoadError))
        if self._owns_process:
            self._factory.after_updates()
        self._worker.number_stride = start.stride
        self._messages.append(Started(self._number, self._generation, self._worker.env_spec, self._worker.info()))
        self._continue(Continue(start.lease, start.last_needed))

    def _give_up(self) -> None:
        """Give up all that was built: after a failure nobody knows what state it is in."""
        worker, self._worker = self._worker, None
        setup, self._setup = self._setup, ExitStack()
        # The failure was reported; that what it left cannot be closed either is no news.
        with contextlib.suppress(Exception), setup:
            if worker is not None:
                worker.shutdown()

    def _built(self) -> Worker:
        with ExitStack() as entered:
            entered.enter_context(self._enter())
            worker = self._factory(self._number)
            # Left when the worker ends, and not now, as where the building fails.
            self._setup = entered.pop_all()
        if self._box is not None:
            worker.crash_box = self._box
        return worker

    def _continue(self, command: Continue) -> None:
        worker = self._the_worker()
        if command.last_needed is not None:
            worker.retract(above=command.last_needed)
        if command.lease:
            worker.assign(command.lease)

    def _drop_everything(self) -> None:
        """Drop all numbers, and the episodes that nobody was sent."""
        if self._worker is not None:
            self._worker.retract(above=None)
            self._worker.take(everything=True)
            self._left = (0, 0)

    # -- episodes --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        worker = self._the_worker()
        if self._box is None:
            worker.advance(_clock() + self._turn_seconds)
        else:
            self._box.begin_turn()
            try:
                worker.advance(_clock() + self._turn_seconds)
            except Exception:
                self._box.end_turn()
                raise
            self._box.end_turn()
        if self._is_due(worker):
            self._send_finished(everything=not worker.has_work)

    def _is_due(self, worker: Worker) -> bool:
        """Return whether finished episodes are to be sent now."""
        rows, now = worker.finished_rows, _clock()
        if not rows:
            self._flush_at = now + FLUSH_SECONDS
        return (
            not worker.has_work
            or rows - self._left[0] >= FLUSH_ROWS
            or worker.finished_bytes - self._left[1] >= FLUSH_BYTES
            or (rows > 0 and now >= self._flush_at)
        )

    def _send_finished(self, *, everything: bool) -> None:
        worker = self._the_worker()
        chunk, error = self._factory.take(worker, everything=everything)
        if chunk is not None:
            for part in for_transport(chunk):
                self._messages.append(Batch(self._number, self._generation, part, worker.not_reproducible))
        self._left, self._flush_at = (worker.finished_rows, worker.finished_bytes), _clock() + FLUSH_SECONDS
        if error is not None:
            raise error

    def _fail(self, error: Exception) -> None:
        """Report a failure after the episodes that were finished before it, and wait to be rebuilt."""
        self._failed = True
        self._send_rest()
        if self._worker is not None:
            with contextlib.suppress(Exception):  # It is rebuilt in any case.
                self._worker.retract(above=None)
        numbers = tuple(sorted(error.episodes)) if isinstance(error, UserCodeError) else ()
        self._messages.append(Failed(self._number, self._generation, as_reported(error), numbers))

    def _send_rest(self) -> None:
        """Send what was finished before something was raised, which is reported; what this raises is only logged."""
        try:
            if self._worker is not None:
                self._send_finished(everything=True)
        except Exception as another:  # noqa: BLE001
            _log.debug("worker %d failed once more: %s", self._number, first_line(another))

    def _the_worker(self) -> Worker:
        if self._worker is None:
            raise InternalError("the worker was given work before its first update")
        return self._worker


def _unpickled(value: Pickled | None, what: str, kind: type[UserCodeError]) -> Any:
    """Return a new copy of the value.

    Raises:
        UserCodeError: Of `kind`, if it cannot be unpickled.
    """
    if value is None:
        return None
    try:
        return value.load()
    except RolloutError:
        raise
    except Exception as error:
        raise kind(
            f"the {what} cannot be unpickled in the worker: {first_line(error)}",
            hint="what it is made of must be importable in the worker too",
        ) from error
