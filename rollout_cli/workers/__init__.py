"""Floor 3: workers run one policy in one or more environments and record whole episodes.

A worker learns which episode numbers it runs (`assign`), seeds each number, steps, and hands finished episodes on as
chunks. It knows nothing of other workers, messages or files.
"""

from rollout_cli.workers.default_worker import DefaultWorker
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.fragment_worker import FragmentWorker
from rollout_cli.workers.native_worker import NativeVecWorker
from rollout_cli.workers.vec_worker import DEFAULT_N_ENVS, VecWorker
from rollout_cli.workers.worker import NumberedWorker, Worker

__all__ = [
    "DEFAULT_N_ENVS",
    "DefaultWorker",
    "FragmentWorker",
    "NativeVecWorker",
    "NumberedWorker",
    "VecWorker",
    "Worker",
    "WorkerFactory",
]
