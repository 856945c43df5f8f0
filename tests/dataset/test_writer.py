"""The writer from the outside: what a dataset holds, how it ends, how its files are encoded."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import concatenate
from rollout_cli.errors import (
    DatasetFormatError,
    InternalError,
    InterruptedRunError,
    RolloutError,
    UnsupportedSpaceError,
)
from tests.helpers.chunks import episode
from tests.helpers.datasets import info_of, numbers_of, source_of
from tests.helpers.writing import (
    RICH_SPEC,
    SMALL,
    FailingFiles,
    committed_numbers,
    hidden_files,
    open_writer,
    rich_episodes,
    wait_for_writes,
    wait_until,
    write_dataset,
)

# What it writes.


def test_a_summary_and_the_info_state_the_same(tmp_path: Path) -> None:
    def info(number: int, step: int) -> dict[str, Any]:
        return {"f": print} if step else {}

    chunks = [episode(n, 30, env_info=info, episode_info=lambda *_: {"g": print}) for n in range(50)]
    summary = write_dataset(
        tmp_path, chunks, limits=SMALL, header={"env": {"id": "X-v0"}, "policy": {"spec": "random"}}
    )
    found = read_info(tmp_path)
    assert (50, 1500, 9) == (summary.episodes, summary.steps, summary.segments)
    for name in ("status", "episodes", "steps", "segments", "bytes", "dropped_infos"):
        assert getattr(summary, name) == found[name]
    files = list(tmp_path.rglob("file-*.parquet"))
    assert summary.bytes == sum(path.stat().st_size for path in files)
    assert {"env_info.f": 50 * 29, "episode_info.g": 50} == summary.dropped_infos
    assert ("rollout", 3, "complete", 1, []) == tuple(
        found[name] for name in ("format", "format_version", "status", "partitions", "derived")
    )
    (source,) = found["sources"]
    assert (0, {"id": "X-v0"}, {"spec": "random"}) == (source["root_seed"], source["env"], source["policy"])
    assert "50 episodes, 1,500 steps (complete)." in (tmp_path / "README.md").read_text()
    assert "# Episodes of X-v0" in (tmp_path / "README.md").read_text()
    assert [] == hidden_files(tmp_path)


def test_features_name_every_column(tmp_path: Path) -> None:
    write_dataset(tmp_path, rich_episodes(), spec=RICH_SPEC, next_observation=True)
    features = read_info(tmp_path)["features"]
    names = [pq.read_schema(path).names for path in sorted(tmp_path.rglob("file-00000.parquet"))]
    assert set(features) == {name for columns in names for name in columns}
    assert {
        "kind": "box",
        "dtype": "float64",
        "shape": [2, 3],
        "path": ["frames"],
        "stored": True,
    } == features["next_observation.frames"]
    assert {"kind": "info", "dtype": "float32[2,3]", "path": ["grid"], "stored": True} == features[
        "env_info.grid"
    ]


def test_ids_follow_one_another_and_numbers_are_kept(tmp_path: Path) -> None:
    numbers = [5, 6, 9, 40]
    write_dataset(tmp_path, [episode(n, 3) for n in numbers], first_numbers=[4])
    table = pq.read_table(next((tmp_path / "meta/episodes").rglob("*.parquet")))
    assert ([0, 1, 2, 3], numbers) == (table["episode_id"].to_pylist(), table["episode_number"].to_pylist())


def test_the_ids_of_several_partitions_are_the_numbers(tmp_path: Path) -> None:
    """Each partition has a chunk folder of its own, and none is made for one without episodes."""
    chunks = [episode(n, 3) for n in (10, 0, 11, 2)]
    write_dataset(tmp_path, chunks, partitions=[1, 0, 1, 0], first_numbers=[0, 10, 20])
    assert ["chunk-00000", "chunk-00001"] == sorted(path.name for path in (tmp_path / "data").iterdir())
    assert [0, 2, 10, 11] == numbers_of(tmp_path)


def test_episodes_that_are_only_observed_decide_columns_and_are_not_written(tmp_path: Path) -> None:
    def info(number: int, step: int) -> dict[str, int]:
        return {f"key{number}": step}

    with open_writer(tmp_path, first_numbers=[7]) as writer:
        writer.observe(episode(0, 1_000, env_info=info))
        writer.write(episode(7, 3, env_info=info))
        writer.close(status="complete")
    assert [7] == numbers_of(tmp_path)
    features = read_info(tmp_path)["features"]
    assert "env_info.key0" in features
    assert "env_info.key7" not in features
    assert "decided" == read_info(tmp_path)["info_columns"]


def test_episodes_that_were_observed_before_they_are_written_count_once(tmp_path: Path) -> None:
    """Those of a shard of few steps: the whole run has not decided its columns either."""
    with open_writer(tmp_path, first_numbers=[2]) as writer:
        for number in range(4):
            writer.observe(episode(number, 200))
        for number in (2, 3):
            writer.write(episode(number, 200))
        writer.close(status="complete")
    assert "partial" == read_info(tmp_path)["info_columns"]


@pytest.mark.parametrize("count", [1, 3])
def test_episodes_are_committed_while_the_next_one_takes_long(tmp_path: Path, count: int) -> None:
    """By the timer, before and after 1,000 steps have decided the columns; the timer ends with the writer."""
    with open_writer(tmp_path, flush_seconds=0.01) as writer:
        for number in range(count):
            writer.write(episode(number, 600))
        wait_until(lambda: list(range(count)) == committed_numbers(tmp_path))
        assert ("collecting", "partial" if count == 1 else "decided") == tuple(
            info_of(tmp_path)[name] for name in ("status", "info_columns")
        )
        assert any(thread.name == "rollout-flush" for thread in threading.enumerate())
        writer.close(status="interrupted")
    assert list(range(count)) == numbers_of(tmp_path)
    assert not any(thread.name == "rollout-flush" for thread in threading.enumerate())


def test_a_flush_without_new_episodes_does_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    with open_writer(tmp_path, files=files) as writer:
        for chunk in (episode(0, 600), episode(1, 600)):
            writer.write(chunk)
            writer.flush()
            wait_for_writes(writer)
            before = len(files.operations)
            writer.flush()
            assert before == len(files.operations)


# How it ends.


def test_the_info_is_there_from_the_start(tmp_path: Path) -> None:
    with open_writer(tmp_path, root_seed=3) as writer:
        assert ("collecting", "inferring") == tuple(
            info_of(tmp_path)[name] for name in ("status", "info_columns")
        )
        assert {"root_seed": 3, "run": None} == source_of(tmp_path)
        writer.write(episode(0, 1_000))
        assert "decided" == info_of(tmp_path)["info_columns"]
        writer.close(status="complete", reproducible={"status": "yes"}, limit=float("inf"))
    assert ({"status": "yes"}, "inf") == (source_of(tmp_path)["reproducible"], source_of(tmp_path)["limit"])


@pytest.mark.parametrize(("error", "kept"), [
    (None, [0, 1]), (RolloutError("the env failed"), [0, 1]), (ValueError("x"), [0, 1]),
    (KeyboardInterrupt(), []), (InterruptedRunError("twice"), []),
])  # fmt: skip
def test_a_writer_that_is_left_without_close_keeps_its_episodes_unless_asked_to_hurry(
    tmp_path: Path, error: BaseException | None, kept: list[int]
) -> None:
    """A second signal asks for an end at once."""
    kind = BaseException if error is None else type(error)
    with suppress(kind), open_writer(tmp_path) as writer:
        writer.write(concatenate([episode(0, 600), episode(1, 600)]))
        if error is not None:
            raise error
    if kept:
        assert kept == numbers_of(tmp_path)
        assert ("interrupted", 2) == (info_of(tmp_path)["status"], info_of(tmp_path)["episodes"])
    assert bool(kept) == any(tmp_path.iterdir())
    assert [] == hidden_files(tmp_path)


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        before = writer.has_episodes
        writer.write(episode(0, 5))
        assert (False, True) == (before, writer.has_episodes)
        writer.close(status="complete")
        with pytest.raises(InternalError):
            writer.write(episode(1, 5))
        with pytest.raises(InternalError):
            writer.close(status="complete")
        writer.abort()
    assert "complete" == info_of(tmp_path)["status"]


def test_a_space_that_cannot_be_stored_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    spec = EnvSpec(spaces.Sequence(spaces.Text(2)), spaces.Discrete(2))
    with pytest.raises(UnsupportedSpaceError):
        open_writer(tmp_path / "d", spec=spec)
    assert not (tmp_path / "d").exists()


# How files are encoded.


def test_columns_have_the_encodings_that_are_small_and_fast(tmp_path: Path) -> None:
    write_dataset(tmp_path, rich_episodes(), spec=RICH_SPEC)
    group = pq.read_metadata(next((tmp_path / "data").rglob("*.parquet"))).row_group(0)
    found = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    for name, encoding in {
        "episode_id": "DELTA_BINARY_PACKED", "reward": "BYTE_STREAM_SPLIT", "terminated": "PLAIN", "step_type": "PLAIN",
        "observation.frames.list.element.list.element": "BYTE_STREAM_SPLIT", "action.0": "DELTA_BINARY_PACKED",
        "env_info.x": "BYTE_STREAM_SPLIT", "env_info.grid.list.element.list.element": "BYTE_STREAM_SPLIT",
    }.items():  # fmt: skip
        assert encoding in found[name].encodings
    assert {"ZSTD"} == {column.compression for column in found.values()}
    assert not any(column.has_dictionary_page for column in found.values())
    assert ["episode_id"] == [name for name, column in found.items() if column.is_stats_set]


def test_rows_are_in_groups_of_a_bounded_size(tmp_path: Path) -> None:
    write_dataset(tmp_path, [episode(n, 170) for n in range(10)], limits=SMALL)
    metadata = pq.read_metadata(tmp_path / "data/chunk-00000/file-00000.parquet")
    assert [50, 50, 50, 20] == [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]


def test_a_flipped_bit_is_found_wherever_values_are(tmp_path: Path) -> None:
    """Bits of all pages, one at a time: reading is an error of ours, or gives the same values."""
    write_dataset(tmp_path, rich_episodes()[:20], spec=RICH_SPEC)
    path = next((tmp_path / "data").rglob("*.parquet"))
    content, expected = path.read_bytes(), pq.read_table(path)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    silent = 0
    for at in range(4, footer, max(1, footer // 300)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(bytes(damaged))
        try:
            with reading(path), open_parquet(path) as file:
                found = file.read()
        except DatasetFormatError:
            continue
        silent += 1
        assert expected.equals(found)
    assert silent < 30  # Fields of page headers that decide nothing.
