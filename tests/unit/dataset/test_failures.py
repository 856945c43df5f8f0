"""The disk fails at every single operation in turn: what is left is a dataset, and a prefix."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from rollout_cli.chunk import Chunk
from rollout_cli.dataset import CutLimits, load
from rollout_cli.dataset.encoding import InlineEncoder
from rollout_cli.dataset.record import DatasetSummary, tell_what_is_safe
from rollout_cli.dataset.shard import data_path, episodes_path
from rollout_cli.errors import DatasetFormatError, StorageError
from tests.support.chunks import episode
from tests.support.datasets import FailingFiles, data_files, leftovers, write_dataset
from tests.unit.dataset.test_flushing import always
from tests.unit.dataset.test_resume import go_on

LIMITS = CutLimits(shard_bytes=30_000, min_shard_bytes=500, group_bytes=20_000, group_rows=300)
EPISODES = [episode(number, 250) for number in range(7)]


def healthy_run(folder: Path) -> list[tuple[str, Path]]:
    files = FailingFiles()
    write_dataset(folder, EPISODES, limits=LIMITS, files=files)
    return files.operations


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_a_failure_anywhere_leaves_a_readable_prefix(tmp_path: Path, for_good: bool) -> None:
    """A StorageError with the reason; then the folder holds episodes 0 to k - 1, whole, or nothing yet."""
    operations = healthy_run(tmp_path / "healthy")
    assert {"folder", "open", "write", "fsync", "rename"} == {name for name, _ in operations}
    lengths = set()
    for fail_at, (name, _) in enumerate(operations):
        if for_good and name == "write" and fail_at % 5:
            continue  # Most writes are like their neighbours; once is enough for those.
        path = tmp_path / f"out-{fail_at}"
        with pytest.raises(StorageError, match="No space left"):
            write_dataset(path, EPISODES, limits=LIMITS, files=FailingFiles(fail_at, for_good=for_good))
        lengths.add(_check_prefix(path, EPISODES))
        if not for_good and path.exists():
            assert [] == leftovers(path)
    assert len(lengths) > 3  # Nothing yet, and after each commit.


def _check_prefix(path: Path, episodes: list[Chunk]) -> int:
    """Return how many episodes the folder holds; -1 where it is no dataset yet."""
    try:
        dataset = load(path)
    except DatasetFormatError:
        assert not list(path.rglob("*.parquet"))
        return -1
    if len(dataset):
        batch = dataset.to_episode_batch()
        assert list(range(len(dataset))) == batch.numbers.tolist()
        for at, observations in enumerate(batch.observations_list):
            assert episodes[at].observations[0].tolist() == observations.tolist()
    return len(dataset)


def test_every_commit_goes_data_then_episodes_then_info(tmp_path: Path) -> None:
    """The episodes file is the commit record: it never stands before its data."""
    path = tmp_path / "out"
    renames = [target for name, target in healthy_run(path) if name == "rename"]
    info = path / "meta" / "info.json"
    first = renames.index(data_path(path, (0, 0)))
    assert [info, path / "README.md"] == renames[:first]
    shards = [renames[at : at + 3] for at in range(first, len(renames) - 3, 3)]
    assert len(shards) > 2
    assert [[data_path(path, (0, at)), episodes_path(path, (0, at)), info] for at in range(len(shards))] == shards
    assert [path / "meta" / "stats.json", info, path / "README.md"] == renames[-3:]


def test_every_rename_follows_the_fsync_of_its_file_and_is_followed_by_that_of_its_folder(tmp_path: Path) -> None:
    """So what has a final name survives a crash of the machine."""
    operations = healthy_run(tmp_path / "out")
    for at, (name, path) in enumerate(operations):
        if name == "rename":
            assert ("fsync", path.with_name(f".{path.name}.tmp")) in operations[:at]
            assert ("fsync", path.parent) == operations[at + 1]


def test_every_fsync_reaches_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files and folders alike."""
    synced = []
    original = os.fsync

    def counted(descriptor: int) -> None:
        synced.append(descriptor)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    operations = healthy_run(tmp_path / "out")
    assert len([name for name, _ in operations if name == "fsync"]) == len(synced)


def test_the_first_failure_is_the_one_told(tmp_path: Path) -> None:
    """That tidying up failed too is a note below it."""
    operations = healthy_run(tmp_path / "healthy")
    at = next(at for at, (name, path) in enumerate(operations) if name == "write" and ".parquet" in path.name)
    with pytest.raises(StorageError, match="cannot write to") as caught:
        write_dataset(tmp_path / "out", EPISODES, limits=LIMITS, files=FailingFiles(at, for_good=True))
    assert any("cannot remove" in note for note in caught.value.__notes__)


def test_a_failure_of_the_disk_tells_what_is_safe(tmp_path: Path) -> None:
    """How many episodes are committed, and where."""
    renames = [
        at
        for at, (name, path) in enumerate(healthy_run(tmp_path / "healthy"))
        if name == "rename" and path.suffix == ".parquet"
    ]
    at = renames[-1]
    with pytest.raises(StorageError) as caught:
        write_dataset(tmp_path / "out", EPISODES, limits=LIMITS, files=FailingFiles(at))
    kept = len(load(tmp_path / "out"))
    assert 0 < kept < len(EPISODES)
    assert f"{kept} episodes ({kept * 250:,} steps) are safe in {tmp_path / 'out'}" in caught.value.hint


def test_what_is_gone_is_not_told_as_safe(tmp_path: Path) -> None:
    """Somebody may have removed the folder while it was written."""
    error = StorageError("there is no such folder")
    tell_what_is_safe(error, DatasetSummary(tmp_path, "interrupted", 3, 40, 0, 1, "closed", {}))
    assert f"{tmp_path} is gone, and the 3 episodes (40 steps) that were in it" == error.hint


def test_a_failure_while_flushing_or_going_on_leaves_what_can_be_gone_on_with(tmp_path: Path) -> None:
    """At every fourth operation of a run that flushes after each episode, and of the run that goes on after it."""
    write_dataset(tmp_path / "whole", EPISODES, limits=LIMITS)
    files = FailingFiles()
    write_dataset(tmp_path / "often", EPISODES, limits=LIMITS, timer=always(), encoder=InlineEncoder(), files=files)
    counts = set()
    for fail_at in range(0, len(files.operations), 4):
        path = tmp_path / f"out-{fail_at}"
        with pytest.raises(StorageError, match="No space left"):
            write_dataset(
                path,
                EPISODES,
                limits=LIMITS,
                timer=always(),
                encoder=InlineEncoder(),
                files=FailingFiles(fail_at, for_good=True),
            )
        if _check_prefix(path, EPISODES) <= 0:
            continue
        with suppress(StorageError):
            go_on(path, EPISODES, limits=LIMITS, files=FailingFiles(fail_at % 23, for_good=True))
        counts.add(go_on(path, EPISODES, limits=LIMITS).episodes)
        assert data_files(tmp_path / "whole") == data_files(path)
        assert [] == leftovers(path)
    assert len(counts) > 2
