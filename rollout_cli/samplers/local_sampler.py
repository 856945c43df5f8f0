"""LocalSampler: all workers in the caller's process, for debugging and small runs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

from rollout_cli.errors import UsageError
from rollout_cli.samplers.leases import LeaseSize
from rollout_cli.samplers.messages import ToWorker
from rollout_cli.samplers.pool import Died, Event
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.worker_loop import WorkerLoop, take_turn
from rollout_cli.seeding.seeds import BorrowedGenerators
from rollout_cli.workers.factory import WorkerFactory

TURN_SECONDS = 0.02
"""Longer than in worker processes: no command can arrive during a turn, and each turn swaps global generators."""

CLOSE_SECONDS = 2.0
"""Seconds before a warning about an environment that is still closing: this process cannot abort it."""


class LocalSampler(Sampler):
    """Samples in the caller's process, and restores its global random generators.

    Takes the arguments of `Sampler`. With one policy and one environment for all workers, worker 0 runs every
    episode, so only one environment is built. Errors have the traceback of user code, which a debugger can
    enter.

    Raises:
        UsageError: If a time limit is set, since a step in this process cannot be aborted.

    Example:
        >>> import gymnasium
        >>> with rollout_cli.LocalSampler("random", gymnasium.make("CartPole-v1"), seed=0) as sampler:
        ...     batch = sampler.obtain_samples(0, 50, agent_update=None)
        >>> batch
        <EpisodeBatch: 2 episodes, 55 steps, mean return 27.5>
    """

    _lease_size = LeaseSize(seconds=1.0, ahead=3)
    _is_parallel: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._supervision.has_time_out:
            raise UsageError(
                "LocalSampler got step_timeout or episode_timeout, but cannot abort a step or an episode",
                code="timeout-without-process",
                hint="use MultiprocessingSampler, or omit step_timeout and episode_timeout",
            )

    def _make_pool(self) -> LocalPool:
        return LocalPool(self._factory)


class _LocalWorker(NamedTuple):
    """A worker, its commands, and its global random generators, which are swapped in for each of its turns."""

    loop: WorkerLoop
    commands: deque[ToWorker]
    generators: BorrowedGenerators


class LocalPool:
    """A `Pool` of workers in this process, which run only while the caller is in `wait`."""

    def __init__(self, factory: WorkerFactory) -> None:
        self._factory = factory
        self._workers: dict[int, _LocalWorker] = {}
        self._setup = ExitStack()
        with BorrowedGenerators():
            self._setup.enter_context(factory.setup())

    def start(self, worker: int) -> None:
        loop = WorkerLoop(lambda: self._factory, worker, owns_process=False, turn_seconds=TURN_SECONDS)
        self._workers[worker] = _LocalWorker(loop, deque(), BorrowedGenerators())

    def send(self, worker: int, command: ToWorker) -> None:
        if worker in self._workers:
            self._workers[worker].commands.append(command)

    def wait(self) -> list[Event]:
        """Run one turn of every worker that is not idle; return their events."""
        busy = [number for number, worker in self._workers.items() if worker.commands or not worker.loop.idle]
        return [event for number in busy for event in self._turn(number)]

    def _turn(self, number: int) -> list[Event]:
        loop, waiting, generators = self._workers[number]
        commands = [waiting.popleft() for _ in range(len(waiting))]
        with generators, self._factory.borrowed_threads():
            events = take_turn(loop, number, commands)
        if events and isinstance(events[-1], Died):
            del self._workers[number]
        return events

    def close(self) -> None:
        """Close the workers' environments, and exit the setup."""
        # Environments are closed on this thread, since a window or a renderer may belong to it.
        timer = threading.Timer(
            CLOSE_SECONDS,
            logging.getLogger("rollout_cli").warning,
            [
                "an environment's close() has not returned after %g s; press Ctrl-C to abort it",
                CLOSE_SECONDS,
            ],
        )
        self._setup.callback(timer.cancel)
        timer.start()
        with BorrowedGenerators(), self._setup:
            for worker in self._workers.values():
                with worker.generators:
                    worker.loop.close()
        self._workers.clear()
