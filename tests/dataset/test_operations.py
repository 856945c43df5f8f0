"""Operations on datasets: what they write verifies, has the values that there were, and leaves the source alone."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rollout_cli import convert_dataset, filter_dataset, join_datasets, relabel_dataset, split_dataset
from rollout_cli.dataset.reader import Dataset, Episode, load
from rollout_cli.dataset.rewrite import Edited
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.store import FileStore
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import DatasetExistsError, DatasetFormatError, UsageError, UserCodeError
from rollout_cli.run.compare import diff
from tests.helpers.batches import assert_same_batches, assert_same_info_values, assert_same_steps
from tests.helpers.damage import episodes, set_values
from tests.helpers.datasets import info_of
from tests.helpers.errors import raises
from tests.helpers.thorough import usually
from tests.helpers.writing import (
    RICH_SPEC,
    Killed,
    QuickFiles,
    all_files,
    hidden_files,
    rich_episodes,
    write_dataset,
)

FILES = SizeLimits(segment_rows=600, group_rows=150)
"""Three segments of some row groups."""


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the disk's power away."""
    monkeypatch.setattr(FileStore, "sync", QuickFiles.sync)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "d"
    write_dataset(path, rich_episodes(), spec=RICH_SPEC, limits=FILES)
    return path


@pytest.fixture
def dataset(made: Path) -> Iterator[Dataset]:
    """A dataset of 119 episodes, no byte of which a test may change."""
    before = all_files(made)
    yield load(made)
    assert before == all_files(made)


def written(edited: Edited) -> Dataset:
    """Return the dataset that an operation has written."""
    report = verify_dataset(edited.path)
    assert ([], []) == (report.faults, report.notes)
    found = load(edited.path)
    info = info_of(edited.path)
    assert (edited.episodes, edited.steps) == (info["episodes"], info["steps"])
    assert edited.episodes == len(found)
    assert edited.operation == info["derived"][-1]["operation"]
    assert (edited.sources, "complete", True) == (len(info["sources"]), info["status"], edited.written)
    return found


def by_number(dataset: Dataset) -> Dataset:
    return dataset[np.argsort(dataset.episodes["episode_number"].to_numpy())]


def test_a_filter_that_keeps_all_changes_no_value(dataset: Dataset, tmp_path: Path) -> None:
    same = written(filter_dataset(dataset, tmp_path / "d", "true"))
    assert diff(dataset, same) is None
    assert_same_batches(dataset.to_episode_batch(), same.to_episode_batch())


def test_a_filter(dataset: Dataset, tmp_path: Path) -> None:
    """The expression is recorded; one that is true of none is refused, and nothing is written."""
    kept = written(filter_dataset(dataset, tmp_path / "d", "length > 12"))
    assert {"keep": "length > 12"} == info_of(tmp_path / "d")["derived"][0]["options"]
    assert diff(dataset.filter("length > 12"), kept) is None
    with raises(UsageError, "no-episode-matches"):
        filter_dataset(dataset, tmp_path / "none", "length > 1000")
    assert not (tmp_path / "none").exists()


def test_a_split_and_its_merge(dataset: Dataset, tmp_path: Path) -> None:
    """Each episode is in one part; merged they are what there was. The seed, not the order, decides."""
    parts = split_dataset(dataset, tmp_path, {"train": 0.75, "dev": 0.05, "test": 0.2}, seed=3)
    train, dev, test = (written(parts[name]) for name in ("train", "dev", "test"))
    assert (89, 6, 24) == (len(train), len(dev), len(test))
    merged = written(join_datasets([test, train, dev], tmp_path / "d"))
    assert diff(dataset, by_number(merged)) is None
    again = split_dataset(dataset[::-1], tmp_path / "again", {"train": 0.75, "test": 0.25}, seed=3)
    assert diff(train, by_number(load(again["train"].path))) is None
    other = split_dataset(dataset, tmp_path / "other", {"train": 0.75, "test": 0.25}, seed=4)
    assert diff(train, load(other["train"].path)) is not None


