"""RaySegmentRunner: writes segments in a process beside the workers, so that their episodes do not cross the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rollout_cli.errors import WorkerError
from rollout_cli.loading import first_line
from rollout_cli.samplers.ray import INSTALL_HINT, load_ray
from rollout_cli.samplers.segment_runner import LocalSegmentRunner, Result

_TRIES = 4


class RaySegmentRunner:
    """Calls functions on this node of a cluster, or on another one, if there is one, where no folder is needed.

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
        raise WorkerError(f"a call on the Ray cluster failed: {first_line(loss)}", hint=INSTALL_HINT) from loss


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
