"""RaySampler and its RayPool: workers are Ray actors, and episodes stay in the cluster's object store.

The driver keeps two turns requested of each actor. A turn returns a reply of a few bytes per episode, and
separately one object with the episodes, which is loaded only by the process that needs it.
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
    Compiled,
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
"""Upper limit of replies per second that the driver handles: turns get longer with more than 100 workers."""

EXIT_SECONDS = 5.0
"""Seconds that actors have to close their environments before they are killed."""

PLACE_SECONDS = 20.0
"""Seconds before a warning about a worker that has not started: the cluster may lack a free core."""

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
    turns: deque[tuple[Any, Any]] = field(default_factory=deque)  # References to each reply and its chunks.
    recipe: Any = None  # The reference to the Recipe that reruns the current episodes.
    files: tuple[PinnedFile, ...] = ()  # Files that the worker has read since its last build or update.
    starting: bool = True
    n_replies: int = 0
    n_old_replies: int = 0  # Replies before the reply to the last `Start`: an older call may still run.
    first: tuple[int, ...] = ()  # The first episode number that the `Start` leases.
    numbers: tuple[int, ...] = ()  # Episodes running at the last reply, or the first leased number.
    is_compiling: bool = False
    killed: str = ""
    late: tuple[int, ...] = ()


def turn_seconds(n_workers: int) -> float:
    """Return the length of a turn in seconds for this number of workers."""
    return max(TURN_SECONDS, n_workers / MOST_TURNS)


class RayPool:
    """A `Pool` of workers 0 to n - 1 as actors, each created with `resources` (`ray.remote` options)."""

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
        self._update_references: dict[tuple[Update, ...], Any] = {}  # For this generation's updates.
        self._generation = 0

    def start(self, worker: int) -> None:
        setup = WorkerSetup.of(worker, f"worker:{worker}", self._factory)
        actor = self._actor_class.remote(setup, self._turn_seconds)
        handle = _Handle(worker, actor, self._new_watch(), setup)
        handle.turns.append(self._turn(handle, []))  # Its reply shows that Ray has placed the worker.
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
        """Raise WorkerError if this process left the cluster: Ray would otherwise start a new cluster."""
        if _session(self._ray) != self._session:
            raise WorkerError(
                "the connection to the Ray cluster was closed, which ended the workers",
                code="ray-disconnected",
                hint="call ray.shutdown only after shutdown_worker; "
                "the next call of the sampler starts new workers",
            )

    def _turn(self, handle: _Handle, *arguments: Any) -> Any:
        """Request a turn; return the references to its reply and to its chunks."""
        return handle.actor.turn.options(num_returns=2).remote(*arguments)

    def _put(self, updates: tuple[Update, ...]) -> Any:
        """Return the reference to updates; workers with equal updates share one object in the store."""
        if updates not in self._update_references:
            self._update_references[updates] = self._ray.put(updates)
        return self._update_references[updates]

    def _take_replies(self) -> list[Event]:
        """Return the events of all replies that have arrived; wait for one if none has."""
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
        # A worker that is not idle or has a command pending is about to run the first number of its lease.
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
            if isinstance(event, Started):  # An episode that ran before starts again, and so does its timer.
                handle.watch = self._new_watch()
                handle.numbers = handle.first
                handle.is_compiling = event.report.compiles
            if isinstance(event, Compiled):
                handle.is_compiling = False
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
                is_starting = handle.is_compiling or handle.n_replies in {0, handle.n_old_replies}
                busy = bool(handle.turns) and not is_starting
                overdue = handle.watch.look(Notes(handle.n_replies, busy, handle.numbers), _clock())
                if overdue is not None:
                    handle.killed, handle.late = overdue
                    self._ray.kill(handle.actor)

    def _placement_warnings(self) -> list[Event]:
        """Return one warning, once per round of starts, if the cluster has not placed every worker."""
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
                f"{n_waiting} of {len(self._handles)} workers have not started after {PLACE_SECONDS:g} s; "
                f"still waiting: {' and '.join(resources)} of the Ray cluster are free"
            )
            return [Warn(text)]
        return []

    def _reap(self, handle: _Handle, error: Exception) -> Died:
        del self._handles[handle.worker]
        self._ray.kill(handle.actor)
        # It is unknown which of its episodes ran. The loss of a node is not the fault of an episode.
        is_node = not isinstance(error, self._ray.exceptions.ActorDiedError) or "node has died" in str(error)
        numbers = () if is_node and not handle.killed else None
        reason = handle.killed or f"was lost ({first_line(error)})"
        hint = INSTALL_HINT if handle.starting and not handle.killed else ""
        return Died(handle.worker, reason, numbers, str(error), hint, handle.late)


def _session(ray: Any) -> tuple[str, str] | None:
    """Return the job and node ids that identify this connection to a cluster, or None if not connected."""
    if not ray.is_initialized():  # Ray would otherwise start a new cluster to answer the query.
        return None
    return ray.get_runtime_context().get_job_id(), ray.get_runtime_context().get_node_id()


class RaySampler(Sampler):
    """Samples with the actors of a Ray cluster.

    The sampler uses this process's connection to a cluster, or connects to the cluster at `address`. Without
    either it starts Ray on this machine; that cluster ends with this process. If an actor or node dies, it is
    replaced and its episodes run again.

    Args:
        args: As in `Sampler`.
        address: Address of a running cluster, such as `auto`. None means the address in `RAY_ADDRESS`, or a
            new cluster on this machine if the variable is not set.
        cpus_per_worker: Number of cores to reserve for each worker.
        gpus_per_worker: Number of GPUs to reserve for each worker.
        kwargs: As in `Sampler`.

    Raises:
        UsageError: If Ray is not installed, or the cluster is too small.
        WorkerError: If no cluster runs at `address`.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1")
        >>> with rollout_cli.RaySampler("random", env, n_workers=2, seed=0) as sampler:  # doctest: +SKIP
        ...     batch = sampler.obtain_samples(0, 50, agent_update=None)
    """

    _buffer_bytes = 16 << 30  # Waiting episodes are in the cluster's object store, not in this process.

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
                    f"but the Ray cluster has {total.get(kind, 0):g}",
                    code="ray-resources",
                    hint="use fewer workers, reduce cpus_per_worker or gpus_per_worker, "
                    "or add nodes to the cluster",
                )
        return RayPool(self._factory, self._updates, self._resources, self._supervision)

    def segment_runner(self) -> SegmentRunner:
        return RaySegmentRunner()

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"address": self._address or os.environ.get("RAY_ADDRESS")}
        if options["address"] is None:
            # This machine may have more workers than cores, as with worker processes.
            needed = math.ceil(self.n_workers * self._resources["num_cpus"])
            options = {"address": "local", "num_cpus": max(needed, usable_cores())}
        host, _, port = (options["address"] or "").rpartition(":")
        try:
            if port.isdecimal():  # Ray itself would retry an address without a server for over a minute.
                socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            ray.init(logging_level=logging.ERROR, include_dashboard=False, **options)
        except Exception as error:
            raise WorkerError(
                f"cannot connect to a Ray cluster at {options['address']}: {first_line(error)}",
                code="ray-address",
                hint="start a cluster on its first node: ray start --head",
            ) from error


class RaySegmentRunner(SegmentRunner):
    """Calls functions on this node, or on another node (if any) when they need no folder of this machine.

    If the process or the other node dies, the function runs again on this node. The fourth death raises a
    WorkerError.
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
    """Return an actor that calls functions on this node, or on another node if `elsewhere` and if any."""
    node_id = ray.get_runtime_context().get_node_id()
    if elsewhere:  # So that this machine sends no data.
        node_ids = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != node_id]
        node_id = next(iter(node_ids), node_id)
    # Not soft: with a soft strategy Ray may place an actor that needs no core on any node.
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    # An actor, not a task: Ray ends a task's process before the next task and starts another.
    options = {"num_cpus": 0, "scheduling_strategy": strategy, "runtime_env": worker_variables(ray)}
    return ray.remote(**options)(SegmentRunner).remote()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Defer signals until the block ends, then pass them to the handlers installed before it.

    `ray.init` would treat an exception from a handler as its own failure and leave processes behind. Ray's
    own SIGTERM handler, which `ray.init` installs, raises SystemExit.
    """
    pending: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():  # Python allows handlers only there.
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
