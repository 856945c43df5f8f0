"""URIs as paths, and a file system with renames behind one. The gallery has object stores."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from rollout_cli.cli.app import run
from rollout_cli.dataset.committed import read_committed
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.repair import repair_dataset
from rollout_cli.dataset.store import RemoteStore, file_store
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import StorageError, UsageError
from rollout_cli.sources import remote
from rollout_cli.sources.remote import RemotePath, folder_of
from tests.helpers.chunks import episode
from tests.helpers.errors import raises
from tests.helpers.servers import SilentStore
from tests.helpers.writing import (
    CHUNKS,
    SMALL,
    FailingFiles,
    KilledFiles,
    all_files,
    data_files,
    kill_while_writing,
    open_writer,
    resume_dataset,
    third_of,
    wait_for_writes,
    write_dataset,
)

URI = "s3://bucket/some/folder?region=eu-west-1&endpoint_override=127.0.0.1:9000"


def test_a_uri_is_a_path_that_keeps_its_options() -> None:
    path = folder_of(URI)
    assert URI == str(path)
    assert "s3://bucket/some/folder/meta/info.json?" in str(path / "meta" / "info.json")
    assert (path / "meta" / "x").relative_to(path).as_posix() == "meta/x"
    assert "." == str(path.relative_to(path))
    assert (
        path
        == (path / "meta").parent
        == pickle.loads(pickle.dumps(path))
        == copy.deepcopy(path)
        == folder_of(path)
    )
    assert {path, path / "a"} == {folder_of(URI), folder_of(URI) / "a"}
    assert path != folder_of(URI.replace("eu-west", "eu-north"))
    assert sorted([path / "b", path / "a"]) == [path / "a", path / "b"]
    assert path == path.absolute() == path.resolve()


def test_a_uri_of_the_hub_has_a_revision_and_cannot_be_written() -> None:
    path = folder_of("hf://datasets/me/d@feature%2Fx/part")
    assert isinstance(path, RemotePath)
    assert "hf://datasets/me/d@feature%2Fx/part/meta/info.json" == str(path / "meta" / "info.json")
    assert path == pickle.loads(pickle.dumps(path))
    with raises(UsageError, "uri-read-only", path) as caught:
        file_store(path)
    assert "rollout push" in caught.value.hint


def test_a_file_uri_and_a_plain_name_are_local_paths() -> None:
    assert Path("/data/my runs") == folder_of("file:///data/my%20runs")
    for name in ("runs/1", "c:x", "s3:", "a?b", "/x//y"):
        assert type(folder_of(name)) is type(Path(name))
        assert Path(name) == folder_of(name)


def test_what_would_leave_the_uri_for_the_disk_of_this_machine_is_an_error() -> None:
    path = folder_of(URI)
    for use in (path.open, path.read_text, path.touch, lambda: path.write_text("x"), lambda: path.chmod(0)):
        with pytest.raises(TypeError, match="not a local path"):
            use()


@pytest.mark.parametrize(
    ("uri", "code", "value"),
    [
        ("s3://user:secret@bucket/x", "uri-credentials", "s3://"),
        ("s3://bucket/x?endpoint_override=user:secret@host", "uri-credentials", "s3://"),
        ("s3://bucket/x?access_key=a", "uri-option", "'access_key'"),
        ("gs://bucket/x?anonymous=1", "uri-option", "anonymous=1"),
        ("s3:///x", "uri-unknown", "s3://"),
        ("http://host/x", "uri-unknown", "http://host"),
        ("file://host/x", "uri-unknown", "file://host"),
        (Path("s3://bucket/x"), "uri-as-path", "bucket/x"),
        (Path("hf://datasets/me/d"), "uri-as-path", "me/d"),
        ("hf://datasets/me", "uri-not-a-hub-dataset", "hf://datasets/me"),
        ("hf://me/d", "uri-not-a-hub-dataset", "hf://me/d"),
        ("hf://datasets/me/d?token=secret", "uri-option", "'token'"),
        ("hf://me:secret@datasets/me/d", "uri-credentials", "hf://"),
    ],
)
def test_a_uri_that_cannot_be_used_is_a_usage_error(uri: Any, code: str, value: str) -> None:
    with raises(UsageError, code, value) as caught:
        folder_of(uri)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_the_region_of_a_bucket_is_asked_for_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "resolve_s3_region", {"paris": "eu-west-3"}.__getitem__)
    asked = {
        ("paris", ""): "eu-west-3",
        ("paris", "region=us-east-2"): "us-east-2",
        ("mine", "endpoint_override=127.0.0.1:9000"): "us-east-1",
    }
    assert list(asked.values()) == [remote._connect("s3", *origin).region for origin in asked]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    assert "us-east-1" == remote._connect("s3", "other", "").region


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemotePath:
    """A folder of a file system with renames: pyarrow's local one stands in the place of Hadoop's."""
    (tmp_path / "server").mkdir()
    served = fs.SubTreeFileSystem(str(tmp_path / "server"), fs.LocalFileSystem())
    monkeypatch.setattr(remote, "_connect", lambda *_: served)
    path = folder_of("hdfs://namenode:8020/user/me/runs")
    assert isinstance(path, RemotePath)
    path.mkdir(parents=True)
    return path


class FailingServer(FailingFiles, RemoteStore):
    """A server on which an operation fails."""


class KilledClient(KilledFiles, RemoteStore):
    """A server whose client is killed."""


def count_of(path: Path) -> int:
    files = FailingServer()
    write_dataset(path, CHUNKS, limits=SMALL, files=files)
    return len(files.operations)


def test_the_files_are_those_of_a_local_dataset(root: RemotePath, tmp_path: Path) -> None:
    for path in (root / "d", tmp_path / "d"):
        write_dataset(path, CHUNKS, limits=SMALL, flush=True)
        assert not verify_dataset(path).faults
    here, there = all_files(tmp_path / "d"), all_files(root / "d")
    assert set(here) == set(there)
    assert data_files(tmp_path / "d") == data_files(root / "d")
    assert len(CHUNKS) == len(load(str(root / "d")))
    last = max((root / "d" / "data").rglob("*.parquet"))
    last.write_bytes(b"no Parquet")
    assert verify_dataset(root / "d").faults
    assert repair_dataset(root / "d").changed
    assert not verify_dataset(root / "d").faults


def test_all_datasets_below_a_uri_are_listed(root: RemotePath, capsys: pytest.CaptureFixture[str]) -> None:
    """However deep they lie."""
    below = [root / "one", root / "sweep" / "two", root / "sweep" / "deep" / "three"]
    for path in below:
        write_dataset(path, CHUNKS[:1])
    for folder, expected in ((root, below), (root / "sweep", below[1:]), (root / "one", below[:1])):
        assert 0 == run(["list", str(folder), "--json"])
        listed = [row["path"] for row in json.loads(capsys.readouterr().out)["datasets"]]
        assert sorted(map(str, expected)) == listed


def test_a_kill_at_any_operation_loses_nothing_committed(root: RemotePath, tmp_path: Path) -> None:
    write_dataset(tmp_path / "whole", CHUNKS, limits=SMALL)
    resumed = 0
    for kill_at in third_of(range(2, count_of(root / "counted"), 3)):
        path = root / f"d{kill_at}"
        kill_while_writing(path, KilledClient(kill_at))
        if (path / "meta/info.json").exists() and read_committed(path, read_info(path)).can_resume:
            resume_dataset(path, CHUNKS, limits=SMALL)
            assert data_files(tmp_path / "whole") == data_files(path), kill_at
            resumed += 1
    assert resumed > 1


def test_an_operation_that_fails_has_the_hint_of_its_server(root: RemotePath) -> None:
    for fail_at in range(2, count_of(root / "counted"), 11):
        with raises(StorageError, "write-failed") as caught:
            write_dataset(root / f"d{fail_at}", CHUNKS, limits=SMALL, files=FailingServer(fail_at))
        assert "HADOOP_HOME" in caught.value.hint


def test_replacing_keeps_the_old_dataset_until_a_commit(root: RemotePath) -> None:
    write_dataset(root / "d", CHUNKS[:3], limits=SMALL)
    before = data_files(root / "d")
    writer = open_writer(root / "d", limits=SMALL, overwrite=True)
    writer.write(CHUNKS[4])
    assert before == data_files(root / "d")
    writer.abort()
    write_dataset(root / "d", CHUNKS[3:5], limits=SMALL, overwrite=True)
    assert 2 == read_info(root / "d")["episodes"]
    assert not verify_dataset(root / "d").notes


@pytest.mark.thorough
@pytest.mark.skipif(
    int(pa.__version__.partition(".")[0]) < 21, reason="pyarrow 20 and older write in several requests"
)
def test_a_server_that_answers_no_more_is_asked_for_one_thing_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as a request is tried (four times, as the documents say); the rest of the ending does not wait again."""
    assert 4 == remote._ATTEMPTS
    monkeypatch.setattr(remote, "_ATTEMPTS", 2)
    monkeypatch.setattr(remote, "_SILENT_SECONDS", 2.0)  # A request on a busy machine is answered within it.
    with closing(SilentStore()) as store, pytest.raises(StorageError) as caught:  # noqa: SIM117, PT012
        with open_writer(store.uri, limits=SMALL) as writer:
            for number in range(4):
                writer.write(episode(number, 300))  # Each is a segment by itself.
            wait_for_writes(writer)
            store.fall_silent()
            writer.close(status="complete")
    assert caught.value.code in {"server-silent", "server-failed"}  # Whichever request was first.
    assert all(part in caught.value.hint for part in (str(folder_of(store.uri)), "resume=True"))
    assert (2, 1) == (len(store.unanswered), len(set(store.unanswered)))
