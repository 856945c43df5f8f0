"""What is seen of columns: exact statistics, and histograms and shares of a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.reports import charts
from rollout_cli.reports.charts import Dimension, bins_of, dimensions, some_steps
from tests.helpers.chunks import episode
from tests.helpers.writing import write_dataset


def by_name(dataset: Dataset, *prefixes: str) -> dict[str, Dimension]:
    return {each.name: each for each in dimensions(dataset, some_steps(dataset), *prefixes)}


def test_numbers_of_a_vector(vectors: Dataset) -> None:
    """Each has its own row, whose figures are those of the values; a constant one says so."""
    seen = by_name(vectors, "observation")
    assert ["observation[0]", "observation[1]", "observation[2]"] == list(seen)
    values = vectors.to_episode_batch().observations
    for at, row in enumerate(seen.values()):
        ours = values[:, at].astype(float)
        expected = (ours.min(), ours.max(), ours.mean(), ours.std())
        assert expected == pytest.approx((row.low, row.high, row.mean, row.std))
        assert len(values) == sum(row.counts)
        assert (-10, 10) == row.space
    assert ["constant"] == seen["observation[2]"].remarks


def test_infos_and_texts(vectors: Dataset) -> None:
    """Steps without an info are counted; texts have no figures."""
    seen = by_name(vectors, "env_info.")
    n_steps = len(vectors.to_episode_batch().rewards)
    assert pytest.approx(1 - len(vectors) / n_steps) == seen["env_info.rare"].missing
    assert seen["env_info.<b>&name"].text == f"1 different, {n_steps} times 'x'"
    assert {0.0, 1.0} == {seen["env_info.far"].low, seen["env_info.far"].high}


def test_an_image_is_one(pictures: Dataset) -> None:
    (row,) = by_name(pictures, "observation").values()
    assert ("observation", (0, 255), 250) == (row.name, row.space, row.high)
    assert 0 == row.missing


def test_a_sample_of_numbers_has_all_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one number in three is looked at: the third ones of an image are of one colour."""
    spec = EnvSpec(spaces.Box(0, 255, (8, 6, 3), np.uint8), spaces.Discrete(3))
    chunk = episode(0, 30, spec=spec)
    chunk.observations[0][:] = 10, 11, 12
    write_dataset(tmp_path, [chunk], spec=spec)
    monkeypatch.setattr(charts, "_MOST_VALUES", 30 * 8 * 6)
    (row,) = by_name(load(tmp_path), "observation").values()
    assert (9.5, 10.5, 11.5, 12.5) == row.edges
    assert 30 * 8 * 6 == sum(row.counts)
    assert min(row.counts) > 400


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([0, 1, 1, 3], [-0.5, 0.5, 1.5, 2.5, 3.5]),
        ([5], [4.5, 5.5]),
        ([0, 9, 4], [-0.5, 2.5, 5.5, 8.5, 11.5]),
        ([0.5, 2.5], [0.5, 1.0, 1.5, 2.0, 2.5]),
        ([0.1, np.nextafter(0.1, 1)], [0.1, np.nextafter(0.1, 1)]),
        ([0.5], [0.5, np.nextafter(0.5, 1)]),
        ([-1.5e308, 0.5, 1.5e308], [-1.5e308, 1.5e308]),
        ([2.0**53, 2.0**53 + 8], [2.0**53 + edge for edge in (0, 2, 4, 6, 8)]),
        ([1e17, 1e17], [1e17, np.nextafter(1e17, 2e17)]),
        ([0, 1e38, 4e38], [0, 1e38, 2e38, 3e38, 4e38]),
    ],
)
def test_bins(values: list[float], edges: list[float]) -> None:
    """A few whole numbers have a bin each, but where all floats are whole; each value is in a bin."""
    found = bins_of(np.array(values, float), 4)
    assert edges == found.tolist()
    assert len(values) == np.histogram(values, found)[0].sum()


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 1, 1, 3], ["0", "1", "2", "3"]),
        ([0, 9, 4], ["0 to 2", "3 to 5", "6 to 8", "9 to 11"]),
        ([0.5, 4.5], ["0.5 to 1.5", "1.5 to 2.5", "2.5 to 3.5", "3.5 to 4.5"]),
        ([0.1, 0.5], ["0.1 to 0.2", "0.2 to 0.3", "0.3 to 0.4", "0.4 to 0.5"]),
        (
            [11000.5, 11004.5, 11001],
            ["11000.5 to 11001.5", "11001.5 to 11002.5", "11002.5 to 11003.5", "11003.5 to 11004.5"],
        ),
        ([0.1, np.nextafter(0.1, 1)], ["0.10000000000000001 to 0.10000000000000002"]),
    ],
)
def test_the_names_of_bins(values: list[float], labels: list[str]) -> None:
    """No two are equal, since matplotlib draws bars of one name in one place; halves are no whole numbers."""
    assert labels == charts.bin_labels(bins_of(np.array(values, float), 4))


@pytest.mark.parametrize(("most", "n_runs"), [(10, 3), (30, 16), (4, 16), (7, 7), (1, 1)])
def test_a_sample(vectors: Dataset, most: int, n_runs: int) -> None:
    """It has runs of steps, from the first step to the last one; none comes twice."""
    whole = vectors.rows.steps(("episode_id", "step")).to_pylist()
    sample = vectors.rows.some_steps(most, ("episode_id", "step"), n_runs=n_runs).to_pylist()
    places = [whole.index(row) for row in sample]
    assert sorted(set(places)) == places
    assert min(most, n_runs) * (most // min(most, n_runs)) == len(places)
    assert places[0] == 0
    assert most == 1 or places[-1] == len(whole) - 1


def test_a_sample_of_few_steps_is_all(vectors: Dataset) -> None:
    assert vectors.rows.steps().equals(vectors.rows.some_steps(10**6))


def test_figures_of_a_sample_are_those_of_all(vectors: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_name(vectors, "observation")["observation[1]"]
    monkeypatch.setattr(charts, "_MOST_STEPS", 20)
    found = by_name(vectors, "observation")["observation[1]"]
    assert (expected.mean, expected.std) == (found.mean, found.std)
    assert sum(found.counts) < sum(expected.counts)


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    found: dict[str, Any] = charts._observed(np.array([np.nan, 1.0, np.inf, 2.0, 2.0]), 0.0, 2.0)
    assert 3 == sum(found["counts"])
    assert 0.4 == pytest.approx(found["not_finite"])
    assert 2 / 3 == pytest.approx(found["at_bound"])
    assert {"not_finite": 1.0} == charts._observed(np.array([np.nan]), 0.0, 2.0)
