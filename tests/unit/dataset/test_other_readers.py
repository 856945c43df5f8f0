"""DuckDB, polars, pandas and pyarrow read plain columns, and agree with `meta/episodes`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.dataset import CutLimits, load
from rollout_cli.episode_batch import EnvSpec
from tests.support.chunks import episode
from tests.support.datasets import write_dataset

SPEC = EnvSpec(
    spaces.Dict(
        {"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "x": spaces.Box(-1, 1, (2, 3)), "t": spaces.Text(4)}
    ),
    spaces.Box(-1, 1, (2,), np.float64),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "out"
    episodes = [
        episode(
            n, 2 + n % 20, spec=SPEC, env_info=lambda n, s: {"v": np.array([n, s], np.float32)} if s % 2 else {"w": s}
        )
        for n in range(60)
    ]
    limits = CutLimits(shard_bytes=30_000, min_shard_bytes=500, group_bytes=10_000, group_rows=100)
    assert write_dataset(path, episodes, spec=SPEC, limits=limits).shards > 2
    return path


def stated(folder: Path) -> list[tuple[int, float]]:
    table = load(folder).episodes
    return list(zip(table["episode_id"].to_pylist(), table["return"].to_pylist(), strict=True))


def assert_returns(expected: list[tuple[int, float]], actual: list[tuple[int, float]]) -> None:
    assert [at for at, _ in expected] == [at for at, _ in actual]
    assert [total for _, total in actual] == pytest.approx([total for _, total in expected])


def first_rows(folder: Path) -> tuple[list[list[float]], bytes, list[float] | None]:
    batch = load(folder)[0].batch
    return batch.observations["x"][1].tolist(), batch.observations["image"][1].tobytes(), [0.0, 1.0]


def test_duckdb(folder: Path) -> None:
    """By SQL over all files."""
    source = f"'{folder}/data/**/*.parquet'"
    with duckdb.connect() as connection:
        query = f"select episode_id, sum(reward) from {source} group by episode_id order by episode_id"
        assert_returns(stated(folder), connection.execute(query).fetchall())
        columns = '"observation.x", "observation.image", "env_info.v"'
        row = connection.execute(f"select {columns} from {source} where episode_id = 0 and step = 1").fetchone()
    assert row is not None
    assert first_rows(folder) == ([list(part) for part in row[0]], row[1], list(row[2]))


def test_polars(folder: Path) -> None:
    """Fixed-size lists are its arrays."""
    frame = pl.read_parquet(f"{folder}/data/**/*.parquet")
    returns = frame.group_by("episode_id").agg(pl.col("reward").sum()).sort("episode_id")
    assert_returns(stated(folder), returns.rows())
    row = frame.filter((pl.col("episode_id") == 0) & (pl.col("step") == 1))
    names = ("observation.x", "observation.image", "env_info.v")
    assert first_rows(folder) == tuple(row[name].to_list()[0] for name in names)


def test_pandas(folder: Path) -> None:
    """One folder is one frame."""
    frame = pd.read_parquet(folder / "data")
    returns = frame.groupby("episode_id")["reward"].sum()
    assert_returns(stated(folder), list(zip(returns.index.tolist(), returns.tolist(), strict=True)))
    row = frame[(frame["episode_id"] == 0) & (frame["step"] == 1)].iloc[0]
    x = [list(part) for part in row["observation.x"]]
    assert first_rows(folder) == (x, row["observation.image"], list(row["env_info.v"]))


def test_pyarrow(folder: Path) -> None:
    """All shards have one schema."""
    table = pq.read_table(folder / "data")
    returns = table.group_by("episode_id").aggregate([("reward", "sum")]).sort_by("episode_id")
    actual = zip(returns["episode_id"].to_pylist(), returns["reward_sum"].to_pylist(), strict=True)
    assert_returns(stated(folder), list(actual))
    row = table.slice(1, 1).to_pylist()[0]
    assert first_rows(folder) == (row["observation.x"], row["observation.image"], row["env_info.v"])
    files = sorted((folder / "data").rglob("*.parquet"))
    assert 1 == len({pq.ParquetFile(file).schema_arrow.serialize().to_pybytes() for file in files})


def test_integers_and_bools_are_read_alike(tmp_path: Path) -> None:
    """Of every width, in lists too, up to the ends of their range, whose differences overflow."""
    ends = np.iinfo(np.int64)
    space = spaces.Dict(
        {
            "choice": spaces.Discrete(5, start=-2),
            "choices": spaces.MultiDiscrete([3, 4]),
            "bits": spaces.MultiBinary(3),
            "wide": spaces.Box(ends.min, ends.max, (2,), np.int64),
            "bytes": spaces.Box(0, 255, (4,), np.uint8),
        }
    )
    spec = EnvSpec(space, spaces.Discrete(3))
    whole = episode(0, 40, spec=spec)
    wide = np.where(np.arange(80).reshape(40, 2) % 3 == 0, ends.min, ends.max)
    whole = replace(whole, observations=(*whole.observations[:-1], wide))
    write_dataset(tmp_path / "out", [whole], spec=spec)
    expected = load(tmp_path / "out")[0].batch
    file = tmp_path / "out/data/chunk-00000/file-00000.parquet"
    with duckdb.connect() as connection:
        tables = [connection.sql(f"select * from '{file}'").to_arrow_table(), pl.read_parquet(file).to_arrow()]
    for table in (*tables, pq.read_table(file)):
        for key, values in expected.observations.items():
            assert values.tolist() == table[f"observation.{key}"].to_pylist()
        assert expected.actions.tolist() == table["action"].to_pylist()
        for name in ("terminated", "truncated"):
            assert [False] * 39 + [bool(getattr(expected, name)[0])] == table[name].to_pylist()
    assert {ends.min, ends.max} == set(expected.observations["wide"].flat)


def test_the_cards_patterns_find_the_files(folder: Path) -> None:
    """`datasets.load_dataset` follows them."""
    card = (folder / "README.md").read_text()
    patterns = [line.split("path: ")[1] for line in card.splitlines() if "path: " in line and ".parquet" in line]
    assert ["data/**/*.parquet", "meta/episodes/**/*.parquet"] == patterns
    found = [sorted(folder.glob(pattern)) for pattern in patterns]
    assert [path.name for path in found[0]] == [path.name for path in found[1]]
    assert len(found[0]) > 2
