"""The bytes of `data/` are a function of the episodes alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.chunk import Chunk
from rollout_cli.dataset import CutLimits, load
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.packing import pack, unpack
from tests.support.chunks import episode, grouped, in_parts
from tests.support.datasets import data_files, write_dataset

SPEC = EnvSpec(
    spaces.Dict(
        {"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "text": spaces.Text(6), "x": spaces.Box(-1, 1, (3,))}
    ),
    spaces.Box(-1, 1, (2,), np.float64),
)
LIMITS = CutLimits(shard_bytes=40_000, min_shard_bytes=10_000, group_bytes=9_000, group_rows=60)


def env_info(number: int, step: int) -> Mapping[Any, Any]:
    """A key that appears first in episode 50 and changes its type in episode 80; others come and go."""
    info: dict[str, Any] = {"speed": step * 0.5} if step % 3 else {"speed": step, "note": [number]}
    if number >= 50:
        info["late"] = f"text {number}" if number >= 80 else number
    return info


@pytest.fixture(scope="module")
def episodes() -> list[Chunk]:
    lengths = [1 + (7 * number) % 50 for number in range(100)]
    lengths[60] = 150
    return [
        episode(number, length, spec=SPEC, env_info=env_info, agent_info=lambda n, s: {"p": np.float32(s)})
        for number, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def expected(episodes: list[Chunk], tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, bytes]]:
    """The files where every episode travels alone, without and with next observations."""
    out = {}
    for following in (False, True):
        path = tmp_path_factory.mktemp("alone") / "out"
        write_dataset(path, episodes, spec=SPEC, limits=LIMITS, next_observation=following)
        out[following] = data_files(path)
    assert len(out[False]) > 5
    return out


def cut_at_random(episodes: list[Chunk], rng: random.Random) -> list[Chunk]:
    """Return the episodes in groups of random sizes, long ones in random parts, some moved to another address."""
    chunks: list[Chunk] = []
    at = 0
    while at < len(episodes):
        length = episodes[at].n_steps
        if length > 20 and rng.random() < 0.5:
            edges = sorted(rng.sample(range(1, length), rng.randint(1, 4)))
            chunks += in_parts(episodes[at], [*edges, length])
            at += 1
        else:
            size = rng.randint(1, 9)
            chunks += grouped(episodes[at : at + size], [size])
            at += size
    return [_moved(chunk) if rng.random() < 0.5 else chunk for chunk in chunks]


def _moved(chunk: Chunk) -> Chunk:
    """Return the chunk as a message brings it: views of one buffer, at any alignment."""
    data = bytearray(b"".join(bytes(piece) for piece in pack(chunk)))
    moved: Chunk = unpack(memoryview(b"\0" + data)[1:])
    return moved


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), following=st.booleans())
def test_chunks_and_parts_change_nothing(
    seed: int,
    following: bool,
    episodes: list[Chunk],
    expected: dict[bool, dict[str, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """However the episodes were cut into chunks and parts, the files are the same; so are the returns."""
    path = tmp_path_factory.mktemp("cut") / "out"
    chunks = cut_at_random(episodes, random.Random(seed))
    write_dataset(path, chunks, spec=SPEC, limits=LIMITS, next_observation=following)
    assert expected[following] == data_files(path)
    returns = [float(np.add.reduceat(chunk.rewards, [0])[0]) for chunk in episodes]
    assert returns == load(path).episodes["return"].to_pylist()


def test_the_late_key_is_in_the_remainder(episodes: list[Chunk], tmp_path: Path) -> None:
    """It came after the window, so it has no column; no value of it is lost."""
    write_dataset(tmp_path / "out", episodes, spec=SPEC, limits=LIMITS)
    batch = load(tmp_path / "out").to_episode_batch()
    assert "env_info.late" not in load(tmp_path / "out").info["features"]
    numbers = np.repeat(batch.numbers, batch.lengths).tolist()
    expected = [None if n < 50 else (n if n < 80 else f"text {n}") for n in numbers]
    assert expected == batch.env_infos["late"].tolist()


@pytest.fixture(scope="module")
def expected_lanes(episodes: list[Chunk], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of four lanes where every episode travels alone, in one order of turns."""
    path = tmp_path_factory.mktemp("lanes") / "out"
    _write_lanes(path, [episodes[lane * 25 : lane * 25 + 25] for lane in range(4)], random.Random(0))
    expected = data_files(path)
    assert 4 == len({name.split("/")[1] for name in expected})
    return expected


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_lanes_may_interleave_in_any_way(
    seed: int, episodes: list[Chunk], expected_lanes: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each lane has its own folder, whose files do not depend on the other lanes."""
    rng = random.Random(seed)
    path = tmp_path_factory.mktemp("lanes") / "out"
    _write_lanes(path, [cut_at_random(episodes[lane * 25 : lane * 25 + 25], rng) for lane in range(4)], rng)
    assert expected_lanes == data_files(path)
    assert list(range(100)) == load(path).episodes["episode_id"].to_pylist()


def _write_lanes(path: Path, lanes: list[list[Chunk]], rng: random.Random) -> None:
    turns = [lane for lane, chunks in enumerate(lanes) for _ in chunks]
    rng.shuffle(turns)
    queues = [iter(chunks) for chunks in lanes]
    write_dataset(path, [next(queues[lane]) for lane in turns], spec=SPEC, lanes=turns, limits=LIMITS, n_lanes=4)


def test_workers_and_times_change_nothing(
    episodes: list[Chunk], expected: dict[bool, dict[str, bytes]], tmp_path: Path
) -> None:
    """They are recorded in `meta/episodes` only."""
    others = [replace(chunk, workers=chunk.workers + 3, wall_times=chunk.wall_times * 2) for chunk in episodes]
    write_dataset(tmp_path / "out", others, spec=SPEC, limits=LIMITS)
    assert expected[False] == data_files(tmp_path / "out")
    assert {3} == set(load(tmp_path / "out").episodes["worker"].to_pylist())


def test_another_episode_changes_the_files(
    episodes: list[Chunk], expected: dict[bool, dict[str, bytes]], tmp_path: Path
) -> None:
    """The comparison above can fail: one reward is enough."""
    rewards = episodes[99].rewards.copy()
    rewards[-1] += 1e-9
    write_dataset(tmp_path / "out", [*episodes[:99], replace(episodes[99], rewards=rewards)], spec=SPEC, limits=LIMITS)
    assert expected[False] != data_files(tmp_path / "out")


IMAGES = EnvSpec(spaces.Box(0, 255, (128, 100, 3), np.uint8), spaces.Discrete(2))


@pytest.mark.parametrize("following", [False, True])
def test_pieces_of_big_images_leave_no_mark(tmp_path: Path, following: bool) -> None:
    """Images of 38 kB, which are never joined: the bytes are the same however the episodes came in chunks and parts."""
    episodes = [episode(number, 5 + 9 * number, spec=IMAGES) for number in range(9)]
    limits = CutLimits(shard_bytes=80 << 20, min_shard_bytes=80 << 20, group_bytes=4 << 20, group_rows=60)
    written = []
    for name, chunks in (
        ("alone", episodes),
        ("together", grouped(episodes, [4, 1])),
        ("parts", [part for one in episodes for part in in_parts(one, [1, 3, one.n_steps])]),
    ):
        write_dataset(tmp_path / name, chunks, spec=IMAGES, limits=limits, next_observation=following)
        written.append(data_files(tmp_path / name))
    assert len(written[0]) == 1
    assert written[0] == written[1] == written[2]


def test_pages_of_images_hold_about_a_megabyte(tmp_path: Path) -> None:
    """A reader that wants one image need not read a whole row group."""
    episodes = [episode(number, 60, spec=IMAGES) for number in range(2)]
    write_dataset(tmp_path / "out", episodes, spec=IMAGES)
    (path,) = (tmp_path / "out" / "data").rglob("*.parquet")
    column = pq.ParquetFile(path).metadata.row_group(0).column(2)
    # Nothing tells the number of pages, but each has a header of some thirty bytes.
    headers = column.total_uncompressed_size - 120 * 128 * 100 * 3
    assert 4 <= headers // 30 <= 6
