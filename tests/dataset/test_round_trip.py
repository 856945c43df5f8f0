"""Any spaces and infos, any episodes, cut in any way: what is read is what was written, and it verifies."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_cli.dataset.reader import load
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from tests.helpers.batches import assert_same_batches, assert_same_info_values, assert_same_steps
from tests.helpers.chunks import episode, grouped
from tests.helpers.strategies import info_dicts
from tests.helpers.writing import write_dataset

DTYPES: list[Any] = [
    *(np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.bool_),
]
SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)
SMALL = SizeLimits(segment_bytes=4000, group_rows=12)
KEYS = st.text("ab.", min_size=1, max_size=3)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    dtype = draw(st.sampled_from(DTYPES))
    return spaces.Box(0, 1 if dtype == np.bool_ else 100, draw(SHAPES), dtype)


LEAVES: st.SearchStrategy[gymnasium.Space[Any]] = st.one_of(
    boxes(),
    st.builds(spaces.Discrete, st.integers(1, 5), start=st.integers(-3, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.sampled_from(
        [spaces.MultiBinary(3), spaces.MultiBinary((2, 2)), spaces.MultiDiscrete(np.array([[2, 3]]))]
    ),
    st.builds(spaces.Text, st.integers(1, 5), charset=st.just("aä😀")),
    st.builds(
        spaces.Sequence,
        boxes().filter(lambda box: 0 not in box.shape) | st.just(spaces.Discrete(3, start=-1)),
        stack=st.booleans(),
    ),
)
SPACES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.dictionaries(KEYS, children, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(children, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_space_comes_back_with_its_values_types_and_structure(data: st.DataObject) -> None:
    """Observations, actions and last observations; of episodes and groups of them."""
    spec = EnvSpec(data.draw(SPACES), data.draw(SPACES), data.draw(st.none() | st.integers(1, 99)))
    lengths = data.draw(LENGTHS)
    episodes = [episode(number, length, spec=spec) for number, length in enumerate(lengths)]
    chunks = grouped(episodes, data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        write_dataset(path, chunks, spec=spec, limits=SMALL, next_observation=data.draw(st.booleans()))
        dataset = load(path)
        assert spec == dataset.env_spec
        assert_same_batches(EpisodeBatch.from_chunks(spec, episodes), dataset.to_episode_batch())
        assert [] == verify_dataset(path).faults


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(info_dicts().filter(bool), min_size=1, max_size=5), st.integers(0, 5))
def test_every_info_comes_back_with_its_value(rows: list[list[dict[str, Any]]], cut: int) -> None:
    """Whatever its key and type, sparse or not; whole, and in two slices."""
    chunks = [
        episode(number, len(infos), env_info=lambda n, s: rows[n][s], episode_info=lambda n, s: rows[n][-1])
        for number, infos in enumerate(rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        write_dataset(path, chunks, limits=SMALL)
        dataset = load(path)
        for start, stop in ((0, len(rows)), (0, cut), (cut, len(rows))):
            if chunks[start:stop]:
                expected = EpisodeBatch.from_chunks(dataset.env_spec, chunks[start:stop])
                assert_same_steps(expected, dataset[start:stop].to_episode_batch())
                assert_same_info_values(expected, dataset[start:stop].to_episode_batch())
        assert [] == verify_dataset(path).faults


ODD_INFOS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.sampled_from([float("nan"), float("inf"), -float("inf"), "nan", "-inf", "NaN", 10**40]),
        "a.b": st.integers(0, 3),
        "t": st.sampled_from(
            ["ä", "bad\udc80", "", {"key": ["ä", None]}, [], np.array([1.5, np.nan], np.float32)]
        ),
    },
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(info_dicts().filter(bool), ODD_INFOS), min_size=1, max_size=5), st.booleans())
def test_the_nominal_sizes_of_episodes_follow_from_what_is_stored(
    rows: list[tuple[list[dict[str, Any]], dict[str, Any]]], has_columns: bool
) -> None:
    """So shards are cut where the single run is, whether their infos have columns or are JSON."""
    chunks = [
        episode(
            number,
            len(infos),
            env_info=lambda n, s: {**rows[n][0][s], **rows[n][1]},
            episode_info=lambda n, _: rows[n][1],
        )
        for number, (infos, _) in enumerate(rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        write_dataset(path, chunks, columns=None if has_columns else {}, header={"run": "0" * 32})
        blocks = load(path).rows.blocks()
        stored = [size for block in blocks for size in block.chunk().variable_bytes.tolist()]
    assert [size for chunk in chunks for size in chunk.variable_bytes.tolist()] == stored


def test_infos_come_back_as_they_are_typed(tmp_path: Path) -> None:
    """Plain where every step has a value, masked where some lack it, objects for texts and JSON."""
    episodes = [
        episode(
            number,
            5,
            env_info=lambda n, s: (
                {"every": n * s, "some": np.float32(s)} if s % 2 else {"every": 0, "json": [n]}
            ),
            agent_info=lambda n, s: {"mean": np.array([n, s], np.float32), "name": f"{n}"},
            episode_info=lambda n, _: {"level": n} if n % 2 else {},
        )
        for number in range(6)
    ]
    write_dataset(tmp_path / "out", episodes)
    dataset = load(tmp_path / "out")
    actual = dataset.to_episode_batch()
    assert_same_batches(EpisodeBatch.from_chunks(dataset.env_spec, episodes), actual)
    kinds = {key: (type(values).__name__, values.dtype.name) for key, values in actual.env_infos.items()}
    expected = {
        "every": ("ndarray", "int64"),
        "some": ("MaskedArray", "float32"),
        "json": ("ndarray", "object"),
    }
    assert expected == kinds
