"""WorkerHandle: the sampler's side of one worker process."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.errors import WorkerError
from rollout_cli.samplers.channel import PipeChannel
from rollout_cli.samplers.messages import Exit
from rollout_cli.samplers.shared_box import SharedBox
from rollout_cli.samplers.shared_ring import RingMemory, RingReader
from rollout_cli.samplers.supervision import Died
from rollout_cli.samplers.worker_main import worker_main


class WorkerHandle:
    """One worker's process, its pipe and its black box.

    Attributes:
        channel: The sampler's end of its pipe.
        box: What the worker notes.
        pipe_ended_at: When its pipe was seen to be closed; None while it is open.
        condemned: Why it was killed, where the sampler did that.
        late: The episodes that took too long, where it was killed for that.

    Args:
        context: How the process is started.
        number: Which worker it is.
        payload: The pickled (factory, agent, env) of `worker_main`.
        title: What the process is called.
        each_step: Whether it is to note each step.
        buffers: Gives the memory that its large messages are read into.

    Raises:
        WorkerError: If the process cannot be started.
    """

    def __init__(
        self, context: BaseContext, number: int, payload: bytes, title: str, *, each_step: bool, buffers: BufferPool
    ) -> None:
        self.pipe_ended_at: float | None = None
        self.condemned: str | None = None
        self.late: tuple[int, ...] = ()
        self._number = number
        with ExitStack() as undo:
            try:
                ours, theirs = context.Pipe(duplex=True)
                with theirs:
                    ring = RingMemory.create()
                    self.channel = PipeChannel(ours, reader=RingReader(ring), buffers=buffers)
                    undo.callback(self.channel.close)
                    self.box = SharedBox.create()
                    undo.callback(self.box.close)
                    args = (theirs, ring, self.box, payload, number, title, each_step)
                    self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
                        target=worker_main, args=args, name=title
                    )
                    self.process.start()
            except OSError as error:
                hint = "the system has no room for another process, or for what it needs (ulimit -a shows the limits)"
                raise WorkerError(f"worker {number} cannot be started: {error}", hint=hint) from error
            undo.pop_all()
        self._pidfd = _pidfd(context, self.process)

    @property
    def sentinel(self) -> int:
        """Return a descriptor that can be read once the process has ended."""
        return self.process.sentinel if self._pidfd is None else self._pidfd

    def condemn(self, reason: str, *, late: tuple[int, ...] = ()) -> None:
        """Kill the worker, unless it was before; its death is told like any other, with this reason."""
        if self.condemned is None:
            self.condemned, self.late = reason, late
            self.kill()

    def kill(self) -> None:
        """Kill the worker and whatever its environment started."""
        if self.process.pid is not None:
            # The group bears the worker's own number from its first moments on, and outlives it while it has members.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def death(self) -> Died:
        """Return how it ended; its process has."""
        self.process.join()
        noted = self.box.noted()
        return Died(
            self._number,
            self.condemned or how_it_ended(self.process.exitcode),
            begun=noted.begun,
            busy=noted.busy,
            last_words=self.box.last_words(),
            late=self.late,
        )

    def ask_to_exit(self) -> None:
        """Tell the worker to end."""
        with suppress(OSError):  # A dead worker's pipe.
            self.channel.put_behind(Exit())

    def end(self, deadline: float) -> None:
        """Wait until `deadline` for the worker to end, then kill it; what it started ends with it in any case."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        self.kill()
        self.process.join()

    def release(self) -> None:
        """Give back all that the sampler has of a worker that ended."""
        self.channel.close()
        self.box.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        # Without an exit code it has ended too, but multiprocessing would not believe it: other code of this process
        # has asked for it first, as a handler of SIGCHLD does that waits for any child.
        if self.process.exitcode is not None:
            self.process.close()


def _pidfd(context: BaseContext, process: BaseProcess) -> int | None:
    """Return a descriptor of a process of our own; None where it is the fork server's, which tells of its end.

    The sentinel of multiprocessing is a pipe, which children that the worker has forked hold open after its death.
    """
    if context.get_start_method() == "forkserver" or not hasattr(os, "pidfd_open") or process.pid is None:
        return None
    with suppress(ProcessLookupError):  # It has ended, and other code has asked for its end already.
        return os.pidfd_open(process.pid)
    return None


def how_it_ended(exit_code: int | None) -> str:
    """Return in words how a process ended; without an exit code, other code has asked for that before us."""
    if exit_code is None:
        return "ended, and how is not known: other code has asked for it"
    if exit_code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
