"""verify: each episode's row agrees with its place, and each file of them with the numbers that it settles."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset import CutLimits
from rollout_cli.dataset.cuts import CutState
from rollout_cli.dataset.verification.verify import verify
from tests.support.chunks import episode
from tests.support.damage import EPISODES, INFO, STATS, set_footer, set_json, set_values
from tests.support.datasets import write_dataset
from tests.unit.dataset.broken_dataset import LIMITS, SECOND, SPEC, episodes_of, folder, found, pristine, problems

__all__ = ["folder", "pristine"]

EPISODE_BREAKS: list[tuple[str, str, Any, str]] = [
    ("episode_id", "episode_id", 9, "its id is not the next one"),
    ("number", "episode_number", 0, "not above the one before"),
    ("root seed", "root_seed", 5, "root_seed is not"),
    ("length", "length", 1, "data_row_index is not"),
    ("no length", "length", 0, "length is not in"),
    ("endless", "length", 2**60, "length is not in"),
    ("chunk", "data_chunk_index", 1, "data_chunk_index is not"),
    ("file", "data_file_index", 1, "data_file_index is not"),
    ("row", "data_row_index", 1, "data_row_index is not"),
]


@pytest.mark.parametrize(("name", "column", "value", "problem"), EPISODE_BREAKS, ids=[one[0] for one in EPISODE_BREAKS])
def test_episodes(folder: Path, name: str, column: str, value: Any, problem: str) -> None:
    """Each contradiction within an episode's row is found in that file, and names the episode."""
    set_values(folder / EPISODES, column, 2, [value])
    report = verify(folder)
    faults = [fault for fault in report.faults if problem in fault.problem]
    assert [EPISODES] == [fault.file for fault in faults]
    assert {2, 9} & {*faults[0].episodes}
    assert faults[0].row in (2, 3)


def test_an_ending_without_a_flag(folder: Path) -> None:
    """An episode of a dataset has ended somehow."""
    set_values(folder / EPISODES, "terminated", 3, [False])
    set_values(folder / EPISODES, "truncated", 3, [False])
    assert {3} == found(verify(folder), EPISODES)


@pytest.mark.parametrize("column", ["last_observation.x", "last_observation.text", "last_observation.image", "length"])
def test_missing_values(folder: Path, column: str) -> None:
    """Each episode has one more observation than steps, and all its facts: a column that may lack some is refused."""
    set_values(folder / EPISODES, column, 2, [None])
    assert f"{column} is " in problems(verify(folder))[EPISODES]


