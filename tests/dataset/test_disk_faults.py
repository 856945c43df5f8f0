"""A disk or memory that fails at any moment: one error of ours, nothing committed lost, nothing left behind."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset import segments
from rollout_cli.dataset.card import render_card
from rollout_cli.dataset.committed import Committed, read_committed
from rollout_cli.dataset.folder import has_no_dataset, recover_replaced
from rollout_cli.dataset.layout import REPLACED, info_path, read_info, stats_path
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.schema import info_columns_of
from rollout_cli.dataset.store import FileStore
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import RolloutError, StorageError
from tests.helpers.chunks import episode
from tests.helpers.damage import set_json
from tests.helpers.datasets import info_of, numbers_of, source_of
from tests.helpers.errors import raises
from tests.helpers.thorough import usually
from tests.helpers.writing import (
    CHUNKS,
    SMALL,
    FailingFiles,
    Killed,
    KilledFiles,
    QuickFiles,
    all_files,
    data_files,
    hidden_files,
    kill_while_writing,
    open_writer,
    resume_dataset,
    third_of,
    vanish,
    wait_for_writes,
    wait_until,
    write_dataset,
)


def operations(path: Path, **options: Any) -> list[tuple[str, Path]]:
    files = FailingFiles()
    write_dataset(path, CHUNKS, limits=SMALL, files=files, **options)
    return files.operations


@pytest.mark.parametrize("for_good", usually([False, True], lambda for_good: for_good))
def test_a_full_disk_is_a_storage_error_and_keeps_what_was_committed(tmp_path: Path, for_good: bool) -> None:
    """At operations of all kinds; a resumed run has the bytes of one that met a working disk."""
    write_dataset(tmp_path / "whole", CHUNKS, limits=SMALL)
    expected, kinds, resumed = data_files(tmp_path / "whole"), set(), 0
    tried = operations(tmp_path / "counted", flush=True)
    # By kind: of each that is frequent some have their turn on each day.
    by_kind = sorted(range(len(tried)), key=lambda at: tried[at][0])
    for fail_at in third_of(by_kind[for_good::11]):
        path = tmp_path / f"d{fail_at}"
        files = FailingFiles(fail_at, for_good=for_good)
        with raises(StorageError, "write-failed") as caught:
            write_dataset(path, CHUNKS, limits=SMALL, flush=True, files=files)
        assert 5 == caught.value.exit_code
        assert caught.value.hint
        kinds.add(kind := tried[fail_at][0])
        if not for_good:
            assert [] == hidden_files(path), fail_at
        if not (path / "meta/info.json").exists():
            continue
        assert [] == verify_dataset(path).faults, fail_at
        committed = read_committed(path, read_info(path))
        if committed.can_resume:
            # What could not be flushed is there, but is not promised.
            if not for_good and kind != "fsync":
                assert f"{committed.episodes:,} episodes" in caught.value.hint
            resume_dataset(path, CHUNKS, limits=SMALL)
            assert expected == data_files(path), fail_at
            resumed += 1
    assert resumed
    assert {"write", "fsync", "rename"} <= kinds


def test_a_commit_whose_name_may_not_be_safe_is_counted(tmp_path: Path) -> None:
    """The file has its name and is read, whatever the disk says of its folder: info.json states it."""
    tried = operations(tmp_path / "counted", flush=True)
    synced = [
        at for at, (name, path) in enumerate(tried) if name == "fsync" and path.match("meta/episodes/*")
    ]
    assert len(synced) > 3
    for at in synced[1:3]:
        path = tmp_path / f"d{at}"
        with raises(StorageError, "write-failed"):
            write_dataset(path, CHUNKS, limits=SMALL, flush=True, files=FailingFiles(at))
        assert numbers_of(path)
        assert [] == verify_dataset(path).faults


@pytest.mark.parametrize("operation", ["fsync", "rename"])
def test_a_commit_that_has_a_longer_data_file_is_counted(tmp_path: Path, operation: str) -> None:
    """A flush that fails between its two files leaves the new data file with the commit before it."""
    tried = operations(tmp_path / "counted", flush=True)
    moved = [
        at for at, (name, path) in enumerate(tried) if name == "rename" and path.match("data/*/*.parquet")
    ]
    again = [at for before, at in pairwise(moved) if tried[before] == tried[at]]
    assert again
    for at in again:
        path = tmp_path / f"d{at}"
        fail_at = next(later for later in range(at + 1, len(tried)) if tried[later][0] == operation)
        with raises(StorageError, "write-failed"):
            write_dataset(path, CHUNKS, limits=SMALL, flush=True, files=FailingFiles(fail_at))
        last = read_committed(path, read_info(path)).segments[-1]
        assert pq.read_metadata(last.segment.paths(path)[0]).num_rows > last.record.steps
        assert [] == verify_dataset(path).faults


@pytest.mark.parametrize("over", [False, True])
def test_a_disk_that_fails_as_a_dataset_begins_leaves_what_there_was(tmp_path: Path, over: bool) -> None:
    """Nothing, so that the same command can be given again; or the dataset that it would have replaced."""
    path, old, columns, healthy = tmp_path / "d", tmp_path / "old", None, FailingFiles()
    if over:  # As commands that edit do, which know the columns beforehand.
        write_dataset(old, CHUNKS[:2])
        columns = info_columns_of(info_of(old)["features"])

    def begin(files: FailingFiles) -> DatasetWriter:
        if over:
            shutil.copytree(old, path)
        return open_writer(path, overwrite=over, columns=columns, header={"run": "a"}, files=files)

    writer, count = begin(healthy), len(healthy.operations)
    writer.abort()
    for fail_at in range(count):
        shutil.rmtree(path, ignore_errors=True)
        with pytest.raises(StorageError):
            begin(FailingFiles(fail_at))
        assert all_files(old) == all_files(path), fail_at


def test_a_dataset_that_is_called_complete_has_its_card(tmp_path: Path) -> None:
    """Whatever the disk does at the end: of a complete dataset nobody writes the card again."""
    files, said = FailingFiles(), set[str]()
    write_dataset(tmp_path / "counted", CHUNKS[:1], files=files)
    count = len(files.operations)
    for fail_at in range(count - 16, count):
        path = tmp_path / f"d{fail_at}"
        with pytest.raises(StorageError):
            write_dataset(path, CHUNKS[:1], files=FailingFiles(fail_at, for_good=True))
        info: Any = info_of(path)
        said.add(info["status"])
        assert info["status"] != "complete" or render_card(info) == (path / "README.md").read_text(), fail_at
    assert {"collecting", "complete"} == said


def test_an_error_of_a_write_is_raised_by_a_later_call_and_commits_nothing_after_it(tmp_path: Path) -> None:
    files = FailingFiles(40, for_good=True)
    with open_writer(tmp_path / "d", limits=SMALL, files=files) as writer:
        with pytest.raises(StorageError):  # noqa: PT012
            for chunk in CHUNKS * 100:
                writer.write(chunk)
                writer.flush()
        with pytest.raises(StorageError):
            writer.write(CHUNKS[0])
        with pytest.raises(StorageError):
            writer.close(status="complete")
        done = len(files.operations)
        with pytest.raises(StorageError):
            writer.abort()
    assert {"remove", "open", "folder"} >= {kind for kind, _ in files.operations[done:]}


@pytest.mark.parametrize(
    "error",
    [MemoryError("17 GB"), pa.lib.ArrowMemoryError("malloc of size 17"), np.exceptions.AxisError("x")],
)
def test_too_little_memory_is_a_storage_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Other errors of ours leave as they are."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(segments, "step_table", fail)
    expected: type[Exception] = StorageError if isinstance(error, MemoryError) else type(error)
    with pytest.raises(expected) as caught:
        write_dataset(tmp_path / "d", CHUNKS, limits=SMALL)
    if isinstance(caught.value, StorageError):
        assert "drop_info" in caught.value.hint


@pytest.mark.parametrize("meddle", ["remove", "rename", "remove the data"])
def test_a_folder_that_others_remove_is_a_storage_error_that_promises_nothing(
    tmp_path: Path, meddle: str
) -> None:
    path = tmp_path / "d"
    with (  # noqa: PT012
        pytest.raises(StorageError) as caught,
        open_writer(path, limits=SMALL) as writer,
    ):
        for chunk in CHUNKS[:20]:
            writer.write(chunk)
            writer.flush()
        wait_for_writes(writer)
        if meddle == "rename":
            path.rename(tmp_path / "renamed")
        else:
            shutil.rmtree(path if meddle == "remove" else path / "data")
        for chunk in CHUNKS[20:]:
            writer.write(chunk)
        writer.close(status="complete")
    assert "resume=True" not in caught.value.hint or (path / "data").exists()
    assert not (path / "meta/info.json").exists() or meddle == "remove the data"


class RemovedFiles(FailingFiles):
    """A folder that somebody removes just before an operation."""

    def __init__(self, folder: Path, remove_at: int) -> None:
        super().__init__()
        self._folder, self._remove_at = folder, remove_at

    def before(self, operation: str, path: Path) -> None:
        super().before(operation, path)
        if len(self.operations) == self._remove_at:
            shutil.rmtree(self._folder, ignore_errors=True)


@pytest.mark.thorough
def test_a_folder_that_is_removed_at_any_moment_is_said_to_be_gone(tmp_path: Path) -> None:
    """Not that episodes are safe in it."""
    count, said = len(operations(tmp_path / "counted")), set[bool]()
    for remove_at in third_of(range(count // 4, count - 25)):
        path = tmp_path / "d"
        with pytest.raises(StorageError) as caught:
            write_dataset(path, CHUNKS, limits=SMALL, files=RemovedFiles(path, remove_at))
        assert "resume=True" not in caught.value.hint, remove_at
        said.add(str(path) in caught.value.hint)
        shutil.rmtree(path, ignore_errors=True)
    assert True in said


# Replacing a dataset.


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a folder with a dataset that is to be replaced."""
    write_dataset(tmp_path / "d", [episode(n, 50) for n in range(100, 130)], limits=SMALL)
    return tmp_path / "d"


