"""verify: columns, footers, info.json and statistics say what the dataset is; a file that does not is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset.verification.verify import verify
from rollout_cli.errors import DatasetFormatError
from tests.support.damage import DATA, EPISODES, INFO, STATS, set_footer, set_json
from tests.unit.dataset.broken_dataset import folder, pristine, problems

__all__ = ["folder", "pristine"]


@pytest.mark.parametrize("file", [DATA, EPISODES])
@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda table: table.drop_columns([table.column_names[-1]]), "no such column"),
        (lambda table: table.append_column("more", pa.nulls(table.num_rows, pa.int8())), "more is int8"),
        (lambda table: table.set_column(0, "episode_id", table["episode_id"].cast(pa.int32())), "episode_id is int32"),
        (lambda table: table.select([*table.column_names[::-1]]), "order"),
    ],
)
def test_columns(folder: Path, file: str, harm: Callable[[pa.Table], pa.Table], problem: str) -> None:
    """Names, types and order are those of the dataset, in every file."""
    path = folder / file
    table = harm(pq.ParquetFile(path).read())
    pq.write_table(table, path)
    assert problem in problems(verify(folder))[file]


@pytest.mark.parametrize("file", [DATA, EPISODES])
@pytest.mark.parametrize(
    "key", ["rollout.format_version", "rollout.spaces", "rollout.max_episode_length", "rollout.env", "huggingface"]
)
@pytest.mark.parametrize("value", [None, "17"])
def test_footers(folder: Path, file: str, key: str, value: str | None) -> None:
    """Each key of a footer is there and says what the dataset says."""
    set_footer(folder / file, key, value)
    assert key in problems(verify(folder))[file]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"episodes": 29}, "says 29 episodes"),
        ({"steps": 3}, "says 3 steps"),
        ({"bytes": 3}, "says 3 bytes"),
        ({"shards": 9}, "says 9 shards"),
        ({"episodes": "30"}, "expected a whole number"),
        ({"status": "done"}, "status is 'done'"),
        ({"window": "closed?"}, "window"),
        ({"lanes": 0}, "lanes is 0"),
        ({"root_seed": -1}, "root_seed is -1"),
        ({"next_observation": False}, "features are not"),
        ({"features": {}}, "features are not"),
        ({"features": {"a": 1}}, "features"),
        ({"features": None}, "has no features"),
        ({"spaces": {"observation": {}, "action": {}}}, "space"),
        ({"spaces": []}, "has no spaces"),
    ],
)
def test_info(folder: Path, values: dict[str, Any], problem: str) -> None:
    """Totals are those of the files, and everything else in info.json has its type and agrees with the rest."""
    set_json(folder / INFO, **values)
    assert problem in problems(verify(folder))[INFO]


@pytest.mark.parametrize("text", ["{", "[" * 10**5, '{"format": "rollout", "a": ' + "[" * 500 + "]" * 500 + "}"])
def test_an_info_that_is_no_json(folder: Path, text: str) -> None:
    """The dataset is damaged: that is a fault of info.json, whatever depth it has."""
    (folder / INFO).write_text(text)
    assert "not valid JSON" in problems(verify(folder))[INFO]


def test_no_dataset(tmp_path: Path) -> None:
    """A folder without info.json is none, and one of another format neither."""
    with pytest.raises(DatasetFormatError, match=r"no meta/info\.json"):
        verify(tmp_path)
    (tmp_path / "meta").mkdir()
    (tmp_path / INFO).write_text("{}")
    with pytest.raises(DatasetFormatError, match="does not describe"):
        verify(tmp_path)


def test_stats(folder: Path) -> None:
    """They are those of the steps; a run that goes on has none yet, or old ones."""
    stats = json.loads((folder / STATS).read_text())
    stats["reward"]["max"] += 1e-3
    (folder / STATS).write_text(json.dumps(stats))
    assert {STATS: "it is not that of the steps in reward"} == problems(verify(folder))
    set_json(folder / INFO, status="interrupted")
    report = verify(folder)
    assert () == report.faults
    assert "not that of the steps" in report.notes[0]
    (folder / STATS).unlink()
    assert ((), ()) == (verify(folder).faults, verify(folder).notes)
    set_json(folder / INFO, status="complete")
    assert {STATS: "it is missing"} == problems(verify(folder))