@pytest.mark.parametrize(
    ("parts", "code", "value"),
    [
        ({}, "parts-option", "''"),
        ({"train": 0.5, "test": 0.4}, "parts-option", "'train=0.5,test=0.4'"),
        ({"train": 1.5, "test": -0.5}, "parts-option", "test=-0.5"),
        ({"../train": 0.5, "test": 0.5}, "parts-option", "../train"),
        ({"train": 0.999, "test": 0.001}, "part-empty", "test"),
        ({"a": float("nan")}, "parts-option", "a=nan"),
    ],
)
def test_parts_that_are_none(dataset: Dataset, tmp_path: Path, parts: Any, code: str, value: str) -> None:
    with raises(UsageError, code, value):
        split_dataset(dataset, tmp_path / "d", parts)
    assert not (tmp_path / "d").exists()


def test_no_part_is_written_where_one_cannot_be(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "note").touch()
    with raises(DatasetExistsError, "folder-not-empty"):
        split_dataset(dataset, tmp_path, {"train": 0.5, "test": 0.5})
    assert not (tmp_path / "train").exists()


def test_next_observations_come_and_go(dataset: Dataset, tmp_path: Path) -> None:
    """There and back again the values are the same."""
    wide = written(convert_dataset(dataset, tmp_path / "wide", next_observation=True))
    assert any(name.startswith("next_observation") for name in info_of(tmp_path / "wide")["features"])
    assert diff(dataset, wide) is None
    narrow = written(convert_dataset(wide, tmp_path / "narrow", next_observation=False))
    assert diff(dataset, narrow) is None
    assert info_of(dataset.path)["features"] == info_of(tmp_path / "narrow")["features"]


def test_infos_are_left_out(dataset: Dataset, tmp_path: Path) -> None:
    """With their columns, by a glob or a group; those without a column too."""
    edited = convert_dataset(dataset, tmp_path / "d", drop_info=["agent_info.*", "te*t", "rare", "late"])
    found = written(edited).to_episode_batch()
    assert_same_steps(dataset.to_episode_batch(), found)
    assert ([], ["grid", "x"], ["grid", "x"]) == (
        list(found.agent_infos),
        sorted(found.env_infos),
        sorted(found.episode_infos),
    )
    assert "env_info.text" not in info_of(tmp_path / "d")["features"]
    with raises(UsageError, "info-unknown", "nothing"):
        convert_dataset(dataset, tmp_path / "none", drop_info=["x", "nothing"])


