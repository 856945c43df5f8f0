"""Statistics against numpy's, however rows are cut; and values that a reader should know of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollout_cli.dataset.convert import object_array
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.stats import (
    TableStats,
    column_stats,
    merged,
    stats_document,
    stats_from_json,
    stats_to_json,
)
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.plain import plain_json
from rollout_cli.episodes.spaces import SpaceRows
from tests.helpers.chunks import BOX_SPEC, episode
from tests.helpers.datasets import stats_of
from tests.helpers.writing import RICH_SPEC, SMALL, resume_dataset, rich_episodes, write_dataset

Array = npt.NDArray[Any]


def expected_stats(values: Array) -> dict[str, Any]:
    """Return the statistics of (n, k) by numpy, of the finite numbers alone."""
    columns = [column[np.isfinite(column)].astype(np.float64) for column in values.T]
    return {
        "count": [len(column) for column in columns],
        "min": [float(column.min()) if len(column) else "nan" for column in columns],
        "max": [float(column.max()) if len(column) else "nan" for column in columns],
        "mean": [float(column.mean()) if len(column) else "nan" for column in columns],
        "std": [float(column.std()) if len(column) else "nan" for column in columns],
    }


def document_of(stats: TableStats) -> dict[str, Any]:
    document = plain_json(stats_document(stats, DatasetSchema.of(SpaceSchema.of(BOX_SPEC), {}, {})))
    return dict(document["observation"])


def assert_close(expected: dict[str, Any], found: dict[str, Any], scale: float = 1.0) -> None:
    assert expected["count"] == found["count"]
    for name in ("min", "max"):
        assert expected[name] == found[name]
    for name in ("mean", "std"):
        for one, other in zip(expected[name], found[name], strict=True):
            assert (one == "nan") == (other == "nan")
            assert one == "nan" or math.isclose(one, other, rel_tol=1e-7, abs_tol=1e-7 * scale)


@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=None,
    ),
    st.lists(st.integers(0, 12), max_size=3),
)
def test_statistics_are_numpys_however_rows_are_cut(values: Array, cuts: list[int]) -> None:
    with np.errstate(all="ignore"):
        if values.dtype.kind == "f":
            values = np.where(np.abs(values) < 1e9, values, values.dtype.type(np.nan))
        elif values.dtype == np.int64:
            values %= 10**6
    parts = [part for part in np.split(values, sorted(min(cut, len(values)) for cut in cuts)) if len(part)]
    found = {"observation": merged([column_stats(part) for part in parts])}
    scale = float(np.nanmax(np.abs(values), initial=1.0))
    assert_close(expected_stats(values), document_of(found), scale)
    again = stats_from_json(plain_json(stats_to_json(found)))
    np.testing.assert_array_equal(found["observation"], again["observation"])


def test_numbers_far_from_zero_and_near_one_another_keep_their_spread() -> None:
    values = (1e9 + np.random.default_rng(0).standard_normal(300_000)).reshape(-1, 1)
    found = merged([column_stats(part) for part in np.array_split(values, 7)])
    assert math.isclose(values.std(), document_of({"observation": found})["std"][0], rel_tol=1e-6)


def test_a_deviation_that_no_float_can_say_is_not_0() -> None:
    """Also beside numbers that are not counted, which are at no distance from the mean."""
    sums = np.tile([1e308, -1e308], 16)  # Of numpy's partial sums some are inf, and others -inf.
    for values in (sums, np.append(sums, math.nan)):
        found = document_of({"observation": column_stats(values.reshape(-1, 1))})
        assert ["nan"] == found["std"]


def test_the_rows_are_not_changed() -> None:
    values = np.arange(10.0)
    column_stats(values)
    assert list(range(10)) == values.tolist()


def test_the_statistics_of_a_dataset_are_those_of_its_rows(tmp_path: Path) -> None:
    """Of segments, flushes and a resume together; null infos are not counted, and images are sampled."""
    write_dataset(tmp_path, rich_episodes()[:100], spec=RICH_SPEC, limits=SMALL)
    resume_dataset(tmp_path, rich_episodes(), spec=RICH_SPEC, limits=SMALL, flush=True)
    found, whole = stats_of(tmp_path), concatenate(rich_episodes())
    assert_close(expected_stats(whole.rewards.reshape(-1, 1)), {k: [v] for k, v in found["reward"].items()})
    frames = whole.observations[1].reshape(len(whole.rewards), -1)
    flat = {k: np.ravel(v).tolist() for k, v in found["observation.frames"].items()}
    assert_close(expected_stats(frames), flat)
    assert int(whole.terminated.sum()) == round(found["terminated"]["mean"] * whole.n_steps)
    assert found["env_info.grid"]["count"][0][0] == sum(-(-one.n_steps // 5) for one in rich_episodes())
    assert "1 row in 100" == found["observation.camera"]["sampled"]
    assert 108 <= found["observation.camera"]["count"]
    assert "sampled" not in found["reward"]
    assert not {"episode_id", "step", "observation.mission", "env_info.text"} & found.keys()


# Anomalies.


def collected(path: Path, chunks: list[Chunk], **options: Any) -> list[tuple[str, str, int, int]]:
    summary = write_dataset(path, chunks, **options)
    info = json.loads((path / "meta/info.json").read_text())
    assert [one._asdict() for one in summary.anomalies] == info["anomalies"]
    return [(one.column, one.problem, one.episode, one.step) for one in summary.anomalies]


def test_a_clean_dataset_has_none(tmp_path: Path) -> None:
    assert [] == collected(tmp_path, list(rich_episodes()), spec=RICH_SPEC)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_number_that_is_not_finite_is_reported(tmp_path: Path, value: float) -> None:
    chunks = [episode(n, 30) for n in range(60)]
    for number, step in ((58, 2), (41, 7)):
        chunks[number].observations[0][step, 2] = value
        chunks[number].rewards[step + 1] = value
    chunks[43].last_observations[0][0, 2] = value
    expected = [
        ("last_observation", "not_finite", 43, 30),
        ("observation", "not_finite", 41, 7),
        ("reward", "not_finite", 41, 8),
    ]
    assert expected == collected(tmp_path / "whole", chunks, limits=SMALL)
    assert expected == collected(tmp_path / "flushed", chunks, limits=SMALL, flush=True)
    write_dataset(tmp_path / "resumed", chunks[:50], limits=SMALL)
    resume_dataset(tmp_path / "resumed", chunks, limits=SMALL)
    info = json.loads((tmp_path / "resumed/meta/info.json").read_text())
    assert expected == [(a["column"], a["problem"], a["episode"], a["step"]) for a in info["anomalies"]]
    assert stats_of(tmp_path / "whole") == stats_of(tmp_path / "resumed")


def test_a_value_outside_of_its_space_is_reported(tmp_path: Path) -> None:
    chunk = concatenate([episode(n, 10) for n in range(5)])
    chunk.observations[0][33] = [-7, 0, 0, 5]
    chunk.actions[0][12] = 2
    summary = write_dataset(tmp_path, [chunk])
    assert [
        "action holds values outside of its space, first in episode 1 at step 2",
        "observation holds values outside of its space, first in episode 3 at step 3",
    ] == list(map(str, summary.anomalies))


def test_an_anomaly_of_a_long_episode_has_its_true_step(tmp_path: Path) -> None:
    chunk = episode(0, 900)
    chunk.observations[0][777, 1] = np.nan
    assert [("observation", "not_finite", 0, 777)] == collected(tmp_path, [chunk], limits=SMALL)


def test_integers_at_the_edge_of_their_type_are_not_outside(tmp_path: Path) -> None:
    """Statistics are float64, in which 2**63 - 1 is 2**63."""
    top = np.iinfo(np.int64).max
    spec = EnvSpec(spaces.Box(-top, top, (2,), np.int64), BOX_SPEC.action_space)
    chunk = episode(0, 5, spec=spec)
    chunk.observations[0][:] = top
    assert [] == collected(tmp_path, [chunk], spec=spec)


PIXELS = np.full((40, 40), 99, np.uint8)
OUTSIDE: dict[str, tuple[spaces.Space[Any], Any, str]] = {
    "box": (spaces.Box(-1, 1, (2,), np.float32), np.array([0, 5], np.float32), ""),
    "0-d box": (spaces.Box(-1, 1, (), np.float32), np.float32(5), ""),
    "integers": (spaces.Box(-3, 3, (2,), np.int64), np.array([0, 7]), ""),
    "an image": (spaces.Box(0, 90, (40, 40), np.uint8), PIXELS, ""),
    "an image of floats": (spaces.Box(0, 1, (40, 40), np.float32), PIXELS.astype(np.float32), ""),
    "discrete": (spaces.Discrete(3), 3, ""),
    "discrete from -1": (spaces.Discrete(3, start=-1), 2, ""),
    "multi-discrete": (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), ""),
    "multi-binary": (spaces.MultiBinary(3), np.array([0, 1, 2], np.int8), ""),
    "a long text": (spaces.Text(5), "abcdef", ""),
    "a short text": (spaces.Text(5, min_length=3), "ab", ""),
    "other characters": (spaces.Text(5, charset="ab"), "abc", ""),
    "in a dict": (spaces.Dict(x=spaces.Text(5)), {"x": "abcdef"}, ".x"),
    "in a tuple": (spaces.Tuple([spaces.Dict(x=spaces.Text(5))]), ({"x": "abcdef"},), ".0.x"),
}
"""By name, a space, a value that is outside of it, and the rest of the column's name."""


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_value_outside_of_any_kind_of_space_is_reported(name: str, tmp_path: Path) -> None:
    """Also where the statistics count one row of 100, and of texts, which have none."""
    space, value, path = OUTSIDE[name]
    spec = EnvSpec(space, BOX_SPEC.action_space)
    chunk = episode(0, 250, spec=spec)
    chunk.observations[0][103] = SpaceRows(space).columns(value)[0]
    assert [(f"observation{path}", "outside", 0, 103)] == collected(tmp_path, [chunk], spec=spec)


def test_a_text_of_a_custom_space_is_not_outside(tmp_path: Path) -> None:
    """Only the class of the space knows, and a reader of the dataset need not have it."""
    words: Any = type("Words", (spaces.Space,), {"contains": lambda self, text: False})((), np.str_)
    spec = EnvSpec(words, BOX_SPEC.action_space)
    chunk = replace(episode(0, 5, spec=BOX_SPEC), observations=(object_array(["ä"] * 5),))
    chunk = replace(chunk, last_observations=(object_array(["ä"]),))
    assert [] == collected(tmp_path, [chunk], spec=spec)


def test_sampled_columns_are_searched(tmp_path: Path) -> None:
    """A row that the statistics do not count may be the only one that is not finite."""
    spec = EnvSpec(spaces.Box(-1, 1, (40, 40), np.float32), BOX_SPEC.action_space)
    chunk = episode(0, 250, spec=spec)
    chunk.observations[0][3] = np.nan
    found = collected(tmp_path, [chunk], spec=spec, limits=SizeLimits())
    assert [("observation", "not_finite", 0, 3)] == found
    assert 3 * 1600 == stats_of(tmp_path)["observation"]["count"]
