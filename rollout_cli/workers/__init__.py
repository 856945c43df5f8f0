"""Layer 4: workers run one policy in one or more environments and record the episodes that they are given.

They know nothing of other workers, messages or files.
"""

from rollout_cli.workers.factory import WorkerFactory, load_worker_class
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.values import EpisodeRules
from rollout_cli.workers.worker import Worker

__all__ = [
    "DefaultWorker",
    "EpisodeRules",
    "VecWorker",
    "Worker",
    "WorkerFactory",
    "load_worker_class",
]
