"""RaySampler: workers as actors of a Ray cluster, beside which segments are written."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

from rollout_cli.cores import usable_cores
from rollout_cli.errors import UsageError, WorkerError
from rollout_cli.loading import first_line
from rollout_cli.samplers.leases import LeaseSize
from rollout_cli.samplers.pool import Pool
from rollout_cli.samplers.ray import INSTALL_HINT, load_ray
from rollout_cli.samplers.ray.pool import RayPool, turn_seconds
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.segment_runner import LocalSegmentRunner, Result, SegmentRunner

_CONNECT_SECONDS = 10.0
_TRIES = 4
_CLUSTER_HINT = (
    "ask for fewer workers or less for each (cpus_per_worker, gpus_per_worker), or add nodes first"
)


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
        present = ray.cluster_resources()
        for kind, each in (("CPU", self._resources["num_cpus"]), ("GPU", self._resources["num_gpus"])):
            if each * self.n_workers > present.get(kind, 0):
                message = (
                    f"{self.n_workers} workers need {each * self.n_workers:g} {kind}s, "
                    "and the Ray cluster has "
                )
                raise UsageError(f"{message}{present.get(kind, 0):g}", hint=_CLUSTER_HINT)
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
            message = f"there is no Ray cluster at {options['address']}: {first_line(error)}"
            raise WorkerError(message, hint="start one on its first node: ray start --head") from error


class RaySegmentRunner:
    """Calls functions on this node of a cluster, or on another, if any, where no folder is needed.

    If the process or that node is lost, the function runs again, on this node; four losses are a WorkerError.
    """

    def __init__(self) -> None:
        self._actor: Any = None

    def run(self, function: Callable[..., Result], *args: Any, needs_folder: bool = True) -> Result:
        ray = load_ray()
        losses: list[Exception] = []
        while len(losses) < _TRIES:
            self._actor = self._actor or _new_actor(ray, elsewhere=not needs_folder and not losses)
            try:
                return cast("Result", ray.get(self._actor.run.remote(function, *args)))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:
                self._actor = None
                losses.append(error)
        loss = losses[-1]
        raise WorkerError(
            f"a call on the Ray cluster failed: {first_line(loss)}", hint=INSTALL_HINT
        ) from loss


def _new_actor(ray: Any, *, elsewhere: bool) -> Any:
    """Return an actor that calls functions on this node, or on another one if there is one."""
    node_id = ray.get_runtime_context().get_node_id()
    if elsewhere:  # So that this machine sends no data.
        others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != node_id]
        node_id = next(iter(others), node_id)
    # Not soft: Ray places an actor without a core at random where its strategy leaves it a choice.
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    # An actor: Ray would end the process of a task before the next one, and start it again.
    return ray.remote(num_cpus=0, scheduling_strategy=place)(LocalSegmentRunner).remote()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Handle signals that come in the block at its end, by the handlers that were there before it.

    Ray would take the error of a handler in `ray.init` for one of its own, and leave processes behind. Its
    own handler of SIGTERM, which `ray.init` puts in place, raises SystemExit.
    """
    pending: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # It alone may have handlers.
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {name: signal.signal(name, lambda number, _: pending.append(number)) for name in names}
    try:
        yield
    except SystemExit:
        pending.append(signal.SIGTERM)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        for number in pending:
            signal.raise_signal(number)
