"""WorkerLoop: the turns of a worker, independent of processes and channels (table in ARCHITECTURE.md)."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rollout_cli.episodes.chunk import Chunk, for_transport, without_infos
from rollout_cli.errors import EnvLoadError, PolicyLoadError, UserCodeError
from rollout_cli.samplers.keep import Judge
from rollout_cli.samplers.messages import (
    FLUSH_ROWS,
    Batch,
    Compiled,
    Continue,
    Exit,
    Failed,
    Judged,
    Reported,
    Start,
    Started,
    Stop,
    ToSampler,
    ToWorker,
)
from rollout_cli.samplers.pool import Died, Event
from rollout_cli.sources.loading import first_line, is_interrupt, reporting, traceback_text
from rollout_cli.sources.pins import FileWatch, PinRules, hashed
from rollout_cli.workers.checks import sound_episodes
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.values import NullCrashBox, WorkerReport
from rollout_cli.workers.worker import Worker

TURN_SECONDS = 0.004
"""Length of a turn: checking for commands after every step would cost as much as a small environment's step."""

FLUSH_SECONDS = 0.05
"""Maximum time that a finished episode waits for others to be sent with it."""

FLUSH_BYTES = 4 << 20
"""Finished episodes with this many bytes are sent immediately; the sampler sets the limit of rows."""

_log = logging.getLogger("rollout_cli")
_clock = time.perf_counter


