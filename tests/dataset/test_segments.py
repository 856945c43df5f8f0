"""The bytes of `data/` depend on the episodes alone: not on chunks, flushes, kills or partitions of the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.dataset.layout import SegmentId
from rollout_cli.dataset.segments import GROUP_BYTES, SizeLimits
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import UsageError
from tests.helpers.chunks import BOX_SPEC, episode, grouped
from tests.helpers.errors import raises
from tests.helpers.thorough import usually
from tests.helpers.writing import (
    RICH_SPEC,
    SMALL,
    data_files,
    resume_dataset,
    rich_episodes,
    write_dataset,
)


def rows_of(path: Path) -> list[int]:
    return [pq.read_metadata(file).num_rows for file in sorted((path / "data").rglob("*.parquet"))]


# Where segments end.


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_a_segment_ends_before_the_episode_that_would_pass_its_limits(
    episodes: list[tuple[int, int]], rows: int, nominal: int
) -> None:
    limits, (lengths, sizes) = SizeLimits(segment_rows=60, segment_bytes=60), np.array(episodes).T
    fits = (rows + np.cumsum(lengths) <= 60) & (nominal + np.cumsum(sizes) <= 60)
    assert fits.sum() == limits.count_fitting(lengths, sizes, rows=rows, nominal=nominal)


def test_partitions_share_the_bytes_of_a_segment_down_to_a_least_share() -> None:
    limits = SizeLimits(segment_bytes=10 << 20)
    assert [10 << 20, 5 << 20, 4 << 20] == [limits.for_partitions(n).segment_bytes for n in (1, 2, 10)]
    assert 1000 == SizeLimits(segment_bytes=1000).for_partitions(2).segment_bytes


@pytest.mark.parametrize("size", [0, -1, (1 << 30) + 1])
def test_a_segment_that_memory_does_not_hold_is_refused(size: int) -> None:
    with raises(UsageError, "segment-size"):
        SizeLimits(segment_bytes=size)


@pytest.mark.parametrize(
    ("length", "nominal", "expected"),
    [
        (1, 1, [1]),
        (100, 100, [50, 100]),
        (120, 0, [40, 80, 120]),
        (10, 3 * GROUP_BYTES, [3, 6, 10]),
        (2, 9 * GROUP_BYTES, [1, 2]),
    ],
)
def test_a_long_episode_has_row_groups_of_equal_length(
    length: int, nominal: int, expected: list[int]
) -> None:
    assert expected == SMALL.group_edges(length, nominal)


def test_a_dataset_of_one_partition_has_a_thousand_files_a_folder_and_others_a_folder_each() -> None:
    assert (1, 234) == SegmentId(1, 0, 1234).file
    assert (7, 1234) == SegmentId(8, 7, 1234).file


# The bytes.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset that was written episode by episode, without a flush."""
    path = tmp_path_factory.mktemp("whole") / "dataset"
    write_dataset(path, rich_episodes(), spec=RICH_SPEC, limits=SMALL, next_observation=True)
    assert len(data_files(path)) > 5
    return path


@pytest.mark.parametrize("sizes", usually([[1], [3, 1, 10], [120]], lambda sizes: len(sizes) > 1))
@pytest.mark.parametrize("flush", [True, False])
def test_chunks_and_flushes_change_no_byte(
    tmp_path: Path, whole: Path, sizes: list[int], flush: bool
) -> None:
    chunks = grouped(rich_episodes(), sizes)
    options: dict[str, Any] = {"spec": RICH_SPEC, "limits": SMALL, "next_observation": True}
    write_dataset(tmp_path / "d", chunks, flush=flush, **options)
    assert data_files(whole) == data_files(tmp_path / "d")
    assert (whole / "meta/stats.json").read_text() == (tmp_path / "d/meta/stats.json").read_text()


@pytest.mark.parametrize("stops", usually([[95], [100, 101, 110, 119]], lambda stops: len(stops) == 1))
def test_a_resumed_dataset_has_the_bytes_of_one_run(tmp_path: Path, whole: Path, stops: list[int]) -> None:
    """`meta/episodes` and the statistics too; the skipped episode is known all the time."""
    episodes, path = rich_episodes(), tmp_path / "d"
    options: dict[str, Any] = {"limits": SMALL, "next_observation": True, "flush": True}
    write_dataset(path, [one for one in episodes if one.numbers[0] < stops[0]], spec=RICH_SPEC, **options)
    for stop in (*stops[1:], 120):
        committed = resume_dataset(
            path, [one for one in episodes if one.numbers[0] < stop], spec=RICH_SPEC, **options
        )
        assert (range(61, 62),) == committed.skipped
        assert () == committed.notices
    assert data_files(whole) == data_files(path)
    assert (whole / "meta/stats.json").read_text() == (path / "meta/stats.json").read_text()


