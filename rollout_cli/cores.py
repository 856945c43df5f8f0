"""How many cores this process may use: the default number of workers; and how workers share them.

`os.cpu_count()` does not see a container's limit, and 64 workers on two cores' worth of time are slower than
two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
WORKER_VARIABLES = {**dict.fromkeys(_THREADS, "1"), "PYTHONHASHSEED": "0"}
"""Environment variables of worker processes, where the user sets no others.

Workers share the cores already, so each has one thread for linear algebra. Texts have one hash in all of
them, so that a set of texts has one order, in each run.
"""


def use_one_thread() -> None:
    """Give libraries that are loaded from now on one thread, as in workers: last bits depend on it."""
    for name in _THREADS:
        os.environ.setdefault(name, WORKER_VARIABLES[name])


def usable_cores() -> int:
    """Return the number of whole cores that affinity and control groups (version 2) allow, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *_quotas()])))


def _quotas() -> Iterator[float]:
    """Yield each limit in cores; the groups above bind it too, and a container may see only those."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        group = Path(line.rpartition(":")[2].lstrip("/"))
        for folder in (group, *group.parents):
            match _read(Path("/sys/fs/cgroup", folder, "cpu.max")).split():
                case [quota, period] if quota != "max":
                    yield int(quota) / int(period)


def _read(path: Path) -> str:
    # Which of these files exist depends on kernel, container and platform; where none does, there is no
    # limit.
    try:
        return path.read_text().strip()
    except OSError:
        return ""
