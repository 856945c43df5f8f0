"""`load`: lazy, selectable, picklable; and a clear error where files are missing, damaged, or no files."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.dataset import parquet, reader, rows
from rollout_cli.dataset.layout import REPLACED, read_info
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import DatasetFormatError, StorageError
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.chunks import episode
from tests.helpers.damage import (
    INFO,
    ORIGIN_KEYS,
    data,
    episodes,
    flip,
    make_fifo,
    make_folder,
    set_footer,
    set_json,
)
from tests.helpers.errors import raises
from tests.helpers.writing import RICH_SPEC, SMALL, open_writer, rich_episodes, wait_for_writes, write_dataset


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of many segments of several row groups."""
    path = tmp_path_factory.mktemp("reader") / "out"
    assert write_dataset(path, rich_episodes(), spec=RICH_SPEC, limits=SMALL).segments > 5
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


@pytest.fixture
def dataset(pristine: Path) -> Dataset:
    return load(pristine)


def test_an_episode_states_its_facts(dataset: Dataset) -> None:
    """Those of its row of `meta/episodes`; number 61 was skipped, so ids and numbers differ after it."""
    chunk = rich_episodes()[70]
    one = dataset[70]
    assert (70, 71, env_seed(0, 71)) == (one.id, one.number, one.seed)
    assert (chunk.n_steps, bool(chunk.terminated[0]), bool(chunk.truncated[0])) == (
        len(one),
        one.terminated,
        one.truncated,
    )
    assert float(chunk.rewards.sum()) == pytest.approx(one.total_reward)
    assert f"<Episode 70: {len(one)} steps, return {one.total_reward}>" == repr(one)
    assert "data_row_index" in one.facts
    assert chunk.observations[2].tolist() == one.observations["mission"].tolist()
    assert chunk.actions[0].tolist() == one.actions[0].tolist()
    assert chunk.rewards.tolist() == one.rewards.tolist()
    assert chunk.last_observations[1][0].tolist() == one.last_observation["frames"].tolist()
    assert chunk.last_observations[2][0] == one.last_observation["mission"]


