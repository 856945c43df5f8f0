"""Statistics: streaming, merged, equal to those of the whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.dataset import CutLimits, load
from rollout_cli.dataset.columns import encode_tensor
from rollout_cli.dataset.stats import ColumnStats, TableStats
from rollout_cli.dataset.sums import BLOCK, sums_of
from rollout_cli.episode_batch import EnvSpec
from tests.support.chunks import episode
from tests.support.datasets import write_dataset

DTYPES = ["bool", "uint8", "int64", "float32", "float64"]


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


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.sampled_from(DTYPES), st.integers(0, 2**32))
@settings(deadline=None)
def test_statistics_are_those_of_all_finite_values(sizes: list[int], dtype: str, seed: int) -> None:
    """For any dtype, cut into blocks of any size, with constant and odd values in some of them."""
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 2 if dtype == "bool" else 100, (size, 3)).astype(dtype) for size in sizes]
    for part in parts:
        part[:, 1] = part[0, 1]
        if np.dtype(dtype).kind == "f":
            part[rng.random(part.shape) < 0.2] = rng.choice([math.nan, math.inf, -math.inf])
    stats = ColumnStats()
    for part in parts:
        stats.update(part)
    columns = [column[np.isfinite(column)].astype(np.float64) for column in np.concatenate(parts).T]
    document = stats.document()
    assert [len(column) for column in columns] == document["count"]
    for name in ("min", "max", "mean", "std"):
        expected = [float(getattr(column, name)()) if len(column) else math.nan for column in columns]
        actual = [math.nan if value is None else value for value in document[name]]
        assert pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True) == actual


def test_many_rows_are_taken_in_blocks() -> None:
    """Of numbers far from zero that differ little, where plain sums of squares would lose all digits."""
    values = np.random.default_rng(0).normal(1e8, 1e-3, (BLOCK + 10, 2))
    stats = ColumnStats()
    stats.update(values)
    document = stats.document()
    assert [len(values)] * 2 == document["count"]
    assert pytest.approx(values.mean(axis=0).tolist(), rel=1e-14) == document["mean"]
    assert pytest.approx(values.std(axis=0).tolist(), rel=1e-6) == document["std"]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (BLOCK,)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_rows_of_any_shape_are_counted_number_by_number(shape: tuple[int, ...], dtype: str) -> None:
    """However many rows are looked at together, and whatever is left over."""
    n_rows = 2 if len(shape) == 1 and shape[0] == BLOCK else 2111
    values = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 90, (n_rows, *shape)).astype(dtype)
    sums = sums_of(values)
    exact = values.astype(np.float64)
    assert (shape, n_rows) == (sums.low.shape, int(sums.count.max()))
    assert np.array_equal(exact.min(axis=0), sums.low)
    assert np.array_equal(exact.max(axis=0), sums.high)
    assert np.allclose(exact.mean(axis=0), sums.mean, rtol=1e-13)
    assert np.allclose(exact.var(axis=0) * n_rows, sums.squares, rtol=1e-11)


def test_more_row_groups_than_are_joined_at_a_time() -> None:
    """Each of numbers far from zero, which differ little."""
    values = np.random.default_rng(0).normal(1e8, 1e-3, (200, 50))
    stats = ColumnStats()
    for part in values:
        stats.update(part)
    document = stats.document()
    assert values.size == document["count"]
    assert pytest.approx(float(values.mean()), rel=1e-14) == document["mean"]
    assert pytest.approx(float(values.std()), rel=1e-6) == document["std"]


def test_tables_of_other_columns_are_counted_by_their_own_names() -> None:
    """What was seen of one table's columns says nothing of the next one's."""
    stats = TableStats()
    stats.update(pa.table({"x": pa.array([1.0, 3.0]), "name": pa.array(["a", "b"])}))
    stats.update(pa.table({"name": pa.array(["c"]), "y": pa.array([5])}))
    assert {"x": 2, "y": 1} == {name: column["count"] for name, column in stats.document().items()}


@pytest.mark.parametrize("flags", [[True], [False, False], [True, False, True, None, False, True]])
def test_flags_are_counted_as_numbers(flags: list[bool | None]) -> None:
    """0 and 1, without those that are missing."""
    stats = TableStats()
    stats.update(pa.table({"flag": pa.array(flags)}))
    values = np.array([flag for flag in flags if flag is not None], np.float64)
    document = stats.document()["flag"]
    assert (values.min(), values.max(), len(values)) == (document["min"], document["max"], document["count"])
    assert pytest.approx([values.mean(), values.std()]) == [document["mean"], document["std"]]


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
