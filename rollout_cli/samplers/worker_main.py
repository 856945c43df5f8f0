"""Where a worker's process begins."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import setproctitle

from rollout_cli import fast_contains, fast_reset
from rollout_cli.samplers.channel import PipeChannel
from rollout_cli.samplers.parent_watch import end_with_parent
from rollout_cli.samplers.shared_box import SharedBox
from rollout_cli.samplers.shared_ring import RingMemory, RingWriter
from rollout_cli.samplers.worker_process import run_worker
from rollout_cli.standard_streams import point_stdout_to_stderr

OUTBOX_BYTES = 32 << 20
"""So many bytes may wait for the pipe while the worker goes on: what a fast one makes in the time of a lease."""


def worker_main(  # noqa: PLR0917  A process takes its arguments in order.
    connection: Connection[Any, Any],
    ring: RingMemory,
    box: SharedBox,
    payload: bytes,
    worker_number: int,
    title: str,
    each_step: bool,  # noqa: FBT001  As above.
) -> None:
    """Begin a worker's process.

    Args:
        connection: Its end of the pipe.
        ring: Where it may put large messages.
        box: Where it notes what it does.
        payload: A pickled (factory, agent, env); the last two are `Pickled` themselves.
        worker_number: Which worker this is.
        title: What the process calls itself in `ps` and `top`.
        each_step: Whether each step is noted, so that one that takes too long is seen.
    """
    # The sampler decides when a worker ends; a group of its own lets what the environment starts end with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):  # A session leader (under some debuggers) leads its group already.
        os.setpgid(0, 0)
    setproctitle.setproctitle(title)
    end_with_parent()
    point_stdout_to_stderr()
    box.install()
    fast_contains.install()
    fast_reset.install()
    channel = PipeChannel(connection, keeps=OUTBOX_BYTES, writer=RingWriter(ring))
    channel.widen()
    try:
        factory, agent, env = pickle.loads(payload)
        run_worker(factory, channel, channel, worker_number, agent, env, each_step=each_step)
    except BaseException as error:  # noqa: BLE001  SystemExit of user code among them.
        _end_at_once(box, error)


def _end_at_once(box: SharedBox, error: BaseException) -> None:
    """End the process because of an error; what user code left running must not keep it from ending."""
    story = "".join(traceback.format_exception(error))
    box.leave_word(story)
    code = error.code if isinstance(error, SystemExit) else 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The user's code may have put anything in its place.
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))
