"""Layer 5: samplers decide which worker runs which episodes, and hand the episodes on in order.

`plan.py` says which episodes a run has; `sampler_machine.py` and `worker_loop.py` say what happens when, and know no
process; a pool carries it out. The names below are loaded when they are first used: the fork server starts from this
package before numpy or gymnasium is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_cli.samplers.local_sampler import LocalSampler
    from rollout_cli.samplers.multiprocessing_sampler import MultiprocessingSampler
    from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
    from rollout_cli.samplers.sampler import Sampler
    from rollout_cli.samplers.supervision import Supervision

__all__ = [
    "Episodes",
    "EpisodesPerWorker",
    "LocalSampler",
    "MinTimesteps",
    "MultiprocessingSampler",
    "Plan",
    "Sampler",
    "Supervision",
]

_HOMES = {
    "LocalSampler": "local_sampler",
    "MultiprocessingSampler": "multiprocessing_sampler",
    "Sampler": "sampler",
    "Supervision": "supervision",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'plan')}"), name)
