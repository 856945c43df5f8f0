"""The worker's shell: carries out what its state machine says, over any channel.

`worker_main.py` is where a new process begins.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from rollout_cli.black_box import black_box
from rollout_cli.chunk import for_transport
from rollout_cli.errors import EnvLoadError, InternalError, PolicyLoadError, RolloutError
from rollout_cli.samplers import worker_machine as wm
from rollout_cli.samplers.links import Link, link
from rollout_cli.samplers.messages import Batch, Failed, Pickled, Returned, Start, Started, lease_numbers
from rollout_cli.samplers.reports import failed_at_end, failed_in, pack_error
from rollout_cli.spaces import space_leaves
from rollout_cli.user_code import first_line
from rollout_cli.workers import NumberedWorker, WorkerFactory

Array = npt.NDArray[Any]

COMMAND_SECONDS = 0.004
"""How often a streaming worker looks for commands: a look after every step would cost as much as a small env's step."""

FLUSH_SECONDS = 0.05
"""How long a finished episode waits at most for others to be sent with it."""

FLUSH_ROWS = 8192
FLUSH_BYTES = 4 << 20
"""Finished episodes of so many rows or bytes are sent at once."""

_AT_ONCE = -1.0
"""A deadline that has passed: a worker takes one step."""

_clock = time.perf_counter


def run_worker(  # noqa: PLR0917  The documented order.
    factory: WorkerFactory,
    to_worker: Any,
    to_sampler: Any,
    worker_number: int,
    agent: Any,
    env: Any,
    *,
    each_step: bool = False,
) -> None:
    """Run one worker until it is told to exit.

    Args:
        factory: Builds the worker.
        to_worker: Where commands come from: a PipeChannel, or anything with the verbs of `multiprocessing.Queue`.
        to_sampler: Where finished episodes go; the same PipeChannel, or another queue.
        worker_number: Which worker this is.
        agent: Its first policy (or a `Pickled` one), taken when the first `Start` comes.
        env: Its first environment (or a `Pickled` one).
        each_step: Whether each step is noted in the black box, rather than each turn.
    """
    _Shell(factory, link(to_worker, to_sampler), worker_number, agent, env, each_step=each_step).run()


