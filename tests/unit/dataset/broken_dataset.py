"""A dataset of several files for tests to break, and what verify says of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

from rollout_cli.dataset import CutLimits
from rollout_cli.dataset.verification.report import VerifyReport
from rollout_cli.episode_batch import EnvSpec
from tests.support.chunks import episode
from tests.support.datasets import write_dataset

SPEC = EnvSpec(
    spaces.Dict(
        {"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "text": spaces.Text(6), "x": spaces.Box(-1, 1, (3,))}
    ),
    spaces.Discrete(3),
)
LIMITS = CutLimits(shard_bytes=30_000, min_shard_bytes=3_000, group_bytes=6_000, group_rows=30)
LENGTHS = [3 + (7 * number) % 20 for number in range(30)]
LENGTHS[4] = 70
SECOND = ("data/chunk-00000/file-00001.parquet", "meta/episodes/chunk-00000/file-00001.parquet")


def episodes_of(numbers: range = range(30)) -> list[Any]:
    return [
        episode(
            number,
            LENGTHS[number],
            spec=SPEC,
            env_info=lambda n, s: {"speed": s * 0.5, **({"odd": [n]} if s % 2 else {})},
            episode_info=lambda n, s: {"level": n},
        )
        for number in numbers
    ]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several files with long and short episodes, infos of all sorts, and next observations."""
    path = tmp_path_factory.mktemp("verify") / "out"
    summary = write_dataset(path, episodes_of(), spec=SPEC, limits=LIMITS, next_observation=True)
    assert summary.shards >= 3
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def problems(report: VerifyReport) -> dict[str, str]:
    """Return the first problem of each file."""
    out: dict[str, str] = {}
    for fault in report.faults:
        out.setdefault(fault.file, fault.problem)
    return out


def found(report: VerifyReport, file: str) -> set[int]:
    """Return the episodes that the faults of a file name."""
    return {number for fault in report.faults if fault.file == file for number in fault.episodes}


def first_rows(left: int) -> Callable[[pa.Table], pa.Table]:
    """Return what takes the first rows of row groups that come one after another."""

    def take(table: pa.Table) -> pa.Table:
        nonlocal left
        taken = table.slice(0, left)
        left -= taken.num_rows
        return taken

    return take