def visible(path: Path) -> dict[str, bytes]:
    return {name: content for name, content in all_files(path).items() if not name.startswith(".")}


def test_the_old_dataset_stays_until_the_first_commit_of_the_new_one(old: Path) -> None:
    before = visible(old)
    with open_writer(old, limits=SMALL, overwrite=True) as writer:
        for chunk in CHUNKS[:3]:
            writer.write(chunk)
        assert before == visible(old)
        writer.close(status="interrupted")
    assert 3 == read_info(old)["episodes"]
    assert [] == hidden_files(old)


@pytest.mark.parametrize("end", ["abort", "error"])
def test_a_run_without_a_commit_leaves_the_old_dataset_as_it_was(old: Path, end: str) -> None:
    before = visible(old)
    writer = open_writer(old, limits=SMALL, overwrite=True)
    if end == "error":
        with pytest.raises(RolloutError), writer:
            raise RolloutError("the env failed")
    else:
        writer.abort()
    assert before == visible(old)
    assert [] == hidden_files(old)


@pytest.mark.thorough
def test_a_disk_that_fails_while_replacing_leaves_one_of_the_two_datasets(tmp_path: Path, old: Path) -> None:
    before, outcomes = visible(old), set()
    shutil.copytree(old, tmp_path / "counted")
    count = len(operations(tmp_path / "counted", overwrite=True))
    for fail_at in range(count):
        path = tmp_path / f"d{fail_at}"
        shutil.copytree(old, path)
        with pytest.raises(StorageError):
            write_dataset(path, CHUNKS, limits=SMALL, overwrite=True, files=FailingFiles(fail_at))
        is_old = before == visible(path)
        outcomes.add(is_old)
        if not is_old:
            assert read_committed(path, read_info(path)).episodes > 0, fail_at
        if outcomes == {True, False} and fail_at > 60:
            break
    assert {True, False} == outcomes


