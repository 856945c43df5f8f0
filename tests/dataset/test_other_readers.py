"""DuckDB, polars, pandas, pyarrow and Hugging Face's `datasets` read plain columns, and agree with `load`."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.dataset.reader import load
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.exporters.export import export
from rollout_cli.reports.suite import write_suite_card
from tests.helpers.batches import assert_same_batches
from tests.helpers.chunks import episode
from tests.helpers.writing import write_dataset

SPEC = EnvSpec(
    spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "x": spaces.Box(-1, 1, (2, 3)),
            "t": spaces.Text(4),
        }
    ),
    spaces.Box(-1, 1, (2,), np.float64),
)
NAMES = ("observation.x", "observation.image", "observation.t", "env_info.v", "env_info.w")


def info(number: int, step: int) -> dict[str, Any]:
    return {"v": np.array([number, step], np.float32)} if step % 2 else {"w": step}


@pytest.fixture
def hub_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "out"
    episodes = [episode(n, 2 + n % 20, spec=SPEC, env_info=info) for n in range(60)]
    assert (
        write_dataset(path, episodes, spec=SPEC, limits=SizeLimits(segment_rows=200, group_rows=70)).segments
        > 2
    )
    return path


def returns(folder: Path) -> dict[int, float]:
    table = load(folder).episodes
    return dict(zip(table["episode_id"].to_pylist(), table["return"].to_pylist(), strict=True))


def row(folder: Path) -> tuple[Any, ...]:
    """Return the values of `NAMES` in the second step of episode 33."""
    seen = load(folder)[33].observations
    return seen["x"][1].tolist(), seen["image"][1].tobytes(), seen["t"][1], [33.0, 1.0], None


def test_duckdb(folder: Path) -> None:
    """By SQL over all files, with the observation after each step as the documents give it."""
    source = f"'{folder}/data/**/*.parquet'"
    columns = ", ".join(f'"{name}"' for name in NAMES)
    with duckdb.connect() as connection:
        sums = connection.execute(
            f"select episode_id, sum(reward) from {source} group by episode_id"
        ).fetchall()
        found = connection.execute(
            f"select {columns} from {source} where episode_id = 33 and step = 1"
        ).fetchone()
        following = connection.execute(
            f"""select coalesce(lead("observation.t") over (partition by episode_id order by step),
                "last_observation.t") from {source} join (select episode_id, "last_observation.t"
                from '{folder}/meta/episodes/**/*.parquet') using (episode_id) order by episode_id, step"""
        ).fetchall()
    assert returns(folder) == pytest.approx(dict(sums))
    assert found is not None
    assert row(folder) == (list(map(list, found[0])), *found[1:3], list(found[3]), found[4])
    assert load(folder).to_episode_batch().next_observations["t"].tolist() == [text for (text,) in following]


def test_polars(folder: Path) -> None:
    """Fixed-size lists are its arrays."""
    frame = pl.read_parquet(f"{folder}/data/**/*.parquet")
    assert returns(folder) == pytest.approx(
        dict(frame.group_by("episode_id").agg(pl.col("reward").sum()).rows())
    )
    found = frame.filter((pl.col("episode_id") == 33) & (pl.col("step") == 1))
    assert row(folder) == tuple(found[name].to_list()[0] for name in NAMES)


def test_pandas(folder: Path) -> None:
    """One folder is one frame."""
    frame = pd.read_parquet(folder / "data")
    assert returns(folder) == pytest.approx(frame.groupby("episode_id")["reward"].sum().to_dict())
    found = frame[(frame["episode_id"] == 33) & (frame["step"] == 1)].iloc[0]
    x, image, text, v, w = (found[name] for name in NAMES)
    assert row(folder) == ([list(part) for part in x], image, text, list(v), None if pd.isna(w) else w)


def test_pyarrow(folder: Path) -> None:
    """All segments have one schema, of plain types."""
    table = pq.read_table(folder / "data")
    sums = table.group_by("episode_id").aggregate([("reward", "sum")])
    assert returns(folder) == pytest.approx(
        dict(zip(*(sums[name].to_pylist() for name in sums.column_names), strict=True))
    )
    found = next(one for one in table.to_pylist() if (one["episode_id"], one["step"]) == (33, 1))
    assert row(folder) == tuple(found[name] for name in NAMES)
    files = sorted((folder / "data").rglob("*.parquet"))
    assert 1 == len({pq.ParquetFile(file).schema_arrow.serialize().to_pybytes() for file in files})
    assert not [field for field in table.schema if isinstance(field.type, pa.ExtensionType)]


@pytest.mark.filterwarnings("default")  # The library's own, and those of its dependencies.
@pytest.mark.usefixtures("hub_of_nobody")
def test_hugging_face_datasets(folder: Path, tmp_path: Path) -> None:
    """`load_dataset(folder)` finds both tables by the card, with the types of their columns."""
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    steps = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path))
    episodes = datasets.load_dataset(str(folder), "episodes", split="train", cache_dir=str(tmp_path))
    assert returns(folder) == pytest.approx(
        dict(zip(episodes["episode_id"], episodes["return"], strict=True))
    )
    assert load(folder).to_episode_batch().rewards.tolist() == list(steps["reward"])
    found = next(one for one in steps if (one["episode_id"], one["step"]) == (33, 1))
    assert row(folder) == tuple(found[name] for name in NAMES)


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("hub_of_nobody")
def test_hugging_face_datasets_of_one_name(tmp_path: Path) -> None:
    """A dataset of the same name, or a new one in the place of another, is not read from the copy of that one."""
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    for number, place in enumerate(("a", "b", "b")):
        write_dataset(tmp_path / place / "train", [episode(number, 3)], overwrite=True)
        exported = tmp_path / "exports" / str(number) / "train"
        export(load(tmp_path / place / "train"), "hf", exported)
        for path in (tmp_path / place / "train", exported):
            for name, column in (("default", "reward"), ("episodes", "return")):
                read = datasets.load_dataset(
                    str(path), name, split="train", cache_dir=str(tmp_path / "copies")
                )
                expected = load(tmp_path / place / "train")
                rewards = expected[0].rewards if name == "default" else [expected[0].total_reward]
                assert list(rewards) == list(read[column])


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("hub_of_nobody")
def test_hugging_face_datasets_of_a_suite(tmp_path: Path) -> None:
    """Each member is a configuration, and so are its episodes."""
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    for number, name in enumerate(("medium", "expert")):
        write_dataset(tmp_path / "suite" / name, [episode(number, 3 + number)])
    write_suite_card(tmp_path / "suite", title="Two")
    read = partial(
        datasets.load_dataset, str(tmp_path / "suite"), split="train", cache_dir=str(tmp_path / "c")
    )
    for name, length in (("medium", 3), ("expert", 4)):
        assert length == len(read(name))
        assert [length] == list(read(f"{name}-episodes")["length"])


def test_a_card_differs_from_that_of_another_dataset(tmp_path: Path) -> None:
    """In its configurations, by which `datasets` knows its copies: whatever else is the same."""
    cards = []
    for number in range(2):
        write_dataset(tmp_path / str(number), [episode(number, 3)])
        export(load(tmp_path / str(number)), "hf", tmp_path / f"e{number}")
        cards += [(tmp_path / name / "README.md").read_text() for name in (str(number), f"e{number}")]
    configs = [re.findall(r"config_name: (\w+)[^-]*description: (.*)", card) for card in cards]
    assert 8 == len({config for found in configs for config in found})


def test_the_cards_patterns_find_the_files(folder: Path) -> None:
    """`datasets.load_dataset` follows them, where it is installed."""
    card = (folder / "README.md").read_text()
    patterns = [
        line.split("path: ")[1] for line in card.splitlines() if "path: " in line and ".parquet" in line
    ]
    assert ["data/**/*.parquet", "meta/episodes/**/*.parquet"] == patterns
    data, episodes = ([path.name for path in sorted(folder.glob(pattern))] for pattern in patterns)
    assert data == episodes
    assert len(data) > 2


def test_the_cache_of_the_hugging_face_hub_is_read(folder: Path, tmp_path: Path) -> None:
    """There each file is a link from a snapshot to a blob."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b2c"
    blobs.mkdir()
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        shutil.copy(path, blobs / f"{number:040x}")
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / f"{number:040x}", link.parent))
    assert_same_batches(load(folder).to_episode_batch(), load(snapshot).to_episode_batch())
    assert [] == verify_dataset(snapshot).faults
    (tmp_path / "link").symlink_to(snapshot)
    assert_same_batches(load(folder)[3:9].to_episode_batch(), load(tmp_path / "link")[3:9].to_episode_batch())


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
        tables = [
            connection.sql(f"select * from '{file}'").to_arrow_table(),
            pl.read_parquet(file).to_arrow(),
        ]
    for table in (*tables, pq.read_table(file)):
        for key, values in expected.observations.items():
            assert values.tolist() == table[f"observation.{key}"].to_pylist()
        assert expected.actions.tolist() == table["action"].to_pylist()
        for name in ("terminated", "truncated"):
            assert [False] * 39 + [bool(getattr(expected, name)[0])] == table[name].to_pylist()
    assert {ends.min, ends.max} == set(expected.observations["wide"].flat)
