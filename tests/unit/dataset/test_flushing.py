"""Flushing: open shards are committed from time to time, and no byte of `data/` shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.chunk import Chunk
from rollout_cli.dataset import CutLimits, DatasetWriter, load
from rollout_cli.dataset.encoding import Encoder, EncodingThread, InlineEncoder
from rollout_cli.dataset.flushing import FLUSH_SECONDS, FlushTimer
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.shard import data_path, episodes_path
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from tests.support.chunks import BOX_SPEC, episode, grouped, in_parts
from tests.support.datasets import FailingFiles, assert_same_batches, data_files, leftovers, write_dataset

SPEC = EnvSpec(
    spaces.Dict(
        {"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "text": spaces.Text(6), "x": spaces.Box(-1, 1, (3,))}
    ),
    spaces.Box(-1, 1, (2,), np.float64),
)
BIG_IMAGES = EnvSpec(spaces.Box(0, 255, (128, 128, 3), np.uint8), spaces.Discrete(3))
LIMITS = CutLimits(shard_bytes=40_000, min_shard_bytes=10_000, group_bytes=9_000, group_rows=60)


def env_info(number: int, step: int) -> Mapping[str, Any]:
    """Keys that come and go, of changing types: nullable columns, and values in the remainder."""
    info: dict[str, Any] = {"speed": step * 0.5} if step % 3 else {"speed": step, "note": [number]}
    if number >= 50:
        info["late"] = f"text {number}"
    return info


@cache
def some_episodes() -> list[Chunk]:
    """Return a hundred chunks: single episodes, groups, long ones that are split, whole and in parts."""
    lengths = [1 + (7 * number) % 50 for number in range(110)]
    lengths[60] = lengths[80] = 150
    chunks = [
        episode(number, length, spec=SPEC, env_info=env_info, agent_info=lambda n, s: {"p": np.float32(s)})
        for number, length in enumerate(lengths)
    ]
    return [*grouped(chunks[:60], [1, 4, 2]), *in_parts(chunks[60], [7, 90, 150]), *grouped(chunks[61:], [3, 1])]


def big_images() -> list[Chunk]:
    return [episode(number, 60, spec=BIG_IMAGES) for number in range(24)]


class Steps:
    """A clock that counts how often it was asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def always() -> FlushTimer:
    """Return a timer by which a flush is due after each chunk."""
    return FlushTimer(0.0, clock=Steps())


@pytest.mark.parametrize("encoder", [InlineEncoder, EncodingThread])
@pytest.mark.parametrize("following", [False, True], ids=["", "next observations"])
def test_flushing_after_every_chunk_changes_no_byte(
    tmp_path: Path, following: bool, encoder: type[InlineEncoder | EncodingThread]
) -> None:
    """Of `data/`: row groups that were flushed, held and written again are those that were written once."""
    chunks = some_episodes()
    never = write_dataset(tmp_path / "never", chunks, spec=SPEC, limits=LIMITS, next_observation=following)
    files = FailingFiles()
    often = write_dataset(
        tmp_path / "often",
        chunks,
        spec=SPEC,
        limits=LIMITS,
        next_observation=following,
        timer=always(),
        files=files,
        encoder=encoder(),
    )
    renames = [path for name, path in files.operations if name == "rename" and path.suffix == ".parquet"]
    # In a thread, none is due before the one before it has ended.
    assert len(renames) > 2 * often.shards + 20 > 40
    assert data_files(tmp_path / "never") == data_files(tmp_path / "often")
    assert [] == leftovers(tmp_path / "often")
    assert (never.episodes, never.steps, never.shards) == (often.episodes, often.steps, often.shards)
    assert never.dropped_infos == often.dropped_infos
    assert_same_datasets(load(tmp_path / "never"), load(tmp_path / "often"))


def assert_same_datasets(expected: Dataset, actual: Dataset, *, batch: EpisodeBatch | None = None) -> None:
    """Check that two datasets hold the same episodes, in the same places, with the same statistics.

    `batch` are the episodes that are expected, where they are read already.
    """
    assert expected.episodes.equals(actual.episodes)
    assert_same_batches(expected.to_episode_batch() if batch is None else batch, actual.to_episode_batch())
    stats = [json.loads((dataset.path / "meta" / "stats.json").read_text()) for dataset in (expected, actual)]
    assert stats[0] == stats[1]
    sizes = sum(file.stat().st_size for file in actual.path.rglob("*.parquet"))
    assert sizes == actual.info["bytes"]


def test_big_images_are_written_again_as_they_were(tmp_path: Path) -> None:
    """Their columns are written in pieces, by the row, and come back in one."""
    limits = CutLimits(shard_bytes=30 << 20, min_shard_bytes=1000, group_bytes=9 << 20)
    chunks = big_images()
    for name, timer in (("never", None), ("often", always())):
        write_dataset(tmp_path / name, chunks, spec=BIG_IMAGES, limits=limits, timer=timer)
    files = data_files(tmp_path / "never")
    assert len(files) > 2
    assert files == data_files(tmp_path / "often")