@pytest.mark.thorough
def test_episodes_of_several_partitions_do_not_depend_on_who_comes_first(tmp_path: Path) -> None:
    episodes = [episode(number, 9 + number % 5) for number in range(200)]
    in_turn = [one for pair in zip(episodes[:100], episodes[100:], strict=True) for one in pair]
    for name, chunks, flush in (("one", episodes, False), ("other", in_turn, True)):
        partitions = [int(chunk.numbers[0]) // 100 for chunk in chunks]
        options: dict[str, Any] = {"first_numbers": [0, 100], "limits": SMALL}
        write_dataset(tmp_path / name, chunks, partitions=partitions, flush=flush, **options)
    assert data_files(tmp_path / "one") == data_files(tmp_path / "other")


# Episodes over the limits.

LONG_SPEC = EnvSpec(
    spaces.Dict({"v": spaces.Box(-9, 9, (3, 2), np.float32), "t": spaces.Text(5)}), BOX_SPEC.action_space
)


def long_info(number: int, step: int) -> dict[str, Any]:
    return {"a": step, "b": f"text {step}"} if step % 3 else {"grid": np.full((2, 2), step)}


def long_episodes() -> list[Chunk]:
    """Return short episodes around two that are longer than a segment of `SMALL`."""
    lengths = [30] * 40 + [500, 10, 333, 7, 30]
    return [
        episode(n, k, spec=LONG_SPEC, env_info=long_info, agent_info=long_info) for n, k in enumerate(lengths)
    ]


def test_an_episode_over_the_limits_is_a_segment_of_its_own(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", long_episodes(), spec=LONG_SPEC, limits=SMALL, next_observation=True)
    rows = rows_of(tmp_path / "d")
    assert [500, 10, 333, 37] == rows[-4:]
    file = pq.ParquetFile(sorted((tmp_path / "d/data").rglob("*.parquet"))[-4])
    groups = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
    assert 500 == sum(groups)
    assert max(groups) <= SMALL.group_rows
    steps = file.read(columns=["step", "step_type", "truncated"])
    assert list(range(500)) == steps["step"].to_pylist()
    assert [0, *[1] * 498] == steps["step_type"].to_pylist()[:-1]
    assert 500 - 1 == steps["truncated"].to_pylist().count(False)


def test_a_long_episode_has_the_same_bytes_after_flushes(tmp_path: Path) -> None:
    """With next observations across row groups, and infos of several kinds."""
    episodes = long_episodes()
    options: dict[str, Any] = {"spec": LONG_SPEC, "limits": SMALL, "next_observation": True}
    write_dataset(tmp_path / "whole", episodes, **options)
    write_dataset(tmp_path / "flushed", grouped(episodes, [5]), flush=True, **options)
    assert data_files(tmp_path / "whole") == data_files(tmp_path / "flushed")
    for name in ("observation.v", "observation.t"):
        tables = [pq.read_table(file) for file in sorted((tmp_path / "whole/data").rglob("*.parquet"))]
        long = next(table for table in tables if table.num_rows == 500)
        assert (
            long[name].to_pylist()[1:]
            == long[name.replace("observation", "next_observation")].to_pylist()[:-1]
        )


def test_a_dataset_is_resumed_behind_a_long_episode(tmp_path: Path) -> None:
    episodes = long_episodes()
    write_dataset(tmp_path / "whole", episodes, spec=LONG_SPEC, limits=SMALL)
    write_dataset(tmp_path / "resumed", episodes[:41], spec=LONG_SPEC, limits=SMALL)
    resume_dataset(tmp_path / "resumed", episodes, spec=LONG_SPEC, limits=SMALL)
    assert data_files(tmp_path / "whole") == data_files(tmp_path / "resumed")


def test_big_images_have_the_same_bytes_however_they_came(tmp_path: Path) -> None:
    """Their columns are written chunk by chunk, and pages are cut row by row."""
    spec = EnvSpec(spaces.Box(0, 255, (120, 100, 3), np.uint8), spaces.Discrete(3))
    episodes = [episode(number, 3 + number % 4, spec=spec) for number in range(12)]
    for name, chunks, flush in (("one", episodes, False), ("other", grouped(episodes, [5]), True)):
        write_dataset(
            tmp_path / name, chunks, spec=spec, limits=SizeLimits(segment_bytes=900_000), flush=flush
        )
    assert data_files(tmp_path / "one") == data_files(tmp_path / "other")
    assert len(data_files(tmp_path / "one")) > 1
