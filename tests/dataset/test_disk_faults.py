"""A disk or memory that fails at any moment: one error of ours, nothing committed lost, nothing left behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollout_cli.dataset import segments
from rollout_cli.dataset.commits import read_committed
from rollout_cli.dataset.files import read_info
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.errors import RolloutError, StorageError
from tests.helpers.chunks import BOX_SPEC, episode, in_parts
from tests.helpers.writing import (
    CHUNKS,
    SMALL,
    FailingFiles,
    KilledFiles,
    all_files,
    data_files,
    hidden_files,
    kill_while_writing,
    resume_dataset,
    write_dataset,
)


def operations(path: Path, **options: Any) -> list[tuple[str, Path]]:
    files = FailingFiles()
    write_dataset(path, CHUNKS, limits=SMALL, files=files, **options)
    return files.operations


@pytest.mark.parametrize("for_good", [False, True])
def test_a_full_disk_is_a_storage_error_and_keeps_what_was_committed(tmp_path: Path, for_good: bool) -> None:
    """At operations of all kinds; a resumed run has the bytes of one that met a working disk."""
    write_dataset(tmp_path / "whole", CHUNKS, limits=SMALL)
    expected, kinds, resumed = data_files(tmp_path / "whole"), set(), 0
    for fail_at, (kind, _) in list(enumerate(operations(tmp_path / "counted", flush_seconds=0.0)))[for_good::13]:
        path = tmp_path / f"d{fail_at}"
        files = FailingFiles(fail_at, for_good=for_good)
        with pytest.raises(StorageError, match="No space left") as caught:
            write_dataset(path, CHUNKS, limits=SMALL, flush_seconds=0.0, files=files)
        assert 5 == caught.value.exit_code
        assert caught.value.hint
        kinds.add(kind)
        if not for_good:
            assert [] == hidden_files(path), fail_at
        if not (path / "meta/info.json").exists():
            continue
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


def test_an_error_of_a_write_is_raised_by_a_later_call_and_commits_nothing_after_it(tmp_path: Path) -> None:
    files = FailingFiles(40, for_good=True)
    with DatasetWriter(
        tmp_path / "d", env_spec=BOX_SPEC, root_seed=0, limits=SMALL, flush_seconds=0.0, files=files
    ) as writer:
        with pytest.raises(StorageError):  # noqa: PT012
            for chunk in CHUNKS * 100:
                writer.write(chunk)
        with pytest.raises(StorageError):
            writer.write(CHUNKS[0])
        with pytest.raises(StorageError):
            writer.close(status="complete")
        done = len(files.operations)
        with pytest.raises(StorageError):
            writer.abort()
    assert {"remove", "open", "folder"} >= {kind for kind, _ in files.operations[done:]}


@pytest.mark.parametrize(
    "error", [MemoryError("17 GB"), pa.lib.ArrowMemoryError("malloc of size 17"), np.exceptions.AxisError("x")]
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
        assert "--drop-info" in caught.value.hint


@pytest.mark.parametrize("meddle", ["remove", "rename", "remove the data"])
def test_a_folder_that_others_remove_is_a_storage_error_that_promises_nothing(tmp_path: Path, meddle: str) -> None:
    path = tmp_path / "d"
    with (  # noqa: PT012
        pytest.raises(StorageError) as caught,
        DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, limits=SMALL, flush_seconds=0.0) as writer,
    ):
        for chunk in CHUNKS[:20]:
            writer.write(chunk)
        writer._queue.wait()
        if meddle == "rename":
            path.rename(tmp_path / "renamed")
        else:
            shutil.rmtree(path if meddle == "remove" else path / "data")
        for chunk in CHUNKS[20:]:
            writer.write(chunk)
        writer.close(status="complete")
    assert "continues from there" not in caught.value.hint or (path / "data").exists()
    assert not (path / "meta/info.json").exists() or meddle == "remove the data"


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
    with DatasetWriter(old, env_spec=BOX_SPEC, root_seed=0, limits=SMALL, overwrite=True) as writer:
        for chunk in CHUNKS[:3]:
            writer.write(chunk)
        assert before == visible(old)
        writer.close(status="interrupted")
    assert 3 == read_info(old)["episodes"]
    assert [] == hidden_files(old)


@pytest.mark.parametrize("end", ["abort", "error"])
def test_a_run_without_a_commit_leaves_the_old_dataset_as_it_was(old: Path, end: str) -> None:
    before = visible(old)
    writer = DatasetWriter(old, env_spec=BOX_SPEC, root_seed=0, limits=SMALL, overwrite=True)
    if end == "error":
        with pytest.raises(RolloutError), writer:  # noqa: PT012
            writer.write(in_parts(CHUNKS[0], [30, 60])[0])
            raise RolloutError("the env failed")
    else:
        writer.abort()
    assert before == visible(old)
    assert [] == hidden_files(old)


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


def test_a_kill_while_replacing_loses_neither_dataset(tmp_path: Path, old: Path) -> None:
    """In between, readers are told where the old dataset is; the next run puts it back or replaces it."""
    before, in_between = visible(old), 0
    shutil.copytree(old, tmp_path / "counted")
    write_dataset(tmp_path / "whole", CHUNKS, limits=SMALL)
    names = [path.name for _, path in operations(tmp_path / "counted", overwrite=True)]
    for kill_at in range(names.index(".replaced") - 3, names.index("file-00000.parquet", names.index(".replaced")) + 8):
        path = tmp_path / f"d{kill_at}"
        shutil.copytree(old, path)
        kill_while_writing(path, KilledFiles(kill_at), overwrite=True)
        if (path / ".replaced").exists() and not (path / "meta/info.json").exists():
            in_between += 1
            with pytest.raises(StorageError, match="was killed while it replaced") as caught:
                read_info(path)
            assert str(path / ".replaced") in caught.value.hint
        next_one = DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, limits=SMALL, overwrite=True)
        found = visible(path)
        assert before == found or read_committed(path, read_info(path)).episodes > 0, kill_at
        next_one.abort()
        write_dataset(path, CHUNKS, limits=SMALL, overwrite=True)
        assert data_files(tmp_path / "whole") == data_files(path)
    assert in_between