def test_sizes_change(dataset: Dataset, tmp_path: Path) -> None:
    """And are kept by what is made of it later."""
    edited = convert_dataset(dataset, tmp_path / "d", segment_rows=500, segment_bytes=10**6, group_rows=100)
    assert diff(dataset, written(edited)) is None
    files = [pq.ParquetFile(path).metadata for path in sorted((tmp_path / "d/data").rglob("*.parquet"))]
    assert [3, 500] == [len(files), max(file.num_rows for file in files) // 100 * 100 + 100]
    assert 100 == files[0].row_group(0).num_rows
    filter_dataset(load(edited.path), tmp_path / "f", "true")
    assert info_of(edited.path)["limits"] == info_of(tmp_path / "f")["limits"]
    refused: list[dict[str, Any]] = [{}, {"segment_bytes": 2**31}, {"group_rows": 0}]
    for wrong in refused:
        with pytest.raises(UsageError):
            convert_dataset(dataset, tmp_path / "none", **wrong)
    assert not (tmp_path / "none").exists()


def lengthy(episode: Episode) -> Any:
    return np.arange(len(episode)) + episode.rewards.astype(np.float32)


def test_rewards_are_relabelled(dataset: Dataset, tmp_path: Path) -> None:
    """Nothing else changes; returns and statistics are those of the new rewards."""
    spec = f"{__name__}:lengthy"
    sys.modules.setdefault(__name__, sys.modules[lengthy.__module__])
    for reward in (lengthy, spec):
        found = written(relabel_dataset(dataset, tmp_path / "d", reward, overwrite=True))
        batch, old = found.to_episode_batch(), dataset.to_episode_batch()
        steps = np.concatenate([np.arange(length) for length in old.lengths])
        assert np.array_equal((steps + old.rewards.astype(np.float32)).astype(np.float64), batch.rewards)
        assert_same_info_values(old, batch)
        assert np.array_equal(old.observations["frames"], batch.observations["frames"])
        difference = diff(dataset, found)
        assert difference is not None
        assert "reward" == difference[1].field
        assert spec == info_of(tmp_path / "d")["derived"][0]["options"]["reward"]


def test_an_open_reader_notices_that_other_episodes_took_their_place(
    dataset: Dataset, tmp_path: Path
) -> None:
    """It would give the steps of one beside the facts of the other: whole selections, and unnamed functions."""
    makers: list[Callable[[int, Path], Any]] = [
        lambda at, path: filter_dataset(dataset[at:4], path, "true", overwrite=True),
        lambda at, path: relabel_dataset(dataset[:2], path, lambda one: one.rewards * at, overwrite=True),
        lambda at, path: join_datasets([dataset[:at], dataset[4:5]], path, overwrite=True),
    ]
    for number, make in enumerate(makers):
        path = tmp_path / str(number)
        make(2, path)
        opened = load(path)
        make(3, path)
        with raises(DatasetFormatError, "file-of-other-run"):
            len(opened[0].rewards)


def meddling(episode: Episode) -> Any:
    episode.env_infos["x"][:] = 7
    episode.batch.observations["frames"][:] = 7
    episode.batch.env_infos["x"][:] = 7
    return episode.rewards


def test_what_a_reward_writes_to_its_episode_is_not_written(dataset: Dataset, tmp_path: Path) -> None:
    found = written(relabel_dataset(dataset[:8], tmp_path / "d", meddling))
    assert_same_batches(load(dataset.path)[:8].to_episode_batch(), found.to_episode_batch())


@pytest.mark.parametrize(
    ("reward", "code", "values"),
    [
        (lambda episode: 1 / 0, "reward-function", ["ZeroDivisionError"]),
        (lambda episode: 1.0, "reward-shape", ["()", "float64"]),
        (lambda episode: ["a"] * len(episode), "reward-shape", ["<U1"]),
        (lambda episode: np.full(len(episode), np.nan), "reward-nan", ["0"]),
        (lambda episode: episode.env_infos["grid"][:, 0, 0], "reward-masked", ["1"]),
        (lambda episode: np.zeros(len(episode) - (episode.id == 90)), "reward-shape", ["90"]),
        ("tests.helpers.envs:nothing", "attribute-missing", ["'nothing'"]),
        ("nothing_there:reward", "module-missing", ["'nothing_there'"]),
    ],
)
def test_rewards_that_are_none(
    dataset: Dataset, tmp_path: Path, reward: Any, code: str, values: list[str]
) -> None:
    """Most are found before anything is written; the folder says that it is not whole in any case."""
    with raises(UserCodeError, code, *values):
        relabel_dataset(dataset, tmp_path / "d", reward)
    assert values == ["90"] or not (tmp_path / "d").exists()
    assert "complete" != info_of(tmp_path / "d").get("status")
    with raises(UsageError, "function-spec"):
        relabel_dataset(dataset, tmp_path / "d", "mine")


def run_twice(dataset: Dataset, path: Path, **writing: Any) -> list[Edited]:
    """Run each operation with one output folder each."""
    return [
        filter_dataset(dataset, path / "filter", "length > 3", **writing),
        *split_dataset(dataset, path / "split", {"a": 0.5, "b": 0.5}, **writing).values(),
        join_datasets([dataset[50:], dataset[:50]], path / "merge", **writing),
        convert_dataset(dataset, path / "convert", group_rows=70, **writing),
        relabel_dataset(dataset, path / "relabel", lengthy, **writing),
    ]


def test_an_argument_that_there_is_not_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    """A misspelt `dry_run` must not write, nor a misspelt seed divide by another one."""
    with pytest.raises(TypeError, match="dryrun"):
        filter_dataset(dataset, tmp_path / "new", "length > 0", dryrun=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="sed"):
        split_dataset(dataset, tmp_path / "new", {"a": 1.0}, sed=3)  # type: ignore[call-arg]
    assert not [*tmp_path.iterdir()]
    assert not filter_dataset(dataset, tmp_path / "new", "length > 0", dry_run=True, progress=None).written


def test_a_dry_run_says_what_would_be_written(dataset: Dataset, tmp_path: Path) -> None:
    dry = run_twice(dataset, tmp_path, dry_run=True)
    assert [] == list(tmp_path.iterdir())
    assert not any(edited.written for edited in dry)
    done = run_twice(dataset, tmp_path)
    assert [(one.path, one.episodes, one.steps) for one in dry] == [
        (one.path, one.episodes, one.steps) for one in done
    ]
    with pytest.raises(DatasetExistsError):
        run_twice(dataset, tmp_path, dry_run=True)


def test_what_is_read_is_not_written_to(made: Path, dataset: Dataset) -> None:
    """Nor is any folder in it."""
    for place in (made, made / "data" / "d", made / "f"):
        with raises(UsageError, "output-is-input"):
            filter_dataset(dataset, place, "true", overwrite=True)


def test_an_episode_that_is_there_twice_is_a_fault(dataset: Dataset, tmp_path: Path) -> None:
    """Its source and number say so, in whichever file it is."""
    filter_dataset(dataset, tmp_path / "d", "true")
    set_values(tmp_path / "d" / episodes(2), "episode_number", 1, [4])
    (fault,) = [fault for fault in verify_dataset(tmp_path / "d").faults if "it repeats" in fault.problem]
    assert (episodes(2), 1) == (fault.file, len(fault.episodes))


KILLS = 6
KILLED: dict[str, Callable[[Dataset, Path], Any]] = {
    "filter": lambda dataset, path: filter_dataset(dataset, path, "length > 3", overwrite=True),
    "split": lambda dataset, path: split_dataset(dataset, path, {"a": 0.4, "b": 0.6}, overwrite=True),
}


@pytest.mark.parametrize(
    ("operation", "replaces"),
    usually([("filter", True), ("split", False)], lambda row: row[0] == "filter"),
)
def test_a_kill_leaves_a_dataset_that_says_what_it_is(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, *, replaces: bool
) -> None:
    """An old one stays until the new one is whole, and another attempt works; tests/soak has more kills."""
    dataset = dataset[:60]
    run, names = KILLED[operation], ("a", "b") if operation == "split" else ("",)
    outcomes: Counter[str] = Counter()
    count = limit = 0

    def before(store: FileStore, what: str, path: Path) -> None:
        nonlocal count
        count += 1
        if 0 < limit <= count:
            raise Killed

    monkeypatch.setattr(FileStore, "before", before)
    run(dataset, tmp_path / "whole")
    n_changes, n_episodes = count, [len(load(tmp_path / "whole" / name)) for name in names]
    for change in range(5, n_changes, n_changes // KILLS):
        output, limit = tmp_path / str(change), 0
        for name in names if replaces else ():
            filter_dataset(dataset, output / name, "length > 22")
        count, limit = 0, change
        with pytest.raises(Killed):
            run(dataset, output)
        limit = 0
        for name, whole in zip(names, n_episodes, strict=True):
            info = info_of(output / name)
            is_old = bool(info) and info["derived"][-1]["options"] == {"keep": "length > 22"}
            outcomes[status := "old" if is_old else info.get("status", "absent")] += 1
            held = len(load(output / name)) if info else 0
            # When the new one has taken the old one's place, all that it lacks is its end in info.json.
            assert held == whole or status != "complete", change
            assert held == whole or not replaces or status in ("old", "absent"), change
            assert not info or [] == verify_dataset(output / name).faults, change
        run(dataset, output)
        for name in names:
            assert ([], []) == ((report := verify_dataset(output / name)).faults, report.notes)
            assert [] == hidden_files(output / name)
            assert diff(load(tmp_path / "whole" / name), load(output / name)) is None
    assert ("old" if replaces else "collecting") in outcomes
