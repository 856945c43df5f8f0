"""RaySampler and its RayPool: workers as actors of a Ray cluster, whose episodes stay in its object store.

The driver asks each actor for turns, and keeps two of them asked for. A turn gives what the driver must know,
a few bytes an episode, and beside it one object with the episodes themselves, which only those load who need
them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import cloudpickle

from rollout_cli.cores import usable_cores
from rollout_cli.episodes.chunk import ChunkRef
from rollout_cli.errors import UsageError, WorkerError
from rollout_cli.samplers.leases import LeaseSize
from rollout_cli.samplers.messages import (
    Batch,
    Continue,
    Exit,
    Failed,
    Reported,
    Start,
    Started,
    ToWorker,
    Update,
)
from rollout_cli.samplers.plan import contiguous_ranges
from rollout_cli.samplers.pool import WAIT_SECONDS, Died, Event, Pool, Result, SegmentRunner, Warn
from rollout_cli.samplers.ray import INSTALL_HINT, load_ray, worker_variables
from rollout_cli.samplers.ray.actor import TURN_SECONDS, Actor, Recipe, Stored, unpacked
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.supervision import Notes, Supervision, Watch
from rollout_cli.samplers.updates import UpdateLog
from rollout_cli.samplers.worker_setup import WorkerSetup
from rollout_cli.sources.loading import first_line
from rollout_cli.sources.pins import PinnedFile, agreed
from rollout_cli.workers.factory import WorkerFactory

MOST_TURNS = 1000
"""A driver is given about so many replies a second: with more than 100 workers their turns are longer."""

EXIT_SECONDS = 5.0
"""How long actors may take to close their environments, before they are killed."""

PLACE_SECONDS = 20.0
"""After so long a worker that has not started is worth a warning: its node may lack a free core."""

_CONNECT_SECONDS = 10.0
_TRIES = 4
_TURNS_AHEAD = 2
_clock = time.monotonic


@dataclass(slots=True, eq=False)
class _Handle:
    """The driver's side of one actor."""

    worker: int
    actor: Any
    watch: Watch
    setup: WorkerSetup
    turns: deque[tuple[Any, Any]] = field(default_factory=deque)  # References to reply and chunks of each.
    recipe: Any = None  # The reference to the Recipe of what it runs.
    files: tuple[PinnedFile, ...] = ()  # That it has read since its last build or update.
    starting: bool = True
    n_replies: int = 0
    n_old_replies: int = 0  # How many come before that to its last `Start`: an older call may still run.
    first: tuple[int, ...] = ()  # The first number that the `Start` leases.
    numbers: tuple[int, ...] = ()  # Those that ran at its last reply, or the first that it was leased.
    killed: str = ""
    late: tuple[int, ...] = ()


def turn_seconds(n_workers: int) -> float:
    """Return how long a turn runs episodes where there are so many workers."""
    return max(TURN_SECONDS, n_workers / MOST_TURNS)