def test_lanes_are_flushed_each(tmp_path: Path) -> None:
    """And stay as they are."""
    chunks = [episode(number, 5 + number % 7) for number in range(150)]
    order = [number // 50 for number in range(150)]
    mixed = [at for turn in range(50) for at in (turn, 50 + turn, 100 + turn)]
    limits = CutLimits(shard_bytes=9_000, min_shard_bytes=3_000, group_bytes=1_000)
    for name, timer in (("never", None), ("often", always())):
        write_dataset(
            tmp_path / name,
            [chunks[at] for at in mixed],
            lanes=[order[at] for at in mixed],
            n_lanes=3,
            limits=limits,
            timer=timer,
        )
    assert len(data_files(tmp_path / "never")) > 5
    assert data_files(tmp_path / "never") == data_files(tmp_path / "often")
    assert_same_datasets(load(tmp_path / "never"), load(tmp_path / "often"))


def states(path: Path, chunks: Sequence[Chunk], *, encoder: Encoder | None = None) -> list[int]:
    """Write chunks with a flush after each; return how many episodes can be read after each."""
    out = []
    with DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, timer=always(), encoder=encoder) as writer:
        for chunk in chunks:
            writer.write(chunk)
            out.append(len(load(path)))
            if out[-1]:
                assert list(range(out[-1])) == load(path).to_episode_batch().numbers.tolist()
                assert load(path).info["episodes"] == out[-1]
                assert load(path).info["status"] == "collecting"
                rows = [pq.ParquetFile(file).metadata.num_rows for file in (path / "data").rglob("*.parquet")]
                assert load(path).info["steps"] == sum(rows)
    return out


def test_what_was_flushed_can_be_read(tmp_path: Path) -> None:
    """All episodes so far, once the schema window is closed, and none before."""
    chunks = [episode(number, 300) for number in range(8)]
    assert [0, 0, 0, 4, 5, 6, 7, 8] == states(tmp_path / "out", chunks, encoder=InlineEncoder())


def test_no_flush_falls_inside_an_episode(tmp_path: Path) -> None:
    """Of an episode in parts, nothing is committed before its last one came."""
    chunks = [episode(0, 1000), *in_parts(episode(1, 90), [30, 60, 90]), episode(2, 3)]
    assert [1, 1, 1, 2, 3] == states(tmp_path / "out", chunks, encoder=InlineEncoder())


def test_the_footer_says_what_is_settled_and_how_to_go_on(tmp_path: Path) -> None:
    """Numbers left out between two others are skipped; a full shard has no open end."""
    path = tmp_path / "out"
    chunks = [episode(number, 100) for number in range(40) if number not in (0, 17, 18, 33)]
    limits = CutLimits(shard_bytes=60_000, min_shard_bytes=1000, group_rows=250)
    write_dataset(path, chunks, limits=limits, first_numbers=[0])
    first, second, third = (pq.ParquetFile(episodes_path(path, (0, at))).metadata.metadata for at in range(3))
    told = [json.loads(footer[b"rollout.settles"]) for footer in (first, second, third)]
    assert [0, 17, 18, 33] == [number for part in told for number in part["skipped"]]
    assert (0, 40) == (told[0]["start"], told[-1]["stop"])
    assert [part["stop"] for part in told[:-1]] == [part["start"] for part in told[1:]]
    assert [b"null", b"null"] == [first[b"rollout.open"], second[b"rollout.open"]]
    groups = pq.ParquetFile(data_path(path, (0, 2))).metadata
    rows = json.loads(third[b"rollout.open"])["rows"]
    assert groups.row_group(groups.num_row_groups - 1).num_rows == rows


def test_frequent_flushes_leave_few_row_groups_of_episodes(tmp_path: Path) -> None:
    """A hundred commits of one shard, and its episodes file is read in one go."""
    chunks = [episode(0, 1000), *(episode(number, 3) for number in range(1, 100))]
    write_dataset(tmp_path / "out", chunks, timer=always())
    assert pq.ParquetFile(episodes_path(tmp_path / "out", (0, 0))).metadata.num_row_groups <= 2


class Clock:
    """A clock that stands still until it is told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def flush(timer: FlushTimer, clock: Clock, seconds: float) -> None:
    timer.ask()
    assert not timer.due()
    timer.begin()
    clock.now += seconds
    assert not timer.due()
    timer.end()


def test_a_flush_is_due_after_its_time() -> None:
    """And again so long after it has ended."""
    clock = Clock()
    timer = FlushTimer(5.0, clock)
    clock.now += 4.9
    assert not timer.due()
    clock.now += 0.2
    assert timer.due()
    flush(timer, clock, 2.0)
    assert not timer.due()
    clock.now += 5.1
    assert timer.due()


@pytest.mark.parametrize(("took", "pause"), [(0.1, FLUSH_SECONDS), (6.0, 200.0)])
def test_by_default_flushing_takes_little_of_the_time(took: float, pause: float) -> None:
    """Every thirty seconds, or so that flushes take three in a hundred."""
    clock = Clock()
    timer = FlushTimer(None, clock)
    clock.now += FLUSH_SECONDS
    assert timer.due()
    flush(timer, clock, took)
    clock.now += pause - 0.01
    assert not timer.due()
    clock.now += 0.02
    assert timer.due()
