"""What happens to a folder that already holds something."""

from __future__ import annotations

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
