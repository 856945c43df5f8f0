"""repair: the longest whole part of each lane becomes the dataset, and nothing is deleted."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset import CutLimits, load
from rollout_cli.dataset.verification.repair import repair
from rollout_cli.dataset.verification.verify import verify
from rollout_cli.errors import DatasetExistsError, DatasetFormatError, StorageError
from tests.support import damage
from tests.support.chunks import episode
from tests.support.damage import DATA, EPISODES, INFO, STATS, set_footer, set_json, set_values
from tests.support.datasets import FailingFiles, assert_same_batches, write_dataset

LIMITS = CutLimits(shard_bytes=12_000, min_shard_bytes=3_000, group_bytes=4_000, group_rows=60)
SECOND_DATA, SECOND = DATA.replace("file-00000", "file-00001"), EPISODES.replace("file-00000", "file-00001")
N = 60


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several files."""
    path = tmp_path_factory.mktemp("repair") / "out"
    episodes = [episode(n, 3 + n % 20, env_info=lambda n, s: {"x": s * 0.5}) for n in range(N)]
    assert (
        write_dataset(path, episodes, limits=LIMITS, header={"env": {"id": "Test-v0"}, "versions": {"a": "1"}}).shards
        > 2
    )
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def first_of(file: str, folder: Path) -> int:
    """Return the first episode of an episodes file."""
    return int(pq.read_table(folder / file)["episode_id"][0].as_py())


def hashes(folder: Path) -> set[str]:
    """Return the hash of each file's content."""
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def assert_repaired(folder: Path, pristine: Path, episodes: int) -> None:
    """Check that a dataset holds the first episodes of the pristine one, and knows it."""
    report = verify(folder)
    assert ((), ()) == (report.faults, report.notes)
    assert episodes == report.episodes == len(load(folder))
    if episodes:
        assert_same_batches(load(pristine)[:episodes].to_episode_batch(), load(folder).to_episode_batch())


def _flip_page(path: Path, group: int) -> None:
    pages = damage.page_bytes(path, "reward", group)
    damage.flip(path, pages[-3])


def _break_twice(root: Path) -> None:
    set_values(root / EPISODES, "root_seed", 4, [9])
    set_values(root / EPISODES, "return", 6, [0.5])


CASES: list[tuple[str, Callable[[Path], object], Callable[[Path], int]]] = [
    ("a wrong step", lambda root: set_values(root / SECOND_DATA, "step", 0, [7]), lambda root: first_of(SECOND, root)),
    ("a wrong return", lambda root: set_values(root / EPISODES, "return", 4, [0.5]), lambda root: 4),
    ("a flipped bit", lambda root: _flip_page(root / SECOND_DATA, 0), lambda root: first_of(SECOND, root)),
    (
        "a flipped bit in a later row group",
        lambda root: _flip_page(root / DATA, 1),
        lambda root: int(
            np.searchsorted(
                np.cumsum(pq.read_table(root / EPISODES)["length"].to_numpy()),
                pq.ParquetFile(root / DATA).metadata.row_group(0).num_rows,
                side="right",
            )
        ),
    ),
    (
        "two faults in one file",
        _break_twice,
        lambda root: 4,
    ),
    ("no data file", lambda root: (root / SECOND_DATA).unlink(), lambda root: first_of(SECOND, root)),
    ("no episodes file", lambda root: (root / SECOND).unlink(), lambda root: first_of(SECOND, root)),
    ("an empty file", lambda root: (root / SECOND).write_bytes(b""), lambda root: first_of(SECOND, root)),
    ("the first file", lambda root: (root / EPISODES).write_bytes(b""), lambda root: 0),
    ("a footer", lambda root: set_footer(root / SECOND, "rollout.settles", None), lambda root: first_of(SECOND, root)),
]


@pytest.mark.parametrize(("name", "harm", "expected"), CASES, ids=[case[0] for case in CASES])
def test_what_is_whole_stays(
    folder: Path, pristine: Path, name: str, harm: Callable[[Path], object], expected: Callable[[Path], int]
) -> None:
    """All episodes before the first fault stay, also of a file; the rest is aside, byte for byte."""
    episodes = expected(pristine)
    harm(folder)
    before = hashes(folder)
    tried = repair(folder, dry_run=True)
    assert before == hashes(folder)
    done = repair(folder)
    assert (episodes, "interrupted", True) == (done.episodes, done.status, done.changed)
    assert (tried.episodes, tried.steps, tried.moved, tried.cut) == (done.episodes, done.steps, done.moved, done.cut)
    assert_repaired(folder, pristine, episodes)
    left = hashes(folder)
    # README.md is written from info.json.
    lost = before - left - {hashlib.sha256((pristine / "README.md").read_bytes()).hexdigest()}
    assert set() == lost
    again = repair(folder)
    assert (False, None) == (again.changed, again.aside)
    assert left == hashes(folder)


def test_a_whole_dataset_is_left_alone(folder: Path) -> None:
    """Nothing is written."""
    before = hashes(folder)
    done = repair(folder)
    assert (False, "complete", N) == (done.changed, done.status, done.episodes)
    assert before == hashes(folder)
    assert not list(folder.glob(".*"))


