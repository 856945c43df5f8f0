"""How many cores this process may use: the default number of workers.

A container's limit is not seen by `os.cpu_count()`, and 64 workers on two cores' worth of time are slower than two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(*, proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of whole cores that affinity and control groups (version 1 or 2) leave, at least 1."""
    quotas = [quota for quota in _quotas(proc, mount) if quota > 0]
    return max(1, int(min([_affinity(), *quotas])))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(proc: Path, mount: Path) -> Iterator[float]:
    """Yield each limit in cores; a group is bound by those above it, and a container may see only the upper ones."""
    for controllers, path in _groups(proc):
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            if controllers == [""]:
                yield from _quota_v2(mount / folder)
            elif "cpu" in controllers:
                yield from _quota_v1(mount / "cpu" / folder)
                yield from _quota_v1(mount / "cpu,cpuacct" / folder)


def _groups(proc: Path) -> Iterator[tuple[list[str], str]]:
    for line in _read(proc).splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        yield controllers.split(","), path


def _quota_v2(folder: Path) -> Iterator[float]:
    match _read(folder / "cpu.max").split():
        case [quota, period] if quota != "max":
            yield int(quota) / int(period)


def _quota_v1(folder: Path) -> Iterator[float]:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    # Which of these files exist depends on kernel, container and platform; where none does, there is no limit.
    try:
        return path.read_text().strip()
    except OSError:
        return ""