class RayPool:
    """Workers 0 to n - 1 as actors, each with `resources` (options of `ray.remote`); a `Pool`."""

    def __init__(self, factory: WorkerFactory, log: UpdateLog, resources: Any, rules: Supervision) -> None:
        self._ray = load_ray()
        self._session = _session(self._ray)
        self._notice_at = math.inf
        self._factory = cloudpickle.dumps(factory)
        self._log = log
        self._rules = rules
        self._turn_seconds = turn_seconds(factory.n_workers)
        self._actor_class = self._ray.remote(runtime_env=worker_variables(self._ray), **resources)(Actor)
        self._handles: dict[int, _Handle] = {}
        self._update_references: dict[tuple[Update, ...], Any] = {}  # To updates of this generation.
        self._generation = 0

    def start(self, worker: int) -> None:
        setup = WorkerSetup.of(worker, f"worker:{worker}", self._factory)
        actor = self._actor_class.remote(setup, self._turn_seconds)
        handle = _Handle(worker, actor, self._new_watch(), setup)
        handle.turns.append(self._turn(handle, []))  # Its reply says that the worker has a place.
        self._handles[worker] = handle
        self._notice_at = _clock() + PLACE_SECONDS

    def send(self, worker: int, command: ToWorker) -> None:
        self._check_connection()
        handle = self._handles.get(worker)
        if handle is None:
            return
        arguments: list[Any] = [[command]]
        if isinstance(command, Start):
            handle.starting = True
            handle.n_old_replies = handle.n_replies + len(handle.turns)
            handle.first = tuple(run.start for run in command.lease[:1])
            if command.rebuild or command.updates:
                handle.files = ()
            if command.generation != self._generation:
                self._generation = command.generation
                self._update_references.clear()
            updates = self._put(self._log.history(worker))
            handle.recipe = self._ray.put(Recipe(handle.setup, updates, command.stride))
            arguments = [[replace(command, updates=())], self._put(command.updates)]
        if isinstance(command, Continue) and command.lease:
            handle.numbers = handle.numbers or (command.lease[0].start,)
        handle.turns.append(self._turn(handle, *arguments))

    def wait(self) -> list[Event]:
        self._check_connection()
        events = self._take_replies()
        if self._rules.has_time_out:
            self._kill_overdue()
        return events + self._placement_warnings()

    def close(self) -> None:
        if self._handles and _session(self._ray) == self._session:
            replies = [self._turn(handle, [Exit()])[0] for handle in self._handles.values()]
            self._ray.wait(replies, num_returns=len(replies), timeout=EXIT_SECONDS, fetch_local=False)
            for handle in self._handles.values():
                self._ray.kill(handle.actor)
        self._handles.clear()

    def _check_connection(self) -> None:
        """Raise a WorkerError where the workers cannot be reached: Ray would begin a cluster of its own."""
        if _session(self._ray) != self._session:
            raise WorkerError(
                "the connection to the Ray cluster was ended, and the workers with it",
                code="ray-disconnected",
                hint="call ray.shutdown only after shutdown_worker; "
                "the next call of the sampler starts new workers",
            )

    def _turn(self, handle: _Handle, *arguments: Any) -> Any:
        """Ask for a turn; return the references to its reply and to its chunks."""
        return handle.actor.turn.options(num_returns=2).remote(*arguments)

    def _put(self, updates: tuple[Update, ...]) -> Any:
        """Return the reference to updates, which are in the store once for all workers that get the same."""
        if updates not in self._update_references:
            self._update_references[updates] = self._ray.put(updates)
        return self._update_references[updates]

    def _take_replies(self) -> list[Event]:
        """Return what the replies say that have come; where there are none, wait for one."""
        handles = {handle.turns[0][0]: handle for handle in self._handles.values() if handle.turns}
        replies = list(handles)
        if not replies:
            time.sleep(WAIT_SECONDS)
            return []
        ready, _ = self._ray.wait(replies, num_returns=len(replies), timeout=0, fetch_local=False)
        if not ready:
            ready, _ = self._ray.wait(replies, num_returns=1, timeout=WAIT_SECONDS, fetch_local=False)
        return [event for reply in ready for event in self._events(handles[reply])]

    def _events(self, handle: _Handle) -> Iterator[Event]:
        reply_reference, objects = handle.turns.popleft()
        try:
            reply = unpacked(self._ray.get(reply_reference))
        except self._ray.exceptions.RayError as error:
            yield self._reap(handle, error)
            return
        handle.n_replies += 1
        # One that is not idle, or that has a command before it, is about to run the first that it was leased.
        if reply.running_numbers or (reply.idle and not handle.turns):
            handle.numbers = reply.running_numbers
        index = 0
        for event in reply.events:
            if isinstance(event, Batch):
                yield replace(
                    event, chunk=self._stored(handle, cast("ChunkRef", event.chunk), objects, index)
                )
                index += 1
                continue
            if isinstance(event, Died):
                self._ray.kill(handle.actor)
                del self._handles[handle.worker]
            if isinstance(event, Started):  # A number that ran before runs anew.
                handle.watch = self._new_watch()
                handle.numbers = handle.first
            if isinstance(event, Started | Reported) and event.generation == self._generation:
                handle.files = agreed(handle.files, event.report.files)
            handle.starting = handle.starting and not isinstance(event, Started | Failed)
            yield event
        while not reply.idle and len(handle.turns) < _TURNS_AHEAD:
            handle.turns.append(self._turn(handle, []))

    def _stored(self, handle: _Handle, reference: ChunkRef, objects: Any, index: int) -> ChunkRef:
        ranges = tuple(contiguous_ranges(reference.numbers))
        source = Stored(objects, index, handle.recipe, ranges, reference.lengths, handle.files)
        return replace(reference, source=source)

    def _new_watch(self) -> Watch:
        return Watch(self._rules, self._turn_seconds)  # A reply comes after a turn, not after each step.

    def _kill_overdue(self) -> None:
        for handle in self._handles.values():
            if not handle.killed:
                busy = bool(handle.turns) and handle.n_replies not in {0, handle.n_old_replies}
                overdue = handle.watch.look(Notes(handle.n_replies, busy, handle.numbers), _clock())
                if overdue is not None:
                    handle.killed, handle.late = overdue
                    self._ray.kill(handle.actor)

    def _placement_warnings(self) -> list[Event]:
        """Say once of the workers that were started last that they find no place on the cluster."""
        n_waiting = [handle.n_replies for handle in self._handles.values()].count(0)
        if n_waiting and _clock() >= self._notice_at:
            self._notice_at = math.inf
            total = self._ray.cluster_resources()
            free = self._ray.available_resources()
            resources = [
                f"{free.get(kind, 0):g} of {total[kind]:g} {kind}s"
                for kind in ("CPU", "GPU")
                if kind in total
            ]
            text = (
                f"{n_waiting} of {len(self._handles)} workers have not started after {PLACE_SECONDS:g} s, "
                f"and are waited for: {' and '.join(resources)} of the Ray cluster are free"
            )
            return [Warn(text)]
        return []

    def _reap(self, handle: _Handle, error: Exception) -> Died:
        del self._handles[handle.worker]
        self._ray.kill(handle.actor)
        # Of the numbers that it had, nobody knows which ran; and none of them brings a node down.
        is_node = not isinstance(error, self._ray.exceptions.ActorDiedError) or "node has died" in str(error)
        numbers = () if is_node and not handle.killed else None
        reason = handle.killed or f"was lost ({first_line(error)})"
        hint = INSTALL_HINT if handle.starting and not handle.killed else ""
        return Died(handle.worker, reason, numbers, str(error), hint, handle.late)