def test_totals_and_statistics_are_written_anew(folder: Path, pristine: Path) -> None:
    """Where all files are whole, the dataset stays complete."""
    set_json(folder / INFO, episodes=3)
    (folder / STATS).write_text("{}")
    assert "complete" == repair(folder).status
    assert_repaired(folder, pristine, N)
    assert json.loads((pristine / STATS).read_text()) == json.loads((folder / STATS).read_text())


def test_what_a_killed_run_left(folder: Path, pristine: Path) -> None:
    """Unfinished files go aside, and the run counts as interrupted."""
    set_json(folder / INFO, status="collecting", episodes=1)
    (folder / "data/chunk-00000/.file-00099.parquet.tmp").write_bytes(b"PAR1")
    done = repair(folder)
    assert ("interrupted", ("data/chunk-00000/.file-00099.parquet.tmp",)) == (done.status, done.moved)
    assert_repaired(folder, pristine, N)


def test_files_of_the_users_stay(folder: Path) -> None:
    """What lies beside `data` and `meta` is none of ours."""
    (folder / "mine.txt").write_text("mine")
    assert not repair(folder).changed
    assert "mine" == (folder / "mine.txt").read_text()


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda path: path.write_text("{"),
        lambda path: set_json(path, spaces={"observation": {}, "action": {}}),
        lambda path: set_json(path, root_seed=5),
        lambda path: set_json(path, lanes=0),
    ],
)
def test_info_is_made_anew(folder: Path, pristine: Path, harm: Callable[[Path], None]) -> None:
    """From footers and rows, where it is lost or contradicts every file; the old one is kept."""
    harm(folder / INFO)
    before = hashes(folder)
    done = repair(folder)
    assert (True, "interrupted", N) == (done.rebuilt_info, done.status, done.episodes)
    assert_repaired(folder, pristine, N)
    old, new = (json.loads((path / INFO).read_text()) for path in (pristine, folder))
    for name in ("spaces", "features", "root_seed", "lanes", "base", "next_observation", "max_episode_length", "env"):
        assert old[name] == new[name], name
    assert before - hashes(folder) <= {hashlib.sha256((pristine / "README.md").read_bytes()).hexdigest()}


def test_info_of_lanes_is_made_anew(tmp_path: Path) -> None:
    """Chunk folders with a lane each tell that there are several."""
    path = tmp_path / "out"
    write_dataset(path, [episode(n, 4) for n in range(12)], lanes=[n // 4 for n in range(12)], n_lanes=3)
    (path / INFO).unlink()
    done = repair(path)
    assert (12, "interrupted") == (done.episodes, done.status)
    assert () == verify(path).faults
    assert 3 == json.loads((path / INFO).read_text())["lanes"]


def test_lanes_are_cut_by_themselves(tmp_path: Path) -> None:
    """A fault in one of them takes nothing from the others."""
    path = tmp_path / "out"
    write_dataset(path, [episode(n, 4) for n in range(12)], lanes=[n // 4 for n in range(12)], n_lanes=3)
    set_values(path / "data/chunk-00001/file-00000.parquet", "step", 9, [0])
    done = repair(path)
    assert 10 == done.episodes
    assert () == verify(path).faults
    assert [0, 1, 2, 3, 4, 5, 8, 9, 10, 11] == load(path).episodes["episode_id"].to_pylist()


def test_what_cannot_be_told(folder: Path, tmp_path: Path) -> None:
    """Without info.json and any readable shard it says what to do; a folder without a dataset is none."""
    (folder / INFO).unlink()
    for path in folder.rglob("*.parquet"):
        path.write_bytes(b"")
    before = hashes(folder)
    with pytest.raises(DatasetFormatError, match=r"no info\.json that can be read") as caught:
        repair(folder)
    assert "copy" in caught.value.hint
    assert before == hashes(folder)
    with pytest.raises(DatasetFormatError, match="is not a dataset"):
        repair(tmp_path)


def test_a_repair_can_fail_anywhere_and_be_tried_again(folder: Path, pristine: Path, tmp_path: Path) -> None:
    """Whichever operation fails, and all after it, the next repair ends as the first would have; nothing is lost."""
    set_values(folder / SECOND_DATA, "step", 30, [0])
    before = hashes(folder)
    healthy = FailingFiles()
    episodes = repair(Path(shutil.copytree(folder, tmp_path / "healthy")), files=healthy).episodes
    assert first_of(SECOND, pristine) < episodes < N
    card = hashlib.sha256((pristine / "README.md").read_bytes()).hexdigest()
    for fail_at in range(0, len(healthy.operations), 3):
        path = Path(shutil.copytree(folder, tmp_path / f"out-{fail_at}"))
        with pytest.raises(StorageError, match="No space left"):
            repair(path, files=FailingFiles(fail_at, for_good=True))
        done = repair(path)
        assert episodes == done.episodes, fail_at
        assert_repaired(path, pristine, episodes)
        assert before - hashes(path) <= {card}, fail_at
        shutil.rmtree(path)


def test_overwriting_a_repaired_dataset(folder: Path) -> None:
    """It is ours still; what was moved aside stays where it is."""
    (folder / SECOND).unlink()
    aside = repair(folder).aside
    assert aside is not None
    with pytest.raises(DatasetExistsError):
        write_dataset(folder, [episode(0, 3)])
    write_dataset(folder, [episode(0, 3)], overwrite=True)
    assert list(aside.rglob("*.parquet"))
    assert ((), ()) == (verify(folder).faults, verify(folder).notes)
