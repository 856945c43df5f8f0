"""Layer 5: samplers decide which worker runs which episodes, and hand the episodes on in order.

The names below are loaded when they are first used: the fork server starts from this package before numpy is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_cli.samplers.local_sampler import LocalSampler as LocalSampler
    from rollout_cli.samplers.multiprocessing_sampler import MultiprocessingSampler as MultiprocessingSampler
    from rollout_cli.samplers.plan import Episodes as Episodes
    from rollout_cli.samplers.plan import EpisodesPerWorker as EpisodesPerWorker
    from rollout_cli.samplers.plan import MinTimesteps as MinTimesteps
    from rollout_cli.samplers.plan import Plan as Plan
    from rollout_cli.samplers.queue_worker import run_worker as run_worker
    from rollout_cli.samplers.ray_sampler import RaySampler as RaySampler
    from rollout_cli.samplers.sampler import Sampler as Sampler
    from rollout_cli.samplers.supervision import Supervision as Supervision

_HOMES = {
    **dict.fromkeys(("Episodes", "EpisodesPerWorker", "MinTimesteps", "Plan"), "plan"),
    "LocalSampler": "local_sampler",
    "MultiprocessingSampler": "multiprocessing_sampler",
    "RaySampler": "ray_sampler",
    "Sampler": "sampler",
    "Supervision": "supervision",
    "run_worker": "queue_worker",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
