"""run_worker: one worker that reads commands from a queue and writes batches to another, for custom samplers."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
from typing import Any

import setproctitle

from rollout_cli.envs.source import as_env_source
from rollout_cli.envs.updates import EnvUpdate
from rollout_cli.errors import InternalError
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.policy_holder import is_parameters
from rollout_cli.workers.worker import Worker


def run_worker(  # noqa: C901, PLR0917 - the documents' arguments, and one state machine
    factory: WorkerFactory, to_worker: Any, to_sampler: Any, worker_number: int, agent: Any, env: Any
) -> None:
    """Run a worker until `exit`; it never blocks on sending.

    Commands are pairs. `("start", (agent_update, env_update, version))` applies the updates and starts to
    stream; `("continue", ())` resumes streaming. While it streams, the worker sends `("trajectory",
    (EpisodeBatch, version, worker_number))` for each rollout. It stops at `("stop", ())` or when the
    sampler's queue is full; a batch that did not fit is sent first when streaming resumes. `("exit", ())`
    ends the worker. Errors of user code are raised to the caller. This package's samplers use WorkerLoop.

    Args:
        factory: Builds the worker.
        to_worker: Queue of commands, with the methods of `multiprocessing.Queue`.
        to_sampler: Queue of batches, with the same methods.
        worker_number: Index of the worker, from 0; it determines the worker's episode numbers and seeds.
        agent: A policy, or a pickled policy as bytes. Updates of commands may also be parameters or None.
        env: An environment, or any object that a sampler accepts as one. Updates of commands may also be an
            EnvUpdate or None.

    Raises:
        InternalError: If a command is unknown (also an AssertionError).

    Example:
        >>> arguments = (factory, to_worker, to_sampler, 0, agent, env)  # doctest: +SKIP
        >>> multiprocessing.Process(target=rollout_cli.run_worker, args=arguments).start()  # doctest: +SKIP
    """
    with contextlib.ExitStack() as stack:
        for worker_queue in (to_worker, to_sampler):
            if hasattr(worker_queue, "close"):
                stack.callback(worker_queue.close)
        if hasattr(to_sampler, "cancel_join_thread"):
            to_sampler.cancel_join_thread()  # Else the process cannot exit before its batches are read.
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
                    raise InternalError(
                        f"run_worker got the unknown command {tag!r} with contents {contents!r:.80}",
                        hint="send one of: start, continue, stop, exit",
                    )


def _update(worker: Worker, agent: Any, env: Any) -> None:
    if isinstance(agent, bytes):
        agent = pickle.loads(agent)  # noqa: S301  Pickled by the sampler.
    if agent is not None and not is_parameters(agent):
        worker.forget_agent()  # The old policy need not fit the new environment.
    if not isinstance(env, EnvUpdate | None):
        env = as_env_source(env)
    worker.update_env(env)
    worker.update_agent(agent)
