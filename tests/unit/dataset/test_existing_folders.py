"""What happens to a folder that already holds something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollout_cli.dataset import DatasetWriter, load
from rollout_cli.errors import DatasetExistsError, StorageError
from tests.support.chunks import BOX_SPEC, episode
from tests.support.datasets import FailingFiles, data_files, leftovers, write_dataset


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    """As a missing one is."""
    assert 1 == write_dataset(tmp_path, [episode(0, 3)]).episodes


def test_a_dataset_is_not_replaced_unasked(tmp_path: Path) -> None:
    """The hint names the option; nothing changes."""
    write_dataset(tmp_path, [episode(0, 3)])
    before = data_files(tmp_path)
    with pytest.raises(DatasetExistsError, match="not empty") as caught:
        write_dataset(tmp_path, [episode(1, 3)])
    assert "--overwrite" in caught.value.hint
    assert 5 == caught.value.exit_code
    assert before == data_files(tmp_path)


def test_a_dataset_is_replaced_when_asked(tmp_path: Path) -> None:
    """Nothing of the old one stays."""
    write_dataset(tmp_path, [episode(number, 3) for number in range(5)])
    write_dataset(tmp_path, [episode(9, 4)], overwrite=True)
    assert [9] == load(tmp_path).to_episode_batch().numbers.tolist()
    assert 1 == len(data_files(tmp_path))
    assert [] == leftovers(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "data", "README.md"])
def test_what_is_not_ours_is_never_replaced(tmp_path: Path, name: str) -> None:
    """A folder without our info.json, whatever its files are called."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(DatasetExistsError):
        write_dataset(tmp_path, [episode(0, 3)], overwrite=True)
    assert "mine" == (tmp_path / name).read_text()


def test_a_dataset_with_a_file_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    """It is named in the error."""
    write_dataset(tmp_path, [episode(0, 3)])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DatasetExistsError, match=r"notes\.txt"):
        write_dataset(tmp_path, [episode(1, 3)], overwrite=True)
    assert [0] == load(tmp_path).to_episode_batch().numbers.tolist()


def test_somebody_elses_info_is_not_ours(tmp_path: Path) -> None:
    """Other tools write a meta/info.json too."""
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text('{"codebase_version": "v3.0"}')
    with pytest.raises(DatasetExistsError, match="not a dataset of ours"):
        write_dataset(tmp_path, [episode(0, 3)], overwrite=True)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    """The output must be a folder."""
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DatasetExistsError, match="is a file"):
        write_dataset(tmp_path / "out", [episode(0, 3)], overwrite=True)


def test_replacing_can_fail_anywhere_and_be_tried_again(tmp_path: Path) -> None:
    """At each operation until the new dataset is begun, the folder is one that `overwrite` accepts."""
    healthy = FailingFiles()
    write_dataset(tmp_path / "count", [episode(0, 3)])
    DatasetWriter(tmp_path / "count", env_spec=BOX_SPEC, root_seed=0, overwrite=True, files=healthy)
    assert len(healthy.operations) > 15
    for fail_at in range(len(healthy.operations)):
        path = tmp_path / f"out-{fail_at}"
        write_dataset(path, [episode(0, 3)])
        with pytest.raises(StorageError, match="No space left"):
            write_dataset(path, [episode(1, 3)], overwrite=True, files=FailingFiles(fail_at, for_good=True))
        write_dataset(path, [episode(2, 3)], overwrite=True)
        assert [2] == load(path).to_episode_batch().numbers.tolist()
        assert [] == leftovers(path)


@pytest.mark.parametrize("name", ["data/notes.txt", "data/chunk-00000/mine.parquet", "meta/mine", "meta/episodes/x"])
def test_files_of_the_users_inside_are_not_removed(tmp_path: Path, name: str) -> None:
    """However deep they lie, they are named in the error."""
    write_dataset(tmp_path, [episode(0, 3)])
    (tmp_path / name).write_text("mine")
    with pytest.raises(DatasetExistsError, match=re.escape(repr(name))):
        write_dataset(tmp_path, [episode(1, 3)], overwrite=True)
    assert "mine" == (tmp_path / name).read_text()


@pytest.mark.parametrize("name", ["data", "data/chunk-00000", "meta/episodes", "README.md", ".replaced"])
def test_links_inside_are_refused(tmp_path: Path, name: str) -> None:
    """What they lead to is somebody's, so neither it nor they are touched."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    write_dataset(out, [episode(0, 3)])
    if (out / name).exists():
        (out / name).rename(elsewhere)
    else:
        write_dataset(elsewhere, [episode(7, 3)])
    (out / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*")) if elsewhere.is_dir() else elsewhere.read_bytes()
    with pytest.raises(DatasetExistsError, match=re.escape(repr(name))):
        write_dataset(out, [episode(1, 3)], overwrite=True)
    assert (out / name).is_symlink()
    assert before == (sorted(elsewhere.rglob("*")) if elsewhere.is_dir() else elsewhere.read_bytes())


def test_a_link_to_a_dataset_is_the_dataset(tmp_path: Path) -> None:
    """It is replaced where it lies, and the link goes on leading to it."""
    write_dataset(tmp_path / "out", [episode(0, 3)])
    (tmp_path / "link").symlink_to(tmp_path / "out")
    write_dataset(tmp_path / "link", [episode(1, 3)], overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert [1] == load(tmp_path / "out").to_episode_batch().numbers.tolist()


@pytest.mark.parametrize(("below", "told"), [(".", "is the working"), ("data/chunk-00000", "holds the working")])
def test_what_holds_the_working_folder_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str, told: str
) -> None:
    """Nobody is left standing in a folder that is gone."""
    write_dataset(tmp_path, [episode(0, 3)])
    monkeypatch.chdir(tmp_path / below)
    with pytest.raises(DatasetExistsError, match=told):
        write_dataset(tmp_path, [episode(1, 3)], overwrite=True)
    assert (tmp_path / below).samefile(".")


def test_what_holds_the_home_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has been written there."""
    write_dataset(tmp_path, [episode(0, 3)])
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DatasetExistsError, match="is the home folder"):
        write_dataset(tmp_path, [episode(1, 3)], overwrite=True)


def test_a_run_that_came_to_nothing_removes_its_own_only(tmp_path: Path) -> None:
    """The folder goes if it was made for it and nothing else has come there since."""
    there, noted, gone = tmp_path / "there", tmp_path / "noted", tmp_path / "gone"
    there.mkdir()
    for path in (there, noted, gone):
        writer = DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0)
        if path == noted:
            (path / "notes.txt").write_text("mine")
        writer.remove()
    assert [noted, there] == sorted(tmp_path.iterdir())
    assert ([noted / "notes.txt"], []) == (list(noted.iterdir()), list(there.iterdir()))
