"""The two commands, as their users see what they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

from rollout_cli.config import EpisodeRange
from rollout_cli.dataset import Dataset
from tests.support.runs import data_hashes, episodes_by_worker, run


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """20,000 steps of the built-in policy in CartPole."""
    return run(tmp_path_factory.mktemp("run") / "cartpole", timesteps=20_000, seed=3, workers=2)


def test_timesteps_are_reached_by_the_last_episode(cartpole: Dataset) -> None:
    """The lengths sum to at least N, and would not without the last episode."""
    lengths = cartpole.episodes["length"].to_pylist()
    assert sum(lengths) >= 20_000 > sum(lengths[:-1])
    assert list(range(len(lengths))) == cartpole.episodes["episode_id"].to_pylist()


def _returns(cartpole: Dataset) -> dict[int, float]:
    return dict(zip(cartpole.episodes["episode_id"].to_pylist(), cartpole.episodes["return"].to_pylist(), strict=True))


def test_duckdb_reads_the_data(cartpole: Dataset) -> None:
    """DuckDB's returns by episode are those of the episodes table."""
    query = f"select episode_id, sum(reward) from '{cartpole.path}/data/*/*.parquet' group by episode_id"
    assert _returns(cartpole) == dict(duckdb.execute(query).fetchall())


def test_polars_reads_the_data(cartpole: Dataset) -> None:
    """In polars, returns by episode are those of the episodes table; an observation is an array of four floats."""
    frame = pl.read_parquet(f"{cartpole.path}/data/*/*.parquet")
    sums = frame.group_by("episode_id").agg(pl.col("reward").sum())
    assert _returns(cartpole) == dict(sums.iter_rows())
    assert pl.Array(pl.Float32, 4) == frame.schema["observation"]


def test_pandas_reads_the_data(cartpole: Dataset) -> None:
    """In pandas, the returns by episode are those of the episodes table."""
    frame = pd.read_parquet(f"{cartpole.path}/data")
    assert _returns(cartpole) == frame.groupby("episode_id")["reward"].sum().to_dict()


def test_pyarrow_reads_plain_columns(cartpole: Dataset) -> None:
    """No column has an extension type, and the next observation inside an episode is the following row's."""
    table = ds.dataset(cartpole.path / "data", format="parquet").to_table()
    assert not [field.name for field in table.schema if hasattr(field.type, "extension_name")]
    batch = cartpole[:50].to_episode_batch()
    for episode in batch.split():
        np.testing.assert_array_equal(episode.observations[1:], episode.next_observations[:-1])
        np.testing.assert_array_equal(episode.last_observations[0], episode.next_observations[-1])


def test_exact_keeps_to_its_number_and_order(tmp_path: Path) -> None:
    """Three workers with five episodes each make fifteen, in worker order; no sixteenth was begun."""
    log = tmp_path / "resets"
    options: dict[str, Any] = {"env": "tests.e2e.counting:CountingEnv", "env_kwargs": {"log": str(log)}}
    dataset = run(tmp_path / "out", command="exact", episodes_per_worker=5, workers=3, seed=1, **options)
    assert [0] * 5 + [1] * 5 + [2] * 5 == dataset.episodes["worker"].to_pylist()
    assert list(range(15)) == dataset.episodes["episode_number"].to_pylist()
    chunks = [0] * 5 + [1] * 5 + [2] * 5
    assert chunks == dataset.episodes["data_chunk_index"].to_pylist()
    # Each worker runs its first episode twice where a generator of the environment's appeared in it; this one has none.
    assert sorted(dataset.episodes["seed"].to_pylist()) == sorted(int(line) for line in log.read_text().split())


def test_order_of_arrival_says_that_it_is_biased(tmp_path: Path) -> None:
    """`--order arrival` collects at least N steps and records that the dataset is not reproducible."""
    dataset = run(tmp_path / "out", timesteps=2_000, order="arrival", seed=1, workers=2)
    assert sum(dataset.episodes["length"].to_pylist()) >= 2_000
    assert dataset.info["reproducible"]["status"] == "failed"


def test_every_worker_takes_part(tmp_path: Path) -> None:
    """With an environment that takes its time, two workers share the episodes."""
    dataset = run(tmp_path / "out", env="tests.support.slow:chain", episodes=EpisodeRange(0, 60), workers=2, seed=1)
    assert min(episodes_by_worker(dataset).values()) >= 10


def test_the_size_of_data_files_can_be_chosen(tmp_path: Path) -> None:
    """`--shard-bytes` begins another file before an episode that would pass it; the episodes stay the same."""
    options: dict[str, Any] = {"timesteps": 3000, "seed": 3, "workers": 1, "sampler": "local"}
    small = run(tmp_path / "small", shard_bytes=20_000, **options)
    large = run(tmp_path / "large", **options)
    assert 1 == len(data_hashes(tmp_path / "large"))
    assert 3 < len(data_hashes(tmp_path / "small")) < 20
    assert 20_000 == small.info["limits"]["shard_bytes"]
    assert large.to_episode_batch().rewards.tolist() == small.to_episode_batch().rewards.tolist()