def test_a_dataset_describes_itself(dataset: Dataset, pristine: Path) -> None:
    assert (pristine, RICH_SPEC) == (dataset.path, dataset.env_spec)
    assert f"<Dataset {pristine}: 119 episodes>" == repr(dataset)
    assert json.loads((pristine / INFO).read_text()) == dataset.info
    assert [chunk.n_steps for chunk in rich_episodes()] == dataset.episodes["length"].to_pylist()
    assert [3, 1] == dataset[[3, 1]].episodes["episode_id"].to_pylist()


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (119, IndexError),
        (-120, IndexError),
        ([0, 119], IndexError),
        ([True, False], IndexError),
        ([0.5], TypeError),
        (np.ma.MaskedArray(np.ones(119, bool), np.arange(119) == 1), TypeError),
        ("first", TypeError),
        ([[0, 1], [2, 3]], TypeError),
        (None, TypeError),
    ],
)
def test_a_selection_that_does_not_fit_is_refused(dataset: Dataset, at: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        dataset[at]


def test_places_count_from_either_end_in_any_integer(dataset: Dataset) -> None:
    assert 118 == dataset[-1].id == dataset[np.int64(118)].id
    assert [118] == dataset[np.array([-1], np.int8)].episodes["episode_id"].to_pylist()


@pytest.mark.parametrize("at", [[], slice(5, 5), np.zeros(119, bool)])
def test_an_empty_selection_has_no_batch(dataset: Dataset, at: Any) -> None:
    """It has no episode to iterate over either."""
    empty = dataset[at]
    assert 0 == len(empty) == len(list(empty)) == empty.episodes.num_rows
    with pytest.raises(ValueError, match="no episode"):
        empty.to_episode_batch()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the row groups that are decoded, as they are."""
    found: list[tuple[str, int]] = []
    original = parquet.RowReader.decoded

    def counted(self: parquet.RowReader, path: Path, group: int, columns: parquet.Columns) -> Any:
        found.append((str(path), group))
        return original(self, path, group, columns)

    monkeypatch.setattr(parquet.RowReader, "decoded", counted)
    return found


def test_nothing_is_decoded_before_it_is_asked_for(pristine: Path, reads: list[tuple[str, int]]) -> None:
    """Loading, slicing, facts and pickling read no row group; one episode reads its own."""
    part = pickle.loads(pickle.dumps(load(pristine)[10:40]))
    assert [chunk.n_steps for chunk in rich_episodes()[10:40]] == [len(one) for one in part]
    assert [] == reads
    part[0].rewards  # noqa: B018 - reading is the point
    assert 1 == len([path for path, _ in reads if "/data/" in path])


def test_iterating_decodes_each_row_group_once(pristine: Path, reads: list[tuple[str, int]]) -> None:
    """And not once an episode."""
    assert [chunk.n_steps for chunk in rich_episodes()] == [len(one.rewards) for one in load(pristine)]
    assert sorted(set(reads)) == sorted(reads)


def test_random_access_keeps_what_fits_into_its_memory(
    pristine: Path, reads: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no memory at all, each read decodes anew, and the values are the same."""
    monkeypatch.setattr(parquet, "CACHE_BYTES", 0)
    dataset = load(pristine)
    for place in (3, 50, 90, 3, 50, 90):
        assert rich_episodes()[place].rewards.tolist() == dataset[place].rewards.tolist()
    assert len(set(reads)) < len(reads)


# Damage.


def test_fewer_episodes_than_stated_are_a_warning(folder: Path) -> None:
    """The rest is read; where more are there than stated, as of a run that goes on, nothing is amiss."""
    last = max((folder / "meta/episodes").rglob("*.parquet"))
    last.unlink()
    with pytest.warns(UserWarning, match=r"expected 119 by info\.json; .*: rollout verify"):
        dataset = load(folder)
    expected = EpisodeBatch.from_chunks(RICH_SPEC, list(rich_episodes()[:5]))
    assert expected.rewards.tolist() == dataset[:5].to_episode_batch().rewards.tolist()
    info = json.loads((folder / INFO).read_text())
    (folder / INFO).write_text(json.dumps(info | {"episodes": 0, "status": "collecting"}))
    assert len(dataset) == len(load(folder))


def test_a_run_that_ends_while_its_dataset_is_loaded_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last file may have come after the files were listed, and before info.json was read."""
    with open_writer(tmp_path, limits=SMALL) as writer:
        for n in range(20):
            writer.write(episode(n, 60))
        writer.flush()
        wait_for_writes(writer)
        before = len(load(tmp_path))

        def slow_read_info(root: Path) -> DatasetInfo:
            monkeypatch.setattr(reader, "read_info", read_info)
            for n in range(20, 24):
                writer.write(episode(n, 60))
            writer.close(status="complete")
            return read_info(root)

        monkeypatch.setattr(reader, "read_info", slow_read_info)
        assert (20, 24) == (before, len(load(tmp_path)))


def test_an_episodes_file_in_the_place_of_another_is_named_at_once(folder: Path) -> None:
    """Its episodes are in another data file than its own name says."""
    shutil.copy(folder / episodes(1), folder / episodes(2))
    with raises(DatasetFormatError, "file-misplaced") as caught:
        load(folder)
    assert str(folder / episodes(2)) in caught.value.message


def test_a_data_file_in_the_place_of_another_is_named_when_it_is_read(folder: Path) -> None:
    shutil.copy(folder / data(1), folder / data(2))
    with raises(DatasetFormatError, "file-of-other-run", "first_number"):
        load(folder).to_episode_batch()


@pytest.mark.parametrize("file", [data(1), episodes(1)])
@pytest.mark.parametrize("key", ORIGIN_KEYS)
def test_a_file_that_does_not_say_where_it_belongs_is_refused(folder: Path, file: str, key: str) -> None:
    set_footer(folder / file, key, None)
    with raises(DatasetFormatError, "file-of-other-run", key):
        load(folder).to_episode_batch()


def equal_episodes(seed: int, count: int = 60) -> list[Chunk]:
    """Return episodes of one length, which a seed alone tells from others."""
    return [replace(episode(100 * seed + n, 20), numbers=np.array([n])) for n in range(count)]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_dataset_that_was_replaced_is_an_error_and_never_wrong_rows(
    tmp_path: Path, *, is_open: bool
) -> None:
    """A reader that had opened a file has the old one's row groups in its memory at most."""
    write_dataset(tmp_path, equal_episodes(1), limits=SMALL)
    dataset, expected = load(tmp_path), load(tmp_path)[0].rewards.tolist()
    if is_open:
        assert expected == dataset[0].rewards.tolist()
    write_dataset(tmp_path, equal_episodes(2), limits=SMALL, overwrite=True)
    if is_open:
        assert expected == dataset[0].rewards.tolist()
    for place in range(0 if not is_open else 9, 60):  # The first 50 rows are in memory.
        with raises(DatasetFormatError, "file-of-other-run") as caught:
            dataset[place].rewards  # noqa: B018 - reading is the point
        assert caught.value.hint


@pytest.mark.parametrize("when", ["before a file is read", "after that", "while it is loaded"])
def test_a_dataset_that_was_replaced_by_one_of_the_same_fingerprint_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The same run, but for `--keep`: its first episode is the same, and so is all that a footer states."""

    def replace_it() -> None:
        write_dataset(tmp_path, equal_episodes(1, 40)[::2], limits=SMALL, overwrite=True)

    def slow_read_info(root: Path) -> DatasetInfo:
        info = read_info(root)
        replace_it()
        return info

    write_dataset(tmp_path, equal_episodes(1, 20), limits=SMALL)
    if when == "while it is loaded":
        monkeypatch.setattr(reader, "read_info", slow_read_info)
    else:
        dataset = load(tmp_path)
        if when == "after that":
            assert 20 == len(dataset[0].rewards)
        replace_it()
    with raises(DatasetFormatError, "dataset-replaced") as caught:
        load(tmp_path) if when == "while it is loaded" else dataset[3].rewards
    assert caught.value.hint


def test_a_dataset_that_is_replaced_while_its_files_are_listed_is_said_to_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no folder that lacks permissions."""
    original = Path.iterdir

    def slow_iterdir(path: Path) -> Iterator[Path]:
        if path == folder / "meta" / "episodes":
            shutil.move(folder / "meta", folder / REPLACED / "meta")
        return original(path)

    monkeypatch.setattr(Path, "iterdir", slow_iterdir)
    with raises(DatasetFormatError, "dataset-being-replaced"):
        load(folder)


def test_a_file_whose_row_groups_are_others_is_not_read_by_its_old_ones(tmp_path: Path) -> None:
    """The same run, with another size of its row groups."""
    write_dataset(tmp_path, equal_episodes(1), limits=replace(SMALL, group_rows=30))
    dataset, times = load(tmp_path), read_info(tmp_path)["times"]
    assert 20 == len(dataset[0].rewards)
    write_dataset(tmp_path, equal_episodes(1), limits=SMALL, overwrite=True)
    set_json(tmp_path / INFO, times=times)
    with raises(DatasetFormatError, "dataset-replaced"):
        dataset[4].rewards  # noqa: B018 - as above


def test_a_reader_goes_on_while_its_dataset_grows(tmp_path: Path) -> None:
    """Each flush replaces the last files by longer ones; after a kill a data file is ahead of its episodes file."""
    chunks = [episode(n, 60) for n in range(40)]
    with open_writer(tmp_path, flush_seconds=100.0) as writer:
        for chunk in chunks[:20]:
            writer.write(chunk)
        writer.flush()
        assert writer._build is not None
        writer._build.queue.wait()
        dataset = load(tmp_path)
        assert chunks[0].rewards.tolist() == dataset[0].rewards.tolist()
        older = (tmp_path / episodes(0)).read_bytes()
        for chunk in chunks[20:]:
            writer.write(chunk)
        writer.close(status="complete")
    for at in range(len(dataset)):
        assert chunks[at].rewards.tolist() == dataset[at].rewards.tolist()
    (tmp_path / episodes(0)).write_bytes(older)
    with pytest.warns(UserWarning, match="expected 40"):
        ahead = load(tmp_path)
    assert len(dataset) == len(ahead) < 40
    assert chunks[5].rewards.tolist() == ahead[5].rewards.tolist()


HARMS: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", Path.unlink, "file-missing"),
    ("empty", lambda path: path.write_bytes(b""), "parquet-unreadable"),
    ("cut short", lambda path: path.write_bytes(path.read_bytes()[:500]), "parquet-unreadable"),
    ("a FIFO", make_fifo, "not-a-regular-file"),
    ("a folder", make_folder, "not-a-regular-file"),
]