@pytest.mark.thorough
def test_a_kill_while_replacing_loses_neither_dataset(tmp_path: Path, old: Path) -> None:
    """In between, readers are told where the old dataset is; the next run puts it back or replaces it."""
    before, in_between = visible(old), 0
    shutil.copytree(old, tmp_path / "counted")
    write_dataset(tmp_path / "whole", CHUNKS, limits=SMALL)
    changes = operations(tmp_path / "counted", overwrite=True)
    times = [at for at, (_, path) in enumerate(changes) if {".replaced", ".next.tmp"} & set(path.parts)]
    for kill_at in third_of(range(times[0] - 3, times[-1] + 3)):
        path = tmp_path / f"d{kill_at}"
        shutil.copytree(old, path)
        kill_while_writing(path, KilledFiles(kill_at), overwrite=True)
        if (path / ".replaced").exists() and not (path / "meta/info.json").exists():
            in_between += 1
            with raises(StorageError, "dataset-being-replaced") as caught:
                read_info(path)
            assert str(path / ".replaced") in caught.value.hint
        next_one = open_writer(path, limits=SMALL, overwrite=True)
        found = visible(path)
        assert before == found or read_committed(path, read_info(path)).episodes > 0, kill_at
        next_one.abort()
        write_dataset(path, CHUNKS, limits=SMALL, overwrite=True)
        assert data_files(tmp_path / "whole") == data_files(path)
    assert in_between


