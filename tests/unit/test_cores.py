"""How many workers are the default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollout_cli.cores import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_affinity_alone(tmp_path: Path) -> None:
    """Without control groups, the affinity counts."""
    assert usable_cores(proc=tmp_path / "none", mount=tmp_path) == 8


@pytest.mark.parametrize(
    ("limit", "cores"), [("300000 100000", 3), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 8)]
)
def test_version_2(tmp_path: Path, limit: str, cores: int) -> None:
    """A version 2 quota counts in whole cores, at least one; `max` is no limit."""
    proc = write(tmp_path / "cgroup", "0::/job/inner\n")
    write(tmp_path / "fs/job/inner/cpu.max", limit)
    assert usable_cores(proc=proc, mount=tmp_path / "fs") == cores


def test_the_group_above_binds_too(tmp_path: Path) -> None:
    """The lowest limit on the way to the root counts."""
    proc = write(tmp_path / "cgroup", "0::/job/inner\n")
    write(tmp_path / "fs/job/inner/cpu.max", "600000 100000")
    write(tmp_path / "fs/job/cpu.max", "200000 100000")
    assert usable_cores(proc=proc, mount=tmp_path / "fs") == 2


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("-1", 8)])
def test_version_1(tmp_path: Path, folder: str, quota: str, cores: int) -> None:
    """A version 1 quota counts under both names of the controller; -1 is no limit."""
    proc = write(tmp_path / "cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n")
    write(tmp_path / "fs" / folder / "job/cpu.cfs_quota_us", quota)
    write(tmp_path / "fs" / folder / "job/cpu.cfs_period_us", "100000")
    assert usable_cores(proc=proc, mount=tmp_path / "fs") == cores


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    """Where the path names a group outside of the container, the mounted root is the container's own."""
    proc = write(tmp_path / "cgroup", "0::/host/docker/abc\n")
    write(tmp_path / "fs/cpu.max", "200000 100000")
    assert usable_cores(proc=proc, mount=tmp_path / "fs") == 2
