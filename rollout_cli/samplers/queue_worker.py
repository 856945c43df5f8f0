"""run_worker: one worker between two queues, for users' own samplers, as the documents describe them."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
from typing import Any

import numpy as np
import setproctitle

from rollout_cli.envs.source import as_env_source
from rollout_cli.envs.updates import EnvUpdate
from rollout_cli.errors import InternalError
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.worker import Worker


def run_worker(  # noqa: C901, PLR0917 - the documents' arguments, and one state machine
    factory: WorkerFactory, to_worker: Any, to_sampler: Any, worker_number: int, agent: Any, env: Any
) -> None:
    """Run a worker until `exit`; it never blocks on sending.

    Commands are pairs. `("start", (agent_update, env_update, version))` applies the updates and begins to
    stream, and `("continue", ())` goes on. A worker that streams sends `("trajectory", (EpisodeBatch,
    version, worker_number))`, a rollout each. It stops at `("stop", ())`, or when the sampler's queue is
    full; the batch that did not fit is sent first of all when it streams again. `("exit", ())` ends it. What
    user code raises leaves this function. The samplers of this package have a worker loop of their own.

    Args:
        factory: Builds the worker.
        to_worker: Queue of commands, with the methods of `multiprocessing.Queue`; so is the next one.
        to_sampler: Queue of batches.
        worker_number: Which worker this is, from 0; its numbers and seeds are no other's.
        agent: A policy, or one as pickled bytes; so is a command's update, which may be parameters or None as
            well.
        env: An environment, or whatever a sampler takes for one; a command's may be an EnvUpdate or None as
            well.

    Raises:
        InternalError: At an unknown command (an AssertionError, too).
    """
    with contextlib.ExitStack() as stack:
        for worker_queue in (to_worker, to_sampler):
            if hasattr(worker_queue, "close"):
                stack.callback(worker_queue.close)
        if hasattr(to_sampler, "cancel_join_thread"):
            to_sampler.cancel_join_thread()  # Else an ending process waits until somebody reads what it sent.
        if multiprocessing.parent_process() is not None:
            setproctitle.setproctitle(f"worker:{worker_number}")
        stack.enter_context(factory.setup())
        worker = factory(worker_number)
        stack.callback(worker.shutdown)
        _update(worker, agent, env)
        factory.after_updates()
        version = 0
        is_streaming = False
        unsent = None
        while True:
            command: Any = ("continue", ())
            with contextlib.suppress(queue.Empty):
                command = to_worker.get(block=not is_streaming)
            tag, contents = command
            match tag:
                case "start":
                    agent_update, env_update, version = contents
                    _update(worker, agent_update, env_update)
                    is_streaming = True
                case "continue":
                    unsent = unsent or ("trajectory", (worker.rollout(), version, worker_number))
                    try:
                        to_sampler.put_nowait(unsent)
                        is_streaming = True
                        unsent = None
                    except queue.Full:
                        is_streaming = False
                case "stop":
                    is_streaming = False
                case "exit":
                    return
                case _:
                    raise InternalError(f"unknown command {tag!r} with contents {contents!r:.80}")


def _update(worker: Worker, agent: Any, env: Any) -> None:
    if isinstance(agent, bytes):
        agent = pickle.loads(agent)  # noqa: S301  The bytes are the sampler's own.
    if not isinstance(agent, dict | tuple | np.ndarray | None):
        worker.forget_agent()  # The one before need not fit the new environment.
    if not isinstance(env, EnvUpdate | None):
        env = as_env_source(env)
    worker.update_env(env)
    worker.update_agent(agent)
