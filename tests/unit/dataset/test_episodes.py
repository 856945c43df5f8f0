"""The facts of episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.chunk import Chunk
from rollout_cli.dataset import CutLimits
from rollout_cli.dataset.episodes import EpisodeFacts, EpisodeGathering, episode_returns
from rollout_cli.dataset.shard import data_path, episodes_path
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.infos import tabulate
from tests.support.chunks import episode
from tests.support.datasets import write_dataset


def test_returns_are_the_same_bits_wherever_the_rewards_lie() -> None:
    """A message's columns lie at any address; numpy sums unaligned ones in blocks, which rounds otherwise."""
    rewards = np.random.default_rng(0).standard_normal(100_000)
    buffer = bytearray(1 + rewards.nbytes)
    moved = np.frombuffer(memoryview(buffer)[1:], np.float64)
    moved[:] = rewards
    lengths = np.array([99_000, 1_000])
    assert not moved.flags.aligned
    assert episode_returns(rewards, lengths).tolist() == episode_returns(moved, lengths).tolist()


def test_episodes_of_many_row_groups_are_one_of_their_own(tmp_path: Path) -> None:
    """A page costs what hundreds of rows do; and each of them is where its data file says."""
    chunks = [episode(number, 10) for number in range(40)]
    write_dataset(tmp_path / "out", chunks, limits=CutLimits(group_rows=35))
    data, episodes = (pq.ParquetFile(path(tmp_path / "out", (0, 0))) for path in (data_path, episodes_path))
    assert (14, 1) == (data.metadata.num_row_groups, episodes.metadata.num_row_groups)
    rows = episodes.read()
    assert list(range(40)) == rows["episode_id"].to_pylist()
    assert list(range(0, 400, 10)) == rows["data_row_index"].to_pylist()


def test_episodes_are_written_once_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of them wait in memory, however long a shard is; their rows in the data file go on counting."""
    monkeypatch.setattr("rollout_cli.dataset.episodes._GROUP_EPISODES", 12)
    chunks = [episode(number, 10) for number in range(40)]
    write_dataset(tmp_path / "out", chunks, limits=CutLimits(group_rows=35))
    file = pq.ParquetFile(episodes_path(tmp_path / "out", (0, 0)))
    assert [12, 12, 12, 4] == [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert list(range(0, 400, 10)) == file.read()["data_row_index"].to_pylist()


WIDE = EnvSpec(spaces.Box(0, 255, (40, 40), np.uint8), spaces.Discrete(3))
TOLD = tabulate([{"map": np.zeros(100), "story": "s" * 700}])


@pytest.mark.parametrize(
    "chunk",
    [episode(0, 3, spec=WIDE), replace(episode(0, 3), episode_infos=TOLD)],
    ids=["last observations", "infos"],
)
def test_what_waits_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch, chunk: Chunk) -> None:
    """The last observations of episodes may be images, and so may be what their resets tell."""
    monkeypatch.setattr("rollout_cli.dataset.episodes._GROUP_BYTES", 5_000)
    gathering = EpisodeGathering()
    full = []
    for _ in range(4):
        gathering.add([EpisodeFacts(chunk, chunk.numbers, chunk.lengths, (chunk.rewards,))])
        full.append(gathering.is_full)
    assert [False, False, False, True] == full
    rows = gathering.take()
    assert rows is not None
    assert (4, False, None) == (len(rows.ids), gathering.is_full, gathering.take())
