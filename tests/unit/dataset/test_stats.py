"""Statistics: streaming, merged, equal to those of the whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

from rollout_cli.dataset import CutLimits, load
from rollout_cli.dataset.columns import encode_tensor
from rollout_cli.dataset.stats import ColumnStats, TableStats
from rollout_cli.episode_batch import EnvSpec
from tests.support.chunks import episode
from tests.support.datasets import write_dataset


def test_blocks_give_what_the_whole_gives() -> None:
    """Each number of a row apart."""
    values = np.random.default_rng(0).normal(1e3, 1e-2, (1000, 3))
    stats = ColumnStats()
    for part in np.split(values, [1, 10, 500]):
        stats.update(part)
    document = stats.document()
    assert values.min(axis=0).tolist() == document["min"]
    assert values.max(axis=0).tolist() == document["max"]
    assert pytest.approx(values.mean(axis=0).tolist(), rel=1e-12) == document["mean"]
    assert pytest.approx(values.std(axis=0).tolist(), rel=1e-6) == document["std"]
    assert [1000] * 3 == document["count"]


def test_values_that_are_not_finite_are_not_counted() -> None:
    """And a column without any other has no statistics."""
    stats = ColumnStats()
    stats.update(np.array([[1.0, math.nan], [math.inf, math.nan], [3.0, math.nan]]))
    expected = {"min": [1.0, None], "max": [3.0, None], "mean": [2.0, None], "std": [1.0, None], "count": [2, 0]}
    assert expected == stats.document()


def test_nulls_are_not_counted() -> None:
    """An info that some steps lack."""
    table = pa.table({"x": encode_tensor(np.array([1.0, 5.0, 3.0]), np.array([False, True, False]))})
    stats = TableStats()
    stats.update(table)
    assert {"min": 1.0, "max": 3.0, "mean": 2.0, "std": 1.0, "count": 2} == stats.document()["x"]


def test_one_image_in_a_hundred_is_counted_across_row_groups(tmp_path: Path) -> None:
    """Rows 0, 100, 200, …; the document says so."""
    spec = EnvSpec(spaces.Box(0, 255, (3, 4), np.uint8), spaces.Discrete(3))
    episodes = [episode(number, 50, spec=spec) for number in range(7)]
    write_dataset(tmp_path / "out", episodes, spec=spec, limits=CutLimits(group_rows=70))
    document = json.loads((tmp_path / "out" / "meta" / "stats.json").read_text())
    batch = load(tmp_path / "out").to_episode_batch()
    sample = batch.observations[::100]
    stats = document["observation"]
    assert ("1 row in 100", 4 * 12) == (stats["sampled"], stats["count"])
    assert (int(sample.min()), int(sample.max())) == (stats["min"], stats["max"])
    assert pytest.approx(float(sample.mean())) == stats["mean"]
    assert pytest.approx(float(batch.actions.mean())) == document["action"]["mean"]
    assert 350 == document["reward"]["count"]
