"""Datasets in object stores (S3 by moto's server, GCS by an emulator): the bytes of a folder, also after kills."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout_cli import load
from rollout_cli.dataset.committed import read_committed
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.store import ObjectStore
from rollout_cli.errors import DatasetFormatError, StorageError
from rollout_cli.sources.remote import folder_of
from tests.helpers.chunks import episode
from tests.helpers.datasets import assert_same_data, has_commit, stats_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, rollout, running
from tests.helpers.servers import Places, fetched, gs_server, s3_server
from tests.helpers.writing import (
    CHUNKS,
    SMALL,
    FailingFiles,
    KilledFiles,
    data_files,
    kill_while_writing,
    open_writer,
    resume_dataset,
    write_dataset,
)

FEWER = SizeLimits(segment_rows=400, segment_bytes=48_000, group_rows=50)
"""Limits under which there are half as many objects as under `SMALL`: each request takes a hundredth of a second."""

COLLECT = ("collect", "--timesteps", "30000", "--seed", "3", "--segment-bytes", "200000", "--quiet")


@pytest.fixture(scope="session")
def s3() -> Iterator[Places]:
    with s3_server() as (at, _):
        yield at


@pytest.fixture(scope="session")
def gs() -> Iterator[Places]:
    with gs_server() as at:
        yield at


@pytest.fixture(params=["s3", "gs"])
def place(request: pytest.FixtureRequest) -> Places:
    """Return URIs of folders that are the test's own."""
    at: Places = request.getfixturevalue(request.param)
    return lambda name: at(f"{request.node.name.replace('[', '-').strip(']')}/{name}")


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_dataset_in_an_object_store_is_that_of_a_folder(place: Places, tmp_path: Path) -> None:
    """The same objects as files, and nothing beside them; all commands that read take it."""
    uri, local = place("d"), tmp_path / "local"
    assert uri == rollout(*COLLECT, "--output", uri).stdout.strip()
    called(*COLLECT, "--output", local)
    copy = fetched(uri, tmp_path / "copy")
    assert_same_data(local, copy)
    assert stats_of(local) == stats_of(copy)
    assert names(local) == names(copy)
    called("verify", copy)
    assert "notes     0" in called("verify", uri).stdout
    assert '"episodes": 1365' in called("info", uri, "--json").stdout
    called("replay", "--trust", uri, "--episodes", "2")
    there, here = load(uri), load(local)
    assert len(here) == len(there)
    for at in (0, len(here) // 2, -1):
        assert (here[at].observations == there[at].observations).all()
    assert "--overwrite" in called(*COLLECT, "--output", uri, code=None).stderr


def test_a_killed_run_is_resumed(place: Places, tmp_path: Path) -> None:
    uri, local = place("d"), tmp_path / "local"
    # Long enough that it is still under way when its first commit is seen.
    collect = ("collect", "--timesteps", "400000", "--seed", "3", "--segment-bytes", "1000000", "--quiet")
    with running([*collect, "--output", uri]) as run:
        run.wait_until(lambda: has_commit(folder_of(uri)))
        run.process.send_signal(signal.SIGKILL)
        assert -signal.SIGKILL == run.end().code
    before = len(load(uri))
    called("collect", "--resume", "--quiet", "--output", uri)
    called(*collect, "--output", local)
    assert 0 < before < len(load(uri))
    assert_same_data(local, fetched(uri, tmp_path / "copy"))
    assert "notes     0" in called("verify", uri).stdout


class FailingObjects(FailingFiles, ObjectStore):
    """An object store in which an operation fails."""


class KilledObjects(KilledFiles, ObjectStore):
    """An object store whose client is killed."""


def count_of(path: Path, **options: Any) -> int:
    files = FailingObjects()
    write_dataset(path, CHUNKS, limits=FEWER, files=files, **options)
    return len(files.operations)


def test_a_kill_between_any_two_requests_loses_nothing_committed(s3: Places, tmp_path: Path) -> None:
    """Data objects whose episodes were not put do not count, and are replaced."""
    write_dataset(tmp_path / "whole", CHUNKS, limits=FEWER)
    expected, alone, resumed = data_files(tmp_path / "whole"), 0, 0
    for kill_at in range(4, count_of(folder_of(s3("kills/counted")))):
        path = folder_of(s3(f"kills/{kill_at}"))
        kill_while_writing(path, KilledObjects(kill_at), limits=FEWER)
        found = [len(list((path / name).rglob("*.parquet"))) for name in ("data", "meta/episodes")]
        assert found[0] in (found[1], found[1] + 1)
        alone += found[0] > found[1]
        committed = read_committed(path, read_info(path))
        assert () == committed.notices
        if committed.can_resume:
            assert found[1] == len(committed.segments)
            resume_dataset(path, CHUNKS, limits=FEWER)
            resumed += 1
            assert expected == data_files(path), kill_at
    assert alone
    assert resumed > 5


def test_an_object_is_put_once(s3: Places) -> None:
    """A folder's open segments grow at each flush; an object would be sent again each time."""
    files = FailingObjects()
    write_dataset(folder_of(s3("once/d")), CHUNKS, limits=SMALL, flush=True, files=files)
    put = [path for operation, path in files.operations if operation == "write" and path.suffix == ".parquet"]
    assert len(set(put)) == len(put) > 10


def test_a_kill_while_replacing_leaves_a_dataset_that_can_be_replaced(s3: Places, tmp_path: Path) -> None:
    write_dataset(tmp_path / "whole", CHUNKS, limits=FEWER)
    old = [episode(n, 50) for n in range(100, 130)]
    write_dataset(folder_of(s3("replace/counted")), old, limits=FEWER)
    kept = 0
    for kill_at in range(0, count_of(folder_of(s3("replace/counted")), overwrite=True), 3):
        path = folder_of(s3(f"replace/{kill_at}"))
        write_dataset(path, old, limits=FEWER)
        before = data_files(path)
        kill_while_writing(path, KilledObjects(kill_at), limits=FEWER, overwrite=True)
        kept += before == data_files(path)
        read_info(path)
        write_dataset(path, CHUNKS, limits=FEWER, overwrite=True)
        assert data_files(tmp_path / "whole") == data_files(path)
    assert kept


def test_what_is_recorded_of_a_run_is_not_in_the_dataset_before_it(s3: Places) -> None:
    """That one stays as it is until the first commit, also where the run ends without one."""
    path = folder_of(s3("recorded"))
    write_dataset(path, CHUNKS[:3], limits=SMALL)
    before = read_info(path)

    def interrupted() -> None:
        with open_writer(path, overwrite=True) as writer:
            for chunk in CHUNKS:
                writer.write(chunk)
            writer.record(files=[{"path": "a"}])
            assert before == read_info(path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert before == read_info(path)
    assert 3 == len(load(path))


def test_a_request_that_fails_is_a_storage_error_and_keeps_what_was_committed(s3: Places) -> None:
    for fail_at in range(3, count_of(folder_of(s3("fails/counted"))), 7):
        path = folder_of(s3(f"fails/{fail_at}"))
        with raises(StorageError, "write-failed", "No space left") as caught:
            write_dataset(path, CHUNKS, limits=FEWER, files=FailingObjects(fail_at))
        assert "AWS_ACCESS_KEY_ID" in caught.value.hint
        if committed := read_committed(path, read_info(path)).episodes if has_commit(path) else 0:
            assert f"{committed:,} episodes" in caught.value.hint


def test_a_server_that_ends_in_the_middle_ends_the_run_with_one_line() -> None:
    with (
        s3_server() as (at, server),
        running([*COLLECT, "--timesteps", "100000000", "--output", at("d")]) as run,
    ):
        run.wait_until(lambda: has_commit(folder_of(at("d"))))
        server.kill()
        ran = run.end()
    assert 5 == ran.code, ran.said
    assert re.search(r"\[server-(failed|silent)\]", ran.stderr), ran.said
    assert 2 == len(ran.stderr.splitlines()), ran.said


def test_a_damaged_object_is_found_and_moved_aside(s3: Places, tmp_path: Path) -> None:
    uri = s3("damage/d")
    root = folder_of(uri)
    called(*COLLECT, "--output", uri)
    last = max((root / "data").rglob("*.parquet"))
    last.write_bytes(last.read_bytes()[:-50])
    assert last.name in called("verify", uri, code=6).stderr
    with pytest.raises(DatasetFormatError):
        list(load(uri))
    called("repair", uri)
    called("verify", uri)
    assert any(".repair-" in str(path) for path in root.rglob("*.parquet"))
    called("collect", "--resume", "--quiet", "--output", uri)
    called(*COLLECT, "--output", tmp_path / "local")
    assert_same_data(tmp_path / "local", fetched(uri, tmp_path / "copy"))


def test_shards_in_a_bucket_are_merged(s3: Places, tmp_path: Path) -> None:
    words = ("collect", "--episodes", "600", "--seed", "3", "--quiet")
    called(*words, "--output", tmp_path / "whole")
    for shard in (1, 2):
        called(*words, "--shard", f"{shard}/2", "--output", s3(f"shards/{shard}"))
    called("merge", s3("shards/2"), s3("shards/1"), "--output", s3("shards/all"), "--quiet")
    assert_same_data(tmp_path / "whole", fetched(s3("shards/all"), tmp_path / "all"))


def test_what_cannot_be_used_is_one_line_and_an_exit_code(s3: Places) -> None:
    for uri, code, error in (
        (s3("x").replace("bucket", "other"), 5, "bucket-missing"),
        ("s3://bucket/x?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:9", 5, "server-failed"),
        ("s3://me:secret@bucket/x", 2, "uri-credentials"),
        ("s3://bucket/x?secret_key=secret", 2, "uri-option"),
        ("s3://bucket/x?anonymous=perhaps", 2, "uri-option"),
        ("s3:///x", 2, "uri-unknown"),
        ("ftp://host/x", 2, "uri-unknown"),
    ):
        for words in (("collect", "--timesteps", "10", "--output", uri), ("verify", uri)):
            ran = called(*words, code=code)
            assert f"[{error}]" in ran.stderr, ran.said
            assert 2 == len(ran.stderr.splitlines()), ran.said
            assert "secret@" not in ran.stderr
    assert "[not-a-dataset]" in called("verify", s3("nothing/here"), code=5).stderr
