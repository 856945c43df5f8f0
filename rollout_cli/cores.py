"""The number of cores that this process may use, which is the default number of workers.

`os.cpu_count()` ignores the CPU limit of a container, and 64 workers within a limit of two cores are slower
than two workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
WORKER_VARIABLES = {**dict.fromkeys(_THREADS, "1"), "PYTHONHASHSEED": "0"}
"""Default environment variables of worker processes.

The workers already use all cores: each gets one thread for linear algebra. A fixed hash seed gives sets of
strings the same order in every worker and run.
"""


def use_one_thread() -> None:
    """Limit libraries that are loaded later to one thread, as in workers: the last bits of results depend on it."""
    for name in _THREADS:
        os.environ.setdefault(name, WORKER_VARIABLES[name])


def usable_cores() -> int:
    """Return the number of cores that CPU affinity and control groups (version 2) allow, rounded down, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *_quotas()])))


def _quotas() -> Iterator[float]:
    """Yield the CPU limits in cores of the process's control group and its parents.

    A container may see only a parent.
    """
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        group = Path(line.rpartition(":")[2].lstrip("/"))
        for folder in (group, *group.parents):
            match _read(Path("/sys/fs/cgroup", folder, "cpu.max")).split():
                case [quota, period] if quota != "max":
                    yield int(quota) / int(period)


def _read(path: Path) -> str:
    # Kernel, container and platform decide which of these files exist. A missing file means no limit.
    try:
        return path.read_text().strip()
    except OSError:
        return ""
