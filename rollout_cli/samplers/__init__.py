"""Floor 4: samplers decide which worker runs which episodes, and hand the episodes on in order.

`plan.py` says which episodes a run has; the two state machines (`worker_machine.py`, `sampler_machine.py`) say what
happens when, and know no process; the rest carries it out.

The names below are loaded when they are first used: worker processes need none of them, and the fork server is started
before any of them is loaded.
"""

from typing import TYPE_CHECKING

from rollout_cli.lazy_names import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "Episodes": "plan",
        "EpisodesPerWorker": "plan",
        "LocalSampler": "local_sampler",
        "MinTimesteps": "plan",
        "MultiprocessingSampler": "multiprocessing_sampler",
        "Plan": "plan",
        "Sampler": "sampler",
        "Supervision": "supervision",
    },
)
