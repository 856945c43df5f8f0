"""verify: steps that contradict each other or their episode are found, and their episodes named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset.verification.verify import verify
from tests.support import damage
from tests.support.chunks import in_parts
from tests.support.damage import DATA, EPISODES, INFO, STATS, set_bytes, set_json, set_values
from tests.support.datasets import write_dataset
from tests.unit.dataset.broken_dataset import (
    LENGTHS,
    LIMITS,
    SPEC,
    episodes_of,
    first_rows,
    folder,
    found,
    pristine,
    problems,
)

__all__ = ["folder", "pristine"]


def row_of(number: int, step: int = 0) -> int:
    """Return the row, in the first data file, of a step of an episode."""
    return sum(LENGTHS[:number]) + step


STEP_BREAKS: list[tuple[str, Callable[[Path], None], str, set[int]]] = [
    ("episode_id", lambda path: set_values(path, "episode_id", row_of(1, 2), [7]), "another episode_id", {1}),
    ("step", lambda path: set_values(path, "step", [row_of(1, 2), row_of(2, 0)], [5, 1]), "not numbered", {1, 2}),
    ("step in a split episode", lambda path: set_values(path, "step", row_of(4, 69), [5]), "not numbered", {4}),
    ("flag in the middle", lambda path: set_values(path, "terminated", row_of(2, 3), [True]), "terminated is not", {2}),
    ("flag missing", lambda path: set_values(path, "truncated", row_of(3) - 1, [False]), "truncated is not", {2}),
    ("step type", lambda path: set_values(path, "step_type", row_of(3), [1]), "step types", {3}),
    ("step type at a split", lambda path: set_values(path, "step_type", row_of(4, 24), [0]), "step types", {4}),
    ("reward", lambda path: set_values(path, "reward", row_of(0, 1), [1e-9]), "sum to its return", {0}),
    ("reward of a split one", lambda path: set_values(path, "reward", row_of(4, 5), [1.0]), "sum to its return", {4}),
    (
        "next observation",
        lambda path: set_values(path, "next_observation.x", row_of(1, 1), [[0.0, 0.5, 0.0]]),
        "not what was observed next",
        {1},
    ),
    (
        "next observation at an end",
        lambda path: set_values(path, "next_observation.text", row_of(2) - 1, ["other"]),
        "not what was observed next",
        {1},
    ),
    (
        "next observation across row groups",
        lambda path: set_values(path, "observation.image", row_of(4, 23), [b"\1" * 48]),
        "not what was observed next",
        {4},
    ),
    (
        "no reward",
        lambda path: set_values(path, "reward", row_of(1), [None]),
        "reward is double, expected double not null",
        set(),
    ),
    ("no number", lambda path: set_values(path, "observation.x", row_of(2), [[1, None, 0]]), "x is fixed", set()),
    (
        "no action",
        lambda path: set_values(path, "action", row_of(3), [None]),
        "action is int64, expected int64 not null",
        set(),
    ),
    ("no text", lambda path: set_bytes(path, "observation.text", row_of(2), b"\xff"), "no UTF-8 text", {2}),
    ("no JSON", lambda path: set_values(path, "env_info_extra", row_of(2), ["{"]), "no JSON object", {2}),
    ("another JSON", lambda path: set_values(path, "env_info_extra", row_of(2), ["[]"]), "no JSON object", {2}),
    ("deep JSON", lambda path: set_values(path, "env_info_extra", row_of(2), ["[" * 10**5]), "no JSON object", {2}),
]


@pytest.mark.parametrize(("name", "harm", "problem", "episodes"), STEP_BREAKS, ids=[one[0] for one in STEP_BREAKS])
def test_steps(folder: Path, name: str, harm: Callable[[Path], None], problem: str, episodes: set[int]) -> None:
    """Each contradiction within the steps is found in its episodes."""
    harm(folder / DATA)
    report = verify(folder)
    assert problem in " ".join(str(fault) for fault in report.faults)
    assert episodes == found(report, DATA)
    assert {DATA, INFO, STATS} >= problems(report).keys()


@pytest.mark.parametrize("column", ["return", "terminated", "truncated"])
def test_facts_that_the_steps_contradict(folder: Path, column: str) -> None:
    """They are told of the data file: its steps are not those of the episode."""
    old = pq.read_table(folder / EPISODES)[column][2].as_py()
    set_values(folder / EPISODES, column, 2, [0.25 if column == "return" else not old])
    assert {2} == found(verify(folder), DATA)


def _bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.parquet"))


def test_missing_rows(folder: Path) -> None:
    """The episodes whose rows a data file lacks are named."""
    rows = pq.ParquetFile(folder / DATA).metadata.num_rows
    damage.rewrite(folder / DATA, first_rows(rows - 2))
    last = pq.read_table(folder / EPISODES)["episode_id"].to_pylist()[-1]
    report = verify(folder)
    assert f"has {rows - 2} rows, and its episodes file states {rows}" in problems(report)[DATA]
    assert {last} == found(report, DATA)


def test_row_groups_over_the_limit(folder: Path) -> None:
    """What info.json says of their size holds."""
    pq.write_table(pq.ParquetFile(folder / DATA).read(), folder / DATA)
    assert "expected 1 to 30" in problems(verify(folder))[DATA]


def test_quick_looks_at_no_step(folder: Path) -> None:
    """It finds what episodes files and footers tell, and no more."""
    set_values(folder / DATA, "reward", 0, [3.0])
    set_json(folder / INFO, bytes=_bytes(folder))
    assert () == verify(folder, quick=True).faults
    assert () != verify(folder).faults
    set_values(folder / EPISODES, "length", 0, [1])
    assert () != verify(folder, quick=True).faults


def test_an_episode_in_parts(tmp_path: Path) -> None:
    """Its return is that of all its row groups together."""
    parts = [part for one in episodes_of(range(4, 6)) for part in in_parts(one, [2, one.n_steps])]
    write_dataset(tmp_path / "out", parts, spec=SPEC, limits=LIMITS, next_observation=True)
    assert () == verify(tmp_path / "out").faults
