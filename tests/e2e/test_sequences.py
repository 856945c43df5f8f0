"""Observations of Sequence spaces: one column of lists, recorded, read, repeated and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import rollout_cli
from rollout_cli.episodes.spaces import space_leaves
from rollout_cli.errors import RolloutError, UnsupportedSpaceError
from rollout_cli.exporters.export import FORMATS
from rollout_cli.workers.checks import BadValueError
from rollout_cli.workers.rows.columns import Column
from tests.helpers.datasets import assert_same_data
from tests.helpers.envs import FaultyEnv
from tests.helpers.errors import raises
from tests.helpers.processes import called

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--env-kwargs", "space=lists", "--seed", "3", "--quiet")


class Counting:
    """Acts by the number of things in sight, for a batch of observations, which it checks."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        seen, at = observations["seen"], observations["at"]
        assert all(each.shape[1:] == (3,) and each.dtype == np.float32 for each in seen)
        assert all(each.dtype == np.int64 for each in at)
        counts = np.array([[len(one) / 100, len(two) / 100] for one, two in zip(seen, at, strict=True)])
        return counts.astype(np.float32), {}


def act(observation: Any) -> Any:
    """The same for one observation, as the environment gave it."""
    assert (tuple, np.ndarray) == (type(observation["seen"]), type(observation["at"]))
    return np.array([len(observation["seen"]) / 100, len(observation["at"]) / 100], np.float32)


def vector(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: FaultyEnv(space="lists")] * num_envs)


def collected(folder: Path, name: str, *words: str) -> Path:
    called("collect", *ENV, *words, "--output", name, cwd=folder)
    return folder / name


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected(
        tmp_path_factory.mktemp("lists"),
        "out",
        "--episodes",
        "40",
        "--policy",
        "tests.e2e.test_sequences:act",
    )


@pytest.mark.thorough
def test_rows_workers_and_resume_give_the_same_bytes(dataset: Path, tmp_path: Path) -> None:
    """One row, three rows in lockstep, two workers, and a run that is continued; it is repeated bit for bit."""
    batched = ("--policy", "tests.e2e.test_sequences:Counting")
    for words in (("--envs-per-worker", "3", "--workers", "1"), ("--workers", "2")):
        assert_same_data(dataset, collected(tmp_path, f"w{len(words)}", "--episodes", "40", *batched, *words))
    half = collected(tmp_path, "half", "--episodes", "25", *batched)
    called("collect", "--resume", "--episodes", "40", "--quiet", "--output", half, cwd=tmp_path)
    assert_same_data(dataset, half)
    assert (
        40
        == json.loads(called("replay", "--trust", dataset, "--all", "--json", cwd=tmp_path).stdout)[
            "identical"
        ]
    )
    called("verify", dataset)
    assert "observation.seen" in called("head", dataset, "--steps").stdout
    assert "observation.seen" in called("info", dataset).stdout


def test_readers(dataset: Path) -> None:
    """Arrays of arrays (k, *shape) in every reader of ours; lists in others."""
    loaded = rollout_cli.load(dataset)
    episode = loaded[1]
    seen, at = episode.observations["seen"], episode.observations["at"]
    assert (len(episode),) == seen.shape == at.shape
    assert {(np.dtype(np.float32), (3,))} == {(each.dtype, each.shape[1:]) for each in seen}
    assert {(np.dtype(np.int64), 1)} == {(each.dtype, each.ndim) for each in at}
    assert 1 < len({len(each) for each in seen})
    flat = loaded.transitions()[np.arange(len(loaded[0]), len(loaded[0]) + len(episode))]
    follow = [*seen[1:], episode.last_observation["seen"]]
    assert repr([*seen]) == repr([*flat["observations"]["seen"]])
    assert repr(follow) == repr([*flat["next_observations"]["seen"]])
    assert repr(follow) == repr([*episode.next_observations["seen"]])
    batch = next(iter(loaded.iter_batches(4)))
    assert (4,) == batch["observations"]["seen"].shape
    padded = loaded.to_episode_batch().padded_observations["seen"]
    assert all(each is None or each.shape[1:] == (3,) for each in padded.ravel())
    rows = duckdb.execute(
        f"select \"observation.seen\" from '{dataset}/data/**/*.parquet' where episode_id = 1"
    ).fetchall()
    assert [each.tolist() for each in seen] == [[[*item] for item in row] for (row,) in rows]


def test_next_observations_are_verified(tmp_path: Path) -> None:
    """The column of lists is compared with what followed."""
    called("verify", collected(tmp_path, "out", "--episodes", "5", "--next-observation"))


def test_exports(dataset: Path, tmp_path: Path) -> None:
    """Hugging Face's Parquet holds them; all others refuse by name, and so does a flat form."""
    loaded = rollout_cli.load(dataset)
    rollout_cli.export(loaded, "hf", tmp_path / "hf")
    rows = duckdb.execute(f"select \"observation.at\" from '{tmp_path}/hf/data/*.parquet'").fetchall()
    ours = [each.tolist() for episode in loaded for each in episode.observations["at"]]
    assert ours == [row for (row,) in rows]
    for name in FORMATS.keys() - {"hf"}:
        target = tmp_path / f"x/case-v0{(*FORMATS[name].suffixes, '')[0]}"
        with raises(UnsupportedSpaceError, "format-space", name):
            rollout_cli.export(loaded, name, target)
        with raises(RolloutError, "space-not-flat"):
            rollout_cli.export(loaded, name, target, flatten=True)


def test_vector_environments_are_refused(tmp_path: Path) -> None:
    """Those of their own; the hint says what steps copies."""
    words = ("--env", "tests.e2e.test_sequences:vector", "--vectorization", "native", "--episodes", "1")
    ran = called("collect", *words, "--envs-per-worker", "2", "--output", tmp_path / "out", code=3)
    assert "[space-unsupported]" in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    ("value", "found"),
    [((np.zeros(2, np.float32),), "float32(2,)"), (("abc",), "str 'abc'"), ((1,), "int 1")],
)
def test_elements_that_do_not_fit(value: Any, found: str) -> None:
    """The message has the element, and what was expected."""
    (leaf,) = space_leaves(spaces.Sequence(spaces.Box(-1, 1, (3,), np.float32)))
    with raises(BadValueError, "value-shape", found, "float32(3,)"):
        Column(leaf, "the observation").recording()(value)


def test_what_is_recorded_is_not_changed_by_others() -> None:
    """Neither by the environment, nor by a policy that edits what it gets."""
    (leaf,) = space_leaves(spaces.Sequence(spaces.Box(-1, 1, (1,), np.float32), stack=True))
    column, given = Column(leaf, "the observation"), np.ones((2, 1), np.float32)
    seen = column.recording()(given)
    given[:] = seen[:] = 0
    assert [[1.0], [1.0]] == column.samples[0].tolist()
    with pytest.raises(ValueError, match="read-only"):
        column.samples[0][:] = 0