def test_rows_behind_the_first_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their episodes, and rows of the episodes file, are counted through the whole file."""
    monkeypatch.setattr("rollout_cli.dataset.episodes._GROUP_EPISODES", 2_000)
    episodes = [episode(n, 3, episode_info=lambda n, s: {"odd": [n]} if n % 2 else {}) for n in range(4000)]
    write_dataset(tmp_path / "out", episodes, limits=CutLimits(group_rows=6_000))
    row = pq.ParquetFile(tmp_path / "out" / EPISODES).metadata.row_group(0).num_rows
    set_values(tmp_path / "out" / EPISODES, "episode_info_extra", row, ["x"])
    report = verify(tmp_path / "out")
    assert ({row}, {row}) == (found(report, EPISODES), {fault.row for fault in report.faults if fault.file == EPISODES})


@pytest.mark.parametrize(
    ("settles", "problem"),
    [
        (None, "does not say"),
        ("[]", "does not say"),
        ('{"start": 0}', "does not say"),
        ('{"start": "0", "stop": 3, "skipped": []}', "in no known way"),
        ('{"start": 0, "stop": 3, "skipped": []}', "not in 0 to 2"),
        ('{"start": 0, "stop": 99, "skipped": []}', "are missing, and were not skipped"),
        ('{"start": 0, "stop": 99, "skipped": [200]}', "skips numbers outside"),
    ],
)
def test_settled_numbers(folder: Path, settles: str | None, problem: str) -> None:
    """An episodes file settles all numbers of its range, and no others."""
    set_footer(folder / EPISODES, "rollout.settles", settles)
    assert problem in " ".join(fault.problem for fault in verify(folder).faults if fault.file == EPISODES)


def test_files_settle_one_range_after_another(folder: Path) -> None:
    """The second file begins where the first one ends."""
    numbers = pq.read_table(folder / SECOND[1])["episode_number"].to_pylist()
    set_footer(
        folder / SECOND[1],
        "rollout.settles",
        json.dumps({"start": numbers[0] - 1, "stop": numbers[-1] + 1, "skipped": []}),
    )
    assert f"expected from {numbers[0]} on" in problems(verify(folder))[SECOND[1]]


@pytest.mark.parametrize(
    ("file", "rows", "problem"),
    [(0, 0, "says that it is open"), (-1, 1, "row groups do not end"), (-1, 10**6, "are open")],
)
def test_open_ends(folder: Path, file: int, rows: int, problem: str) -> None:
    """Only the last file may be one that more episodes join, and behind the end of a row group."""
    path = sorted((folder / "meta" / "episodes").rglob("*.parquet"))[file]
    set_footer(path, "rollout.open", json.dumps({"rows": rows, "cuts": asdict(CutState())}))
    assert problem in " ".join(map(str, verify(folder).faults))


def test_skipped_numbers_leave_gaps(tmp_path: Path) -> None:
    """A gap is legal where the footer says that the number was skipped, and only there."""
    kept = [number for number in range(30) if number not in (3, 8)]
    write_dataset(
        tmp_path / "out", [one for number in kept for one in episodes_of(range(number, number + 1))], spec=SPEC
    )
    path = tmp_path / "out" / EPISODES
    assert () == verify(tmp_path / "out").faults
    set_footer(path, "rollout.settles", json.dumps({"start": 0, "stop": 30, "skipped": []}))
    assert "2 episode numbers from 3 on are missing" in str(verify(tmp_path / "out").faults[0])
    set_footer(path, "rollout.settles", json.dumps({"start": 0, "stop": 30, "skipped": [3, 8, 9]}))
    assert {7} == found(verify(tmp_path / "out"), EPISODES), "the episode with number 9 has the place 7"


def test_many_faults_are_counted(folder: Path) -> None:
    """Of an endless list the first twenty are shown, with the number of all."""
    for file in (folder / "meta" / "episodes").rglob("*.parquet"):
        rows = np.arange(pq.read_table(file).num_rows)
        set_values(file, "root_seed", rows, [5] * len(rows))
    document = verify(folder).document()
    assert len(document["faults"]) <= 20
    assert document["n_faults"] >= len(document["faults"])
    assert 30 == sum(fault["n_episodes"] for fault in document["faults"] if "root_seed" in fault["problem"])


def test_lanes(tmp_path: Path) -> None:
    """Each lane is contiguous by itself; when the dataset is complete, all of them are together."""
    path = tmp_path / "out"
    write_dataset(path, episodes_of(), spec=SPEC, lanes=[at // 10 for at in range(30)], n_lanes=3, limits=LIMITS)
    assert () == verify(path).faults
    shutil.rmtree(path / "data/chunk-00001")
    shutil.rmtree(path / "meta/episodes/chunk-00001")
    assert "lane 1 has no episode" in " ".join(map(str, verify(path).faults))
    counted = verify(path)
    set_json(path / INFO, status="interrupted", episodes=counted.episodes, steps=counted.steps, shards=_shards(path))
    (path / STATS).unlink()
    assert () == verify(path).faults


def _shards(root: Path) -> int:
    return len(list((root / "data").rglob("*.parquet")))


def test_arrival_order(tmp_path: Path) -> None:
    """Numbers come as they ended; each of them once."""
    path = tmp_path / "out"
    order = [3, 1, 2, 0]
    header = {"collector": {"order": "arrival"}}
    write_dataset(path, [episodes_of(range(n, n + 1))[0] for n in order], spec=SPEC, header=header)
    assert () == verify(path).faults
    set_values(path / EPISODES, "episode_number", 2, [1])
    assert {2} == found(verify(path), EPISODES)