class _Shell:
    """Carries out the machine's instructions with a worker and a link."""

    def __init__(
        self, factory: WorkerFactory, link_: Link, number: int, agent: Any, env: Any, *, each_step: bool = False
    ) -> None:
        self._factory, self._link, self._number, self._each_step = factory, link_, number, each_step
        self._box = black_box()
        self._setup = contextlib.ExitStack()
        self._unapplied: list[tuple[Any, Any]] = [(agent, env)]
        self._machine = wm.WorkerMachine()
        self._worker: NumberedWorker | None = None
        self._version = 0
        self._backlog: deque[Any] = deque()
        self._counted = 0
        self._waiting_since = 0.0
        self._flush_rows = FLUSH_ROWS

    def run(self) -> None:
        """Run until the machine has exited."""
        try:
            with self._setup:
                self._run()
        finally:
            self._link.close()

    def _run(self) -> None:
        try:
            while self._machine.state is not wm.WorkerState.EXITED:
                self._turn()
        except (EOFError, BrokenPipeError):
            return  # The sampler's end is closed: there is nobody left to work for.

    def _turn(self) -> None:
        try:
            if self._machine.state is wm.WorkerState.STREAMING:
                self._stream()
            else:
                self._wait()
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001  A fault of user data or of this package: the sampler must hear of it.
            self._handle(wm.EpisodeFailed(pack_error(error), failed_at_end(error)))

    # -- what happens ----------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        command = self._link.wait(keeping=bool(self._backlog))
        if command is not None:
            self._handle(command)
        elif self._backlog:
            self._send_backlog()

    def _stream(self) -> None:
        command = self._link.poll()
        if command is not None:
            self._handle(command)
            return
        worker = self._the_worker()
        try:
            self._advance(worker)
        except Exception as error:  # noqa: BLE001  As below; but this one happened in an episode.
            unfinished = set(self._machine.open_numbers).difference(worker.finished_numbers)
            self._handle(wm.EpisodeFailed(pack_error(error), failed_in(error, unfinished)))
            return
        finished = worker.finished_since(self._counted)
        if len(finished):
            self._note_finished(finished)
        if self._counted and self._machine.state is wm.WorkerState.STREAMING and self._batch_is_due(worker):
            self._handle(wm.BatchDue())

    def _advance(self, worker: NumberedWorker) -> None:
        """Let the worker run for a while; its sampler sees from the black box that it does."""
        ends_at = _clock() + COMMAND_SECONDS
        self._box.begin_turn()
        try:
            while self._each_step and worker.has_work and _clock() < ends_at:
                worker.advance(_AT_ONCE)
                self._box.begin_turn()
            if not self._each_step:
                worker.advance(ends_at)
        except Exception:
            self._box.end_turn()
            raise
        # What is no Exception ends the process, out of the episodes that run.
        self._box.end_turn()

    def _note_finished(self, numbers: Sequence[int] | Array) -> None:
        if not self._counted:
            self._waiting_since = _clock()
        self._counted += len(numbers)
        self._handle(wm.EpisodesFinished(numbers))

    def _batch_is_due(self, worker: NumberedWorker) -> bool:
        return worker.finished_rows >= self._flush_rows or _clock() - self._waiting_since >= FLUSH_SECONDS

    # -- what is done ----------------------------------------------------------------------------------------------

    def _handle(self, event: wm.WorkerEvent) -> None:
        for instruction in self._machine.handle(event):
            self._carry_out(instruction)

    def _carry_out(self, instruction: wm.WorkerInstruction) -> None:
        match instruction:
            case wm.Assign(lease):
                self._the_worker().assign(lease[0] if len(lease) == 1 else sorted(lease_numbers(lease)))
            case wm.Retract(above):
                if self._worker is not None:
                    self._worker.retract(above=above)
            case wm.SendFinished():
                self._send_finished()
            case wm.SendReturned(numbers):
                self._send(Returned(self._number, self._version, numbers))
            case wm.SendFailed(error, numbers):
                self._send(Failed(self._number, self._version, error, numbers))
            case wm.Update(start):
                self._update(start)
            case wm.ShutDown():
                self._shut_down()

    def _update(self, start: Start) -> None:
        self._version = start.version
        self._backlog.clear()
        if self._worker is not None:
            self._worker.take()  # Finished under the version before: nobody wants them any more.
        self._counted = 0
        if start.anew:
            self._forget_worker()
        self._apply(start)
        worker = self._the_worker()
        worker.number_stride = start.stride
        row_bytes = sum(leaf.row_bytes for leaf in space_leaves(worker.env_spec.observation_space))
        self._flush_rows = max(1, min(FLUSH_ROWS, FLUSH_BYTES // max(1, row_bytes)))
        self._send(Started(self._number, self._version, worker.env_spec, worker.facts()))

    def _forget_worker(self) -> None:
        """Give up all that was built: after a failure nobody knows what state it is in."""
        worker, self._worker = self._worker, None
        self._unapplied.clear()
        self._box.forget_rows()
        # The failure was reported; that what it left cannot be closed either is no news.
        with contextlib.suppress(Exception), self._setup:
            if worker is not None:
                worker.shutdown()

    def _apply(self, start: Start) -> None:
        """Apply the updates; one that fails is tried again with the next `Start`, for no worker runs on without it."""
        if self._worker is None:
            self._worker = self._built()
        self._unapplied.append((start.agent_update, start.env_update))
        while self._unapplied:
            agent, env = self._unapplied[0]
            self._worker.update_env(load_pickled(env, EnvLoadError))
            self._worker.update_agent(load_pickled(agent, PolicyLoadError))
            del self._unapplied[0]
        self._factory.after_updates()

    def _built(self) -> NumberedWorker:
        with contextlib.ExitStack() as entered:
            entered.enter_context(self._factory.setup())
            worker = self._factory(self._number)
            worker.lend = self._link.lend
            # Left when the process ends, and not now, as where the building fails.
            self._setup.enter_context(entered.pop_all())
        return worker

    def _send_finished(self) -> None:
        self._counted = 0
        if self._worker is None:
            return
        chunk, error = self._factory.take(self._worker)
        if chunk is not None:
            reason = self._worker.not_reproducible
            for part in for_transport(chunk):
                self._send(Batch.of(part, self._number, self._version, reason))
        if error is not None:
            raise error  # After it nothing more is run, or sent back: the sampler frees whatever this worker has.

    def _send(self, message: Any) -> None:
        if self._backlog:
            self._backlog.append(message)
            return
        try:
            self._link.put_nowait(message)
        except queue.Full:
            self._backlog.append(message)
            self._handle(wm.OutboxFull())

    def _send_backlog(self) -> None:
        while self._backlog:
            try:
                self._link.put_nowait(self._backlog[0])
            except queue.Full:
                return
            self._backlog.popleft()
        self._handle(wm.OutboxWritable())

    def _shut_down(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()

    def _the_worker(self) -> NumberedWorker:
        if self._worker is None:
            raise InternalError("the worker was given work before its first update")
        return self._worker


def load_pickled(value: Any, kind: type[RolloutError]) -> Any:
    """Return `value`, unpickled where it is `Pickled`.

    Raises:
        RolloutError: Of class `kind` (EnvLoadError or PolicyLoadError), if it cannot be unpickled.
    """
    if not isinstance(value, Pickled):
        return value
    try:
        return value.load()
    except Exception as error:
        what = "policy" if kind is PolicyLoadError else "environment"
        raise kind(
            f"the {what} cannot be unpickled in the worker: {first_line(error)}",
            hint="what it is made of must be importable in the worker too",
        ) from error
