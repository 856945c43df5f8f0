"""The reader: lazily, by episode, by slice; and what it says of broken datasets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.chunk import Chunk
from rollout_cli.dataset import CutLimits, Dataset, load
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.errors import DatasetFormatError
from tests.support.chunks import BOX_SPEC, episode
from tests.support.datasets import assert_same_batches, write_dataset

LIMITS = CutLimits(shard_bytes=4_000, min_shard_bytes=500, group_bytes=1_500, group_rows=20)
EPISODES = [episode(number, 3 + number % 30) for number in range(40)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "out", EPISODES, limits=LIMITS)
    return tmp_path / "out"


def batch_of(episodes: list[Chunk]) -> EpisodeBatch:
    return EpisodeBatch.from_chunks(BOX_SPEC, episodes)


@pytest.mark.parametrize("at", [slice(None), slice(3, 17), slice(-5, None), slice(2, 30, 7), slice(20, 4, -3)])
def test_a_slice_is_a_view_of_its_episodes(folder: Path, at: slice) -> None:
    """Also with steps, and backwards."""
    view = load(folder)[at]
    expected = EPISODES[at]
    assert isinstance(view, Dataset)
    assert len(expected) == len(view)
    assert_same_batches(EpisodeBatch.concatenate(*(batch_of([chunk]) for chunk in expected)), view.to_episode_batch())
    assert [int(chunk.numbers[0]) for chunk in expected] == view.episodes["episode_number"].to_pylist()


def test_slices_of_slices_and_negative_places(folder: Path) -> None:
    """As of any sequence."""
    dataset = load(folder)
    assert 12 == dataset[10:20][2].number
    assert 39 == dataset[-1].number
    with pytest.raises(IndexError):
        dataset[40]


def test_an_episode_has_its_facts_and_its_steps(folder: Path) -> None:
    """All from its own rows."""
    one = load(folder)[7]
    expected = batch_of([EPISODES[7]])
    assert (7, 7, 1007, 10) == (one.id, one.number, one.seed, len(one))
    assert (bool(expected.terminated[0]), bool(expected.truncated[0])) == (one.terminated, one.truncated)
    assert pytest.approx(float(expected.rewards.sum())) == one.total_reward
    assert expected.observations.tolist() == one.observations.tolist()
    assert expected.actions.tolist() == one.actions.tolist()
    assert expected.last_observations[0].tolist() == one.last_observation.tolist()
    assert expected.rewards.tolist() == one.rewards.tolist()


def test_iteration_gives_every_episode_once(folder: Path) -> None:
    """In order."""
    assert [len(chunk.rewards) for chunk in EPISODES] == [len(one) for one in load(folder)]


def test_only_an_episodes_own_row_groups_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening reads no data; one episode reads the one row group that it is in, and its neighbour none again."""
    groups: list[tuple[str, int]] = []
    original = pq.ParquetFile.read_row_group

    def counted(self: Any, group: int) -> pa.Table:
        groups.append(("steps" if "reward" in self.schema_arrow.names else "episodes", group))
        return original(self, group)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    dataset = load(folder)
    assert [] == groups
    assert 3 == len(dataset[0].rewards)
    assert 4 == len(dataset[1].rewards)
    assert [("steps", 0), ("episodes", 0)] == groups


def test_arrays_may_be_changed(folder: Path) -> None:
    """They are copies, not views of a file."""
    batch = load(folder)[0:1].to_episode_batch()
    for array in (batch.observations, batch.rewards, batch.actions, batch.last_observations, batch.lengths):
        array[...] = 0


def test_rows_that_no_episodes_file_states_are_ignored(folder: Path) -> None:
    """A kill between two renames leaves a data file without its record, or with more rows than that says."""
    max((folder / "meta" / "episodes").rglob("*.parquet")).unlink()
    dataset = load(folder)
    assert 0 < len(dataset) < 40
    assert_same_batches(batch_of(EPISODES[: len(dataset)]), dataset.to_episode_batch())


def test_an_empty_dataset_can_be_opened(tmp_path: Path) -> None:
    """It has no episode to read."""
    write_dataset(tmp_path / "out", [])
    dataset = load(tmp_path / "out")
    assert (0, 0) == (len(dataset), dataset.episodes.num_rows)
    with pytest.raises(ValueError, match="no episode"):
        dataset.to_episode_batch()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _fewer_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(0, 2), path)


def _other_columns(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.rename_columns([name.replace("reward", "gain") for name in table.column_names]), path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "is missing"),
        (_truncate, "not a file of this format"),
        (_fewer_rows, "has 2 rows"),
        (_other_columns, "reward"),
    ],
)
def test_a_broken_data_file_is_named(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    """A DatasetFormatError, whatever is wrong with it."""
    damage(folder / "data" / "chunk-00000" / "file-00000.parquet")
    with pytest.raises(DatasetFormatError, match=message):
        load(folder)[5].batch  # noqa: B018


def test_contradicting_step_types_are_noticed(folder: Path) -> None:
    """They are checked against lengths and flags."""
    path = folder / "data" / "chunk-00000" / "file-00000.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("step_type")
    pq.write_table(table.set_column(at, "step_type", pa.array([1] * table.num_rows, pa.uint8())), path)
    with pytest.raises(DatasetFormatError, match="step_types"):
        load(folder)[0:2].to_episode_batch()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: shutil.rmtree(path.parent), "not a dataset"),
        (lambda path: path.write_text("{"), "not valid JSON"),
        (lambda path: path.write_text("[]"), "does not describe"),
        (lambda path: path.write_text(json.dumps({"format": "rollout", "format_version": 99})), "version 99"),
        (lambda path: path.write_text(json.dumps({"format": "rollout"})), "format_version"),
        (lambda path: path.write_text(json.dumps({"format": "rollout", "format_version": 1})), "spaces"),
    ],
)
def test_a_broken_info_is_a_format_error(folder: Path, change: Callable[[Path], None], message: str) -> None:
    """With what is wrong, and exit code 5."""
    change(folder / "meta" / "info.json")
    with pytest.raises(DatasetFormatError, match=message) as caught:
        load(folder)
    assert 5 == caught.value.exit_code