def _session(ray: Any) -> tuple[str, str] | None:
    """Return what tells this connection to a cluster from others; None where there is none."""
    if not ray.is_initialized():  # Else Ray would begin a cluster of its own to answer.
        return None
    return ray.get_runtime_context().get_job_id(), ray.get_runtime_context().get_node_id()


class RaySampler(Sampler):
    """Samples with the actors of a Ray cluster.

    It joins the cluster that this process is connected to, or else the one at `address`; without one it
    starts Ray on this machine, which ends with this process. An actor or node that is lost is replaced, and
    its episodes run again.

    Args:
        args: As in `Sampler`.
        address: Of a running cluster, such as `auto`; None for that of `RAY_ADDRESS`, or a new one on this
            machine.
        cpus_per_worker: How many cores of its node are reserved for a worker.
        gpus_per_worker: How many GPUs.
        kwargs: As in `Sampler`.

    Raises:
        UsageError: If Ray is not installed, or the cluster is too small.
        WorkerError: If there is no cluster at `address`.
    """

    _buffer_bytes = 16 << 30  # They lie in the cluster's store.

    def __init__(
        self,
        *args: Any,
        address: str | None = None,
        cpus_per_worker: float = 1.0,
        gpus_per_worker: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lease_size = LeaseSize(seconds=max(0.5, 3 * turn_seconds(self.n_workers)), ahead=2)
        self._address = address
        self._resources = {"num_cpus": cpus_per_worker, "num_gpus": gpus_per_worker}

    def _make_pool(self) -> Pool:
        ray = load_ray()
        if not ray.is_initialized():
            with _signals_held():
                self._connect(ray)
        total = ray.cluster_resources()
        for kind, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
            needed = self._resources[option] * self.n_workers
            if needed > total.get(kind, 0):
                raise UsageError(
                    f"{self.n_workers} workers need {needed:g} {kind}s, "
                    f"and the Ray cluster has {total.get(kind, 0):g}",
                    code="ray-resources",
                    hint="ask for fewer workers or less for each (cpus_per_worker, gpus_per_worker), "
                    "or add nodes first",
                )
        return RayPool(self._factory, self._updates, self._resources, self._supervision)

    def segment_runner(self) -> SegmentRunner:
        return RaySegmentRunner()

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"address": self._address or os.environ.get("RAY_ADDRESS")}
        if options["address"] is None:
            # More workers than cores are allowed on this machine, as for worker processes.
            needed = math.ceil(self.n_workers * self._resources["num_cpus"])
            options = {"address": "local", "num_cpus": max(needed, usable_cores())}
        host, _, port = (options["address"] or "").rpartition(":")
        try:
            if port.isdecimal():  # Ray itself would ask for more than a minute whether anybody is there.
                socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            ray.init(logging_level=logging.ERROR, include_dashboard=False, **options)
        except Exception as error:
            raise WorkerError(
                f"there is no Ray cluster at {options['address']}: {first_line(error)}",
                code="ray-address",
                hint="start one on its first node: ray start --head",
            ) from error