@pytest.mark.parametrize(("name", "harm", "code"), HARMS, ids=[one[0] for one in HARMS])
def test_a_damaged_data_file_is_named_when_it_is_read(
    folder: Path, name: str, harm: Callable[[Path], object], code: str
) -> None:
    """And not before: episodes of other files are read."""
    path = folder / data(1)
    harm(path)
    dataset = load(folder)
    assert rich_episodes()[0].rewards.tolist() == dataset[0].rewards.tolist()
    with raises(DatasetFormatError, code, path):
        dataset.to_episode_batch()


@pytest.mark.parametrize(("name", "harm", "problem"), HARMS[1:], ids=[one[0] for one in HARMS[1:]])
@pytest.mark.parametrize("file", [episodes(1), INFO])
def test_damaged_metadata_is_named_at_once(
    folder: Path, file: str, name: str, harm: Callable[[Path], object], problem: str
) -> None:
    harm(folder / file)
    with pytest.raises(DatasetFormatError) as caught:
        load(folder)
    assert str(folder / file) in caught.value.message


def test_a_flipped_bit_is_found_when_it_is_read(folder: Path) -> None:
    """Each page has a checksum."""
    flip(folder / data(0), 200)
    with raises(DatasetFormatError, "parquet-unreadable"):
        load(folder).to_episode_batch()


