"""Floor 4: samplers decide which worker runs which episodes, and hand the episodes on in order.

`plan.py` says which episodes a run has; the two state machines (`worker_machine.py`, `sampler_machine.py`) say what
happens when, and know no process; the rest carries it out.
"""

from rollout_cli.samplers.local_sampler import LocalSampler
from rollout_cli.samplers.multiprocessing_sampler import MultiprocessingSampler
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.sampler import Sampler

__all__ = [
    "Episodes",
    "EpisodesPerWorker",
    "LocalSampler",
    "MinTimesteps",
    "MultiprocessingSampler",
    "Plan",
    "Sampler",
]