class RaySegmentRunner(SegmentRunner):
    """Calls functions on this node of a cluster, or on another, if any, where no folder is needed.

    If the process or that node is lost, the function runs again, on this node; four losses are a WorkerError.
    """

    def __init__(self) -> None:
        self._actor: Any = None

    def run(self, function: Callable[..., Result], *args: Any, needs_folder: bool = True) -> Result:
        ray = load_ray()
        for attempt in range(_TRIES):
            self._actor = self._actor or _new_actor(ray, elsewhere=not needs_folder and attempt == 0)
            try:
                return cast("Result", ray.get(self._actor.run.remote(function, *args)))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:
                self._actor = None
                loss = error
        raise WorkerError(
            f"a call on the Ray cluster failed: {first_line(loss)}", code="ray-call", hint=INSTALL_HINT
        ) from loss


def _new_actor(ray: Any, *, elsewhere: bool) -> Any:
    """Return an actor that calls functions on this node, or on another one if there is one."""
    node_id = ray.get_runtime_context().get_node_id()
    if elsewhere:  # So that this machine sends no data.
        node_ids = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != node_id]
        node_id = next(iter(node_ids), node_id)
    # Not soft: Ray places an actor without a core at random where its strategy leaves it a choice.
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    # An actor: Ray would end the process of a task before the next one, and start it again.
    options = {"num_cpus": 0, "scheduling_strategy": strategy, "runtime_env": worker_variables(ray)}
    return ray.remote(**options)(SegmentRunner).remote()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Handle signals that come in the block at its end, by the handlers that were there before it.

    Ray would take the error of a handler in `ray.init` for one of its own, and leave processes behind. Its
    own handler of SIGTERM, which `ray.init` puts in place, raises SystemExit.
    """
    pending: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():  # It alone may have handlers.
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handlers[name] = signal.signal(name, lambda number, _: pending.append(number))
    try:
        yield
    except SystemExit:
        pending.append(signal.SIGTERM)
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)
        for number in pending:
            signal.raise_signal(number)