@pytest.mark.parametrize("key", ["spaces", "max_episode_length"])
def test_an_info_that_describes_no_spaces_is_refused(folder: Path, key: str) -> None:
    info = json.loads((folder / INFO).read_text())
    del info[key]
    (folder / INFO).write_text(json.dumps(info))
    with raises(DatasetFormatError, "info-value", "info.json"):
        load(folder)


def test_a_folder_that_cannot_be_read_is_a_storage_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read all, so the disk refuses here."""
    original = Path.iterdir

    def refuse(path: Path) -> Any:
        if path.name == "chunk-00000":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with raises(StorageError, "read-failed") as caught:
        load(folder)
    assert "permissions" in caught.value.hint


def test_too_little_memory_is_a_storage_error_with_advice(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(rows, "decode_chunk", refuse)
    with raises(StorageError, "out-of-memory") as caught:
        dataset.to_episode_batch()
    assert "dataset[a:b]" in caught.value.hint


def test_no_dataset_is_named(tmp_path: Path) -> None:
    with raises(DatasetFormatError, "not-a-dataset"):
        load(tmp_path)
    with raises(DatasetFormatError, "not-a-dataset"):
        load(tmp_path / "missing")


# Some columns.


def test_an_episodes_values_are_read_without_its_other_columns(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards, actions and observations are those of the whole batch; no column of another field is decoded."""
    asked: list[parquet.Columns] = []
    original = parquet.RowReader.decoded

    def noted(self: parquet.RowReader, path: Path, group: int, columns: parquet.Columns) -> Any:
        asked.append(columns)
        return original(self, path, group, columns)

    monkeypatch.setattr(parquet.RowReader, "decoded", noted)
    one = load(pristine)[70]
    rewards, actions, seen, last = one.rewards, one.actions, one.observations, one.last_observation
    leaves = tuple(f"{{}}.{key}" for key in ("camera", "frames", "mission"))
    assert asked == [
        ("reward",),
        ("action.0", "action.1"),
        tuple(leaf.format("observation") for leaf in leaves),
        tuple(leaf.format("last_observation") for leaf in leaves),
    ]
    assert rewards.tolist() == one.batch.rewards.tolist()
    for key in ("camera", "frames", "mission"):
        assert seen[key].dtype == one.batch.observations[key].dtype
        assert seen[key].tolist() == one.batch.observations[key].tolist()
        assert np.asarray(last[key]).tolist() == np.asarray(one.batch.last_observations[key][0]).tolist()
    assert [leaf.tolist() for leaf in actions] == [leaf.tolist() for leaf in one.batch.actions]


def test_the_facts_of_an_episode_cannot_be_changed(dataset: Dataset) -> None:
    with pytest.raises(TypeError):
        dataset[0].facts["length"] = 3  # type: ignore[index]


def test_threads_read_one_dataset_at_once(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for a few row groups, so that each thread throws out what another one has read."""
    monkeypatch.setattr(parquet, "CACHE_BYTES", 20_000)
    dataset, expected = load(pristine), [chunk.rewards.tolist() for chunk in rich_episodes()]

    def read(seed: int) -> list[int]:
        places = np.random.default_rng(seed).integers(0, len(expected), 150).tolist()
        return [place for place in places if dataset[place].rewards.tolist() != expected[place]]

    with ThreadPoolExecutor(8) as pool:
        assert [[]] * 8 == list(pool.map(read, range(8)))