class WorkerLoop:
    """One worker, which notes its running episodes in a crash box.

    The factory is loaded at each build, so that load errors are reported like build errors. If the worker
    owns its process, it runs the factory's setup. The caller calls `turn` only if it can accept more
    messages, so the worker never blocks on sending and never drops a finished episode. `ended` is true after
    an `Exit`.
    """

    _factory: WorkerFactory  # Loaded by the last build.

    def __init__(
        self,
        load_factory: Callable[[], WorkerFactory],
        worker_number: int,
        crash_box: NullCrashBox | None = None,
        *,
        owns_process: bool = True,
        hashes_files: bool = False,
        turn_seconds: float = TURN_SECONDS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.ended = False
        self._load_factory = load_factory
        self._number = worker_number
        self._crash_box = crash_box or NullCrashBox()
        self._owns_process = owns_process
        self._hashes_files = hashes_files
        self._turn_seconds = turn_seconds
        self._flush_seconds = flush_seconds
        self._exit_stack = ExitStack()  # Closed when the worker ends or is rebuilt.
        self._worker: Worker | None = None
        self._judge: Judge | None = None
        # Active from before the worker's class or a new policy is loaded until the first episode has ended.
        self._watch: FileWatch | None = None
        self._generation = 0
        self._failed = False
        self._must_compile = False
        self._flush_at = 0.0
        self._due_rows = FLUSH_ROWS
        self._kept_back = (0, 0)  # Rows and bytes that the last look could not send: a lower number runs.
        self._messages: list[ToSampler] = []

    @property
    def idle(self) -> bool:
        """Whether the worker has nothing to do before the next command."""
        return self.ended or self._failed or self._worker is None or not self._worker.has_work

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """Numbers of the running episodes."""
        return self._worker.running_numbers if self._worker is not None else ()

    def turn(self, commands: Sequence[ToWorker] = ()) -> list[ToSampler]:
        """Handle commands, run episodes for `turn_seconds` or one step, and return the messages to send.

        A BaseException such as the user's SystemExit is raised to the caller, which must treat the worker as
        dead and the running episodes as suspects.
        """
        untaken = list(commands)
        try:
            while untaken:
                self._take(untaken.pop(0))
            # `Started` is sent before the first step, so that a death in this step counts as after the start.
            if self._worker is not None and not (self._failed or self.ended or self._messages):
                self._run(self._worker)
        except Exception as error:  # noqa: BLE001  The sampler must be informed of every error.
            self._failed = True
            self._messages = [*self.rescue(), Failed.of(self._number, self._generation, error)]
        self._crash_box.end_turn()
        messages = self._messages
        self._messages = []
        if untaken:  # Commands after a failed one, such as an Exit, are still handled.
            messages += self.turn(untaken)
        return messages

    def rescue(self) -> list[ToSampler]:
        """Return the messages of a turn that raised; its error is reported, further errors are only logged."""
        try:
            if self._worker is not None:
                self._send_finished(self._worker, everything=True)
        except Exception as another:  # noqa: BLE001
            _log.debug("worker %d failed again: %s", self._number, first_line(another))
        return self._messages

    def close(self) -> None:
        """Close the environment and exit the setup; errors are only logged, since the episodes are safe."""
        self._worker = None
        self._end_watch()
        try:
            self._exit_stack.close()
        except BaseException as error:
            if is_interrupt(error):
                raise
            _log.warning("closing worker %d failed: %s", self._number, first_line(error))

    # -- commands --------------------------------------------------------------------------------------------

    def _take(self, command: ToWorker) -> None:
        worker = None if self._failed else self._worker
        match command:
            case Exit():
                self.ended = True
            case Start() if command.rebuild or not self._failed:
                self._start(command)
            case Continue(lease, last_needed, due_rows) if worker is not None:
                self._due_rows = due_rows
                if last_needed is not None:
                    worker.retract(above=last_needed)
                worker.assign(lease)
            case Stop() if worker is not None:
                worker.retract(above=None)
            case _:
                pass  # The command was sent before the sampler read `Failed`, which releases all numbers.

    def _start(self, start: Start) -> None:
        self._generation = start.generation
        self._failed = False
        self._due_rows = start.due_rows
        if start.rebuild:
            self.close()  # After a failure the state of the worker is unknown.
        is_new = self._worker is None
        worker = self._worker = self._worker or self._build()
        worker.start_call(number_stride=start.stride, salt=start.salt)
        if start.updates and not is_new:
            self._end_watch()
            self._watch = None if self._factory.pins is None else FileWatch(self._factory.pins)
        for update in start.updates:
            if update.is_policy:
                worker.forget_agent()
            worker.update_env(_unpickled(update.env, "environment", EnvLoadError))
            worker.update_agent(_unpickled(update.agent, "policy", PolicyLoadError))
        if self._owns_process:
            self._factory.after_updates()
        report = self._report(worker)
        self._must_compile = report.compiles
        self._messages.append(Started(self._number, self._generation, worker.env_spec, report))
        worker.assign(start.lease)

    def _build(self) -> Worker:
        watch = self._watch = FileWatch(PinRules())
        factory = self._factory = self._load_factory()
        self._judge = None if factory.keep is None else Judge(factory.keep)
        if self._owns_process:
            self._exit_stack.enter_context(factory.setup())
        worker = factory(self._number, self._crash_box)
        self._exit_stack.callback(worker.shutdown)
        if factory.pins is None:
            self._end_watch()
        else:
            watch.follow(factory.pins)
        return worker

    # -- episodes --------------------------------------------------------------------------------------------

    def _run(self, worker: Worker) -> None:
        if worker.has_work:
            if self._must_compile:
                self._must_compile = False
                worker.prepare()
                self._messages.append(Compiled(self._number, self._generation))
                return  # The answer leases more numbers, which the first block needs.
            self._crash_box.begin_turn()
            worker.advance(_clock() + self._turn_seconds, max(self._kept_back[0] + 1, self._due_rows))
        if self._is_due(worker):
            self._send_finished(worker, everything=not worker.has_work)

    def _is_due(self, worker: Worker) -> bool:
        """Return whether finished episodes should be sent now."""
        rows = worker.finished_rows
        now = _clock()
        if not rows:
            self._flush_at = now + self._flush_seconds
        return (
            not worker.has_work
            or rows - self._kept_back[0] >= FLUSH_ROWS
            or (rows > self._kept_back[0] and rows >= self._due_rows)
            or worker.finished_bytes - self._kept_back[1] >= FLUSH_BYTES
            or (rows > 0 and now >= self._flush_at)
        )

    def _send_finished(self, worker: Worker, *, everything: bool) -> None:
        """Send the finished episodes that are kept; then raise the error of the first faulty reward."""
        pairs = [sound_episodes(chunk) for chunk in worker.take(everything=everything)]
        for sound, _ in pairs:
            if sound is not None:
                self._send(worker, sound)
        self._kept_back = (worker.finished_rows, worker.finished_bytes)
        self._flush_at = _clock() + self._flush_seconds
        for _, error in pairs:
            if error is not None:
                raise error

    def _send(self, worker: Worker, chunk: Chunk) -> None:
        # Before the episodes: the sampler rejects a worker that read other files than the other workers.
        if self._watch is not None:
            self._messages.append(Reported(self._number, self._generation, self._report(worker)))
            self._end_watch()
        kept: Chunk | None = chunk
        if self._judge is not None:
            kept, rejected, unmet = self._judge.judge(chunk)
            self._messages.append(Judged(self._number, self._generation, rejected, unmet))
        if kept is not None:
            if self._factory.drop_infos:
                kept = without_infos(kept, self._factory.drop_infos)
            self._messages += [Batch(self._number, self._generation, piece) for piece in for_transport(kept)]

    def _report(self, worker: Worker) -> WorkerReport:
        report = worker.report()
        if self._watch is None:
            return report
        files = self._watch.files()
        if self._hashes_files:
            files = tuple(map(hashed, files))
        return replace(report, files=(*report.files, *files))

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None


def take_turn(loop: WorkerLoop, worker: int, commands: Sequence[ToWorker]) -> list[Event]:
    """Return the events of a turn of a worker whose process outlives the worker.

    If user code raises a BaseException that is not an Exception (e.g. by `sys.exit`), the worker is closed,
    and the last event is its `Died`, after its finished episodes. KeyboardInterrupt is raised unchanged.
    """
    try:
        return [*loop.turn(commands)]
    except BaseException as error:
        if is_interrupt(error):
            raise
        death = Died(
            worker,
            f"was ended by {first_line(error)}",
            loop.running_numbers,
            traceback_text(error),
            hint="raise an Exception instead in the environment or policy",
        )
        rescued = loop.rescue()
        loop.close()
        return [*rescued, death]


def _unpickled(data: bytes | None, what: str, kind: type[UserCodeError]) -> Any:
    with reporting(
        kind,
        f"the {what} cannot be unpickled in the worker",
        code="unpickle-failed",
        hint="make its modules importable in the worker",
    ):
        # Pickled by this package's own process.
        return None if data is None else pickle.loads(data)  # noqa: S301