# Before the columns are decided.

FEW = tuple(episode(n, 300, env_info=lambda n, step: {"a": step} if n else {"b": 1.5}) for n in range(5))
"""The columns are decided behind the fourth one."""

STRIDE = 12
"""Of the operations at which a run is killed or its disk fails; 1 tries all of them in ten minutes."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "one partition": {"partitions": (0, 0, 0, 0, 0), "first_numbers": [0]},
    "two partitions": {"partitions": (0, 1, 0, 1, 0), "first_numbers": [0, 3]},
}
"""The second one gets the episodes 0, 3, 1, 4, 2, each to its partition."""


def few(layout: str) -> list[tuple[Chunk, int]]:
    order = (0, 3, 1, 4, 2) if len(LAYOUTS[layout]["first_numbers"]) > 1 else range(5)
    return list(zip([FEW[at] for at in order], LAYOUTS[layout]["partitions"], strict=True))


def write_few(
    path: Path, layout: str, files: FileStore | None = None, *, count: int = 5, **options: Any
) -> None:
    """Write the first episodes, and flush after each; a kill leaves what it leaves."""
    first_numbers = LAYOUTS[layout]["first_numbers"]
    with suppress(Killed):
        writer = open_writer(path, first_numbers=first_numbers, files=files, **options)
        try:
            with writer:
                for chunk, partition in few(layout)[:count]:
                    writer.write(chunk, partition=partition)
                    writer.flush()
                    wait_for_writes(writer)
                writer.close(status="complete" if count == 5 else "interrupted")
        except Killed:
            vanish(writer)
            raise


def recovered(path: Path) -> Committed | None:
    """Return what the next run finds, once it has ended a replacement that was cut off."""
    recover_replaced(FileStore(), path)
    if has_no_dataset(path):
        return None
    assert (
        () == tuple(map(str, verify_dataset(path).faults)) or "inferring" == read_info(path)["info_columns"]
    )
    return read_committed(path, read_info(path))


def resume_few(path: Path, layout: str, files: FileStore | None = None) -> None:
    """Go on as `--resume` does with a dataset whose columns are not decided."""
    committed = recovered(path)
    keep = [partition.next_number for partition in committed.partitions] if committed else ()
    write_few(path, layout, files, overwrite=True, replace_from=keep)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flush_of_few_episodes_is_a_dataset(tmp_path: Path, layout: str) -> None:
    """Whose columns are those met so far; at the end `data/` is as without it."""
    path = tmp_path / "d"
    with open_writer(path, first_numbers=LAYOUTS[layout]["first_numbers"]) as writer:
        for at, (chunk, partition) in enumerate(few(layout)):
            writer.write(chunk, partition=partition)
            writer.flush()
            wait_for_writes(writer)
            assert (
                sorted(int(one.numbers[0]) for one, _ in few(layout)[: at + 1])
                == load(path).episodes["episode_number"].to_pylist()
            )
            assert [] == verify_dataset(path).faults
            expected = "partial" if at < 3 or (layout == "two partitions" and at < 4) else "decided"
            assert ("collecting", expected) == tuple(
                read_info(path)[name] for name in ("status", "info_columns")
            )
        writer.close(status="complete")
    write_few_without_flush(tmp_path / "whole", layout)
    assert all_files(tmp_path / "whole").keys() == all_files(path).keys()
    assert data_files(tmp_path / "whole") == data_files(path)


def write_few_without_flush(path: Path, layout: str) -> None:
    chunks, partitions = zip(*few(layout), strict=True)
    write_dataset(path, chunks, partitions=partitions, first_numbers=LAYOUTS[layout]["first_numbers"])


@pytest.mark.parametrize(
    ("layout", "begins"),
    usually(
        product(LAYOUTS, ["new", "resumed", "over another"]),
        ("one partition", "new").__eq__,
    ),
)
def test_a_kill_at_any_moment_loses_no_episode_that_was_committed(
    tmp_path: Path, layout: str, begins: str
) -> None:
    """Neither while few episodes are replaced by more, nor by those with the decided columns, nor in a resumed run."""
    before = tmp_path / "before"
    write_few_without_flush(tmp_path / "whole", layout)
    if begins == "resumed":
        write_few(before, layout, count=2)
    elif begins == "over another":
        write_dataset(before, [episode(n, 50) for n in range(100, 130)])

    def run(path: Path, files: FileStore) -> None:
        if begins == "resumed":
            resume_few(path, layout, files)
        else:
            write_few(path, layout, files, overwrite=begins == "over another")

    path, most, counts, kill_at = tmp_path / "d", 0, set[int](), third_of(range(0, STRIDE, 4))[0]
    while True:
        shutil.rmtree(path, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, path)
        files = KilledFiles(kill_at)
        run(path, files)
        committed = recovered(path)
        count = committed.episodes if committed is not None else 0
        if begins == "over another" and committed is not None and committed.segments[0].record.start == 100:
            assert most == 0, kill_at
        else:
            assert count >= most, kill_at
            most = count
        counts.add(count)
        if files.count <= kill_at:
            break
        kill_at += STRIDE
    assert {3, 4, 5} <= counts
    assert data_files(tmp_path / "whole") == data_files(path)


@pytest.mark.parametrize("layout", usually(LAYOUTS, lambda layout: layout == "one partition"))
def test_a_disk_that_fails_loses_no_episode_that_was_committed(tmp_path: Path, layout: str) -> None:
    """At each operation of a run that continues two episodes; the error says how many are safe."""
    before, path, fail_at, hints = (
        tmp_path / "before",
        tmp_path / "d",
        third_of(range(0, STRIDE, 4))[0],
        dict[str, str](),
    )
    write_few_without_flush(tmp_path / "whole", layout)
    write_few(before, layout, count=2)
    while True:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(before, path)
        files = FailingFiles(fail_at)
        try:
            resume_few(path, layout, files)
        except StorageError as error:
            committed = recovered(path)
            assert committed is not None
            assert committed.episodes >= 2, fail_at
            hints[f"{committed.episodes:,} episodes"] = error.hint
            assert [] == hidden_files(path), fail_at
        else:
            break
        fail_at += STRIDE
    assert fail_at > 50
    assert hints
    for count, hint in hints.items():
        assert count in hint
    assert data_files(tmp_path / "whole") == data_files(path)


@pytest.mark.parametrize("status", ["interrupted", "complete"])
def test_an_interrupted_run_that_got_less_far_leaves_what_there_was(tmp_path: Path, status: str) -> None:
    """It says how many episodes there are, not how many it made; a run that was complete still is."""
    path = tmp_path / "d"
    write_few(path, "one partition", count=3)
    set_json(info_path(path), status=status)
    with open_writer(path, first_numbers=[0], overwrite=True, replace_from=[3]) as writer:
        writer.write(FEW[0])
        writer.flush()
        summary = writer.close(status="interrupted")
    assert (3, 900, status, status) == (
        summary.episodes,
        summary.steps,
        summary.status,
        info_of(path)["status"],
    )
    assert 3 == len(load(path))
    assert [] == hidden_files(path)
    assert [] == verify_dataset(path).faults


def test_what_a_killed_run_left_has_its_statistics_when_the_next_one_got_less_far(tmp_path: Path) -> None:
    """A run that was killed has written none; what the next one ends is a whole dataset."""
    path = tmp_path / "d"
    write_few(path, "one partition", count=3)
    stats_path(path).unlink()
    set_json(info_path(path), status="collecting", episodes=0, steps=0, bytes=0, segments=0)
    with open_writer(path, first_numbers=[0], overwrite=True, replace_from=[3]) as writer:
        writer.write(FEW[0])
        writer.close(status="interrupted")
    assert ("interrupted", 3, []) == (
        info_of(path)["status"],
        len(load(path)),
        verify_dataset(path).faults,
    )


def test_a_dataset_that_a_failed_replacement_leaves_has_ended(tmp_path: Path) -> None:
    """Whichever of the two it is, the fewer episodes or the more: nobody collects it any longer."""
    files, counts = FailingFiles(), set[int]()
    write_few(tmp_path / "counted", "one partition", files, count=2)
    moves = [at for at, (_, path) in enumerate(files.operations) if path.parent.name == REPLACED]
    for fail_at in (moves[0], moves[-1], moves[-1] + 10):
        path = tmp_path / f"d{fail_at}"
        with pytest.raises(StorageError):
            write_few(path, "one partition", FailingFiles(fail_at), count=2)
        info = info_of(path)
        counts.add(info["episodes"])
        assert ("interrupted", []) == (info["status"], verify_dataset(path).faults), fail_at
    assert {1, 2} == counts


class HeldWhileReplacing(QuickFiles):
    """A disk on which the old dataset is removed late."""

    def __init__(self) -> None:
        self.replacing, self.recorded = threading.Event(), threading.Event()

    def before(self, operation: str, path: Path) -> None:
        if "remove" == operation and REPLACED == path.name:
            self.replacing.set()
            self.recorded.wait(0.5)  # In vain where the caller waits for the end, as it must.


def test_facts_are_recorded_while_the_old_dataset_is_replaced(tmp_path: Path) -> None:
    """By the thread that commits, which moves the new info.json meanwhile."""
    path, files = tmp_path / "d", HeldWhileReplacing()
    changes = [{"what": "files changed", "from_numbers": [0]}]
    write_dataset(path, [episode(0, 20)])
    with open_writer(path, overwrite=True, files=files) as writer:
        for chunk in CHUNKS[:-1]:
            writer.write(chunk)
        writer.flush()
        assert files.replacing.wait(60)
        writer.record(changes=changes)
        files.recorded.set()
        assert changes == source_of(path)["changes"]
        writer.write(CHUNKS[-1])
        writer.close(status="complete")
    assert [] == verify_dataset(path).faults


def test_an_end_at_once_keeps_what_was_flushed(tmp_path: Path) -> None:
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        open_writer(tmp_path / "d") as writer,
    ):
        writer.write(FEW[0])
        writer.flush()
        writer.write(FEW[1])
        raise KeyboardInterrupt
    assert ([0], "interrupted") == (numbers_of(tmp_path / "d"), read_info(tmp_path / "d")["status"])
    assert [] == verify_dataset(tmp_path / "d").faults


def test_a_folder_that_is_renamed_before_the_columns_are_decided_is_not_begun_again(tmp_path: Path) -> None:
    with open_writer(tmp_path / "d") as writer:
        writer.write(FEW[0])
        writer.flush()
        (tmp_path / "d").rename(tmp_path / "elsewhere")
        with pytest.raises(StorageError) as caught, writer:  # noqa: PT012
            for chunk in FEW[1:]:
                writer.write(chunk)
            writer.close(status="complete")
    assert str(tmp_path / "d") in caught.value.hint
    assert "resume=True" not in caught.value.hint
    assert not (tmp_path / "d").exists()
    assert [0] == numbers_of(tmp_path / "elsewhere")


def test_an_error_of_the_timer_is_raised_by_the_next_call(tmp_path: Path) -> None:
    files = FailingFiles()
    with (  # noqa: PT012
        pytest.raises(StorageError) as caught,
        open_writer(tmp_path / "d", files=files, flush_seconds=0.01) as writer,
    ):
        files.fail_at = len(files.operations)
        writer.write(FEW[0])
        wait_until(lambda: writer._failure is not None)
        writer.write(FEW[1])
        raise AssertionError("the error was swallowed")
    assert "write-failed" == caught.value.code
    assert not (tmp_path / "d").exists()
