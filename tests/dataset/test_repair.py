"""repair: the whole segments before the first fault of each partition become the dataset, and nothing is deleted."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset import repair
from rollout_cli.dataset.folder import FolderLock
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.repair import repair_dataset
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.store import FileStore
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import DatasetFormatError, DatasetLockedError, StorageError
from tests.helpers.batches import assert_same_steps
from tests.helpers.chunks import episode
from tests.helpers.damage import (
    INFO,
    STATS,
    data,
    episodes,
    flip,
    make_fifo,
    make_file,
    make_folder,
    page_bytes,
    set_footer,
    set_json,
    set_values,
)
from tests.helpers.datasets import set_source, source_of
from tests.helpers.errors import raises
from tests.helpers.thorough import usually
from tests.helpers.writing import (
    RICH_SPEC,
    SMALL,
    FailingFiles,
    Killed,
    KilledFiles,
    data_files,
    resume_dataset,
    rich_episodes,
    write_dataset,
)

N = 119
FIRST, SECOND = 0, 1
Harm = Callable[[Path], object]
LIMITS = replace(SMALL, segment_rows=400, segment_bytes=64_000)
"""Seven segments rather than twenty: each file costs time in every test."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of many segments."""
    path = tmp_path_factory.mktemp("repair") / "out"
    header = {"env": {"id": "Test-v0"}, "versions": {"a": "1"}}
    assert write_dataset(path, rich_episodes(), spec=RICH_SPEC, limits=LIMITS, header=header).segments > 5
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def count_before(root: Path, segment: int) -> int:
    """Return how many episodes the segments before this one have."""
    files = sorted((root / "meta/episodes").rglob("*.parquet"))[:segment]
    return sum(pq.ParquetFile(file).metadata.num_rows for file in files)


def hashes(folder: Path) -> set[str]:
    """Return the hash of each file's content."""
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def assert_repaired(folder: Path, pristine: Path, expected: int) -> None:
    """Check that a dataset holds the first episodes of the pristine one, and states so."""
    report = verify_dataset(folder)
    assert ([], []) == (report.faults, report.notes)
    assert expected == report.document()["episodes"] == len(load(folder)) == read_info(folder)["episodes"]
    if expected:
        assert_same_steps(load(pristine)[:expected].to_episode_batch(), load(folder).to_episode_batch())


def lose(root: Path, segment: int) -> None:
    (root / data(segment)).unlink()
    (root / episodes(segment)).unlink()


def lose_tail(root: Path) -> None:
    lose(root, len(data_files(root)) - 1)


LAST = -1
ROWS: list[tuple[str, Harm, int]] = [
    # What is broken, and the segments that stay.
    ("a wrong step", lambda root: set_values(root / data(SECOND), "step", 0, [7]), SECOND),
    ("a wrong return", lambda root: set_values(root / episodes(SECOND), "return", 1, [0.5]), SECOND),
    (
        "a flipped bit",
        lambda root: flip(root / data(SECOND), page_bytes(root / data(SECOND), "reward")[-3]),
        SECOND,
    ),
    ("a flipped bit in the footer", lambda root: flip(root / episodes(SECOND), -600), SECOND),
    ("no data file in the middle", lambda root: (root / data(SECOND)).unlink(), SECOND),
    ("no episodes file in the middle", lambda root: (root / episodes(SECOND)).unlink(), SECOND),
    ("no segment in the middle", lambda root: lose(root, 1), SECOND),
    ("an empty file", lambda root: (root / episodes(SECOND)).write_bytes(b""), SECOND),
    ("the first file", lambda root: (root / episodes(FIRST)).write_bytes(b""), FIRST),
    ("no record", lambda root: set_footer(root / episodes(SECOND), "rollout.segment", None), SECOND),
    ("a data file is a FIFO", lambda root: make_fifo(root / data(SECOND)), SECOND),
    ("a data file is a folder", lambda root: make_folder(root / data(SECOND)), SECOND),
    ("data is a file", lambda root: make_file(root / "data"), FIRST),
    ("meta/episodes is a file", lambda root: make_file(root / "meta/episodes"), FIRST),
    ("the tail is missing", lose_tail, LAST),
    (
        "the last episodes file is missing",
        lambda root: max((root / "meta").rglob("*.parquet")).unlink(),
        LAST,
    ),
    ("all episodes files are missing", lambda root: shutil.rmtree(root / "meta/episodes"), FIRST),
    ("all data files are missing", lambda root: shutil.rmtree(root / "data"), FIRST),
]


@pytest.mark.parametrize(("name", "harm", "segments"), ROWS, ids=[row[0] for row in ROWS])
def test_whole_segments_stay_and_the_dataset_is_interrupted(
    folder: Path, pristine: Path, name: str, harm: Harm, segments: int
) -> None:
    """Never `complete`; all else is aside, byte for byte; a second repair changes nothing."""
    expected = count_before(pristine, segments if segments != LAST else len(data_files(pristine)) - 1)
    harm(folder)
    before, names = hashes(folder), {path for path in folder.rglob("*") if not path.is_dir()}
    tried = repair_dataset(folder, dry_run=True)
    assert (before, names) == (hashes(folder), {path for path in folder.rglob("*") if not path.is_dir()})
    done = repair_dataset(folder)
    assert (expected, "interrupted", True) == (done.episodes, done.status, done.changed)
    assert (tried.episodes, tried.steps, tried.moved) == (done.episodes, done.steps, done.moved)
    assert_repaired(folder, pristine, expected)
    assert_nothing_is_lost(before, folder, pristine)
    left = hashes(folder)
    again = repair_dataset(folder)
    assert (False, None, "interrupted") == (again.changed, again.aside, again.status)
    assert left == hashes(folder)


def assert_nothing_is_lost(before: set[str], folder: Path, pristine: Path) -> None:
    """The card is written from info.json; of info.json and stats.json the old ones are aside, if files are."""
    written = {
        hashlib.sha256((pristine / name).read_bytes()).hexdigest() for name in ("README.md", INFO, STATS)
    }
    assert set() == before - hashes(folder) - written


@pytest.mark.parametrize("name", ["no data file in the middle", "the tail is missing", "a flipped bit"])
def test_a_repaired_dataset_is_resumed_to_the_same_bytes(folder: Path, pristine: Path, name: str) -> None:
    """That is the better half of a repair: the missing episodes are collected again."""
    next(harm for row, harm, _ in ROWS if row == name)(folder)
    repair_dataset(folder)
    resume_dataset(folder, rich_episodes(), spec=RICH_SPEC, limits=LIMITS, header={"env": {"id": "Test-v0"}})
    assert [1, 1] == [len(read_info(folder)["times"][name]) for name in ("repaired", "resumed")]
    assert data_files(pristine) == data_files(folder)
    assert ([], "complete") == (verify_dataset(folder).faults, read_info(folder)["status"])


def test_a_whole_dataset_is_left_alone(folder: Path) -> None:
    """Nothing is written, and files of the user's stay."""
    (folder / "mine.txt").write_text("mine")
    before = hashes(folder)
    done = repair_dataset(folder)
    assert (False, "complete", N, None) == (done.changed, done.status, done.episodes, done.aside)
    assert before == hashes(folder)
    assert not list(folder.glob(".*"))
    document = done.document()
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize(
    "harm",
    [
        lambda root: set_json(root / STATS, reward={}),
        lambda root: (root / STATS).unlink(),
        lambda root: set_json(root / INFO, bytes=3),
    ],
)
def test_totals_and_statistics_are_written_anew(folder: Path, pristine: Path, harm: Harm) -> None:
    """Where no episode is missing, the dataset stays complete."""
    harm(folder)
    assert ("complete", True) == (repair_dataset(folder).status, not repair_dataset(folder).changed)
    assert_repaired(folder, pristine, N)
    assert json.loads((pristine / STATS).read_text()) == json.loads((folder / STATS).read_text())


def test_unfinished_files_of_a_killed_run_go_aside(folder: Path, pristine: Path) -> None:
    """And the run counts as interrupted."""
    set_json(folder / INFO, status="collecting", episodes=1)
    (folder / ".data-00000-00099.parquet.tmp").write_bytes(b"PAR1")
    shutil.copy(folder / data(0), folder / data(99))
    done = repair_dataset(folder)
    assert ("interrupted", (data(99), ".data-00000-00099.parquet.tmp")) == (done.status, done.moved)
    assert_repaired(folder, pristine, N)


def test_the_record_of_what_is_dropped_and_odd_is_of_what_stays(folder: Path, pristine: Path) -> None:
    """As the writer would have recorded it."""
    lose_tail(folder)
    repair_dataset(folder)
    before, after = (read_info(path) for path in (pristine, folder))
    assert before["features"] == after["features"]
    assert before["sources"] == after["sources"]
    assert before["times"].items() <= (after["times"] | {"updated": before["times"]["updated"]}).items()
    assert 1 == len(after["times"]["repaired"])
    assert [one for one in before["anomalies"] if one["episode"] < after["episodes"]] == after["anomalies"]


def test_what_was_said_of_the_whole_run_is_not_said_of_a_part(folder: Path) -> None:
    """What ended it, how many episodes it kept, and a picture of their returns; a whole dataset keeps that."""
    acceptance = {"next_number": N, "run": N, "kept": N, "rejected": 0, "rate": 1.0}
    set_source(folder, stopped_by="episodes", acceptance=acceptance)
    set_json(folder / INFO, card={"license": "mit", "plot": True})
    (folder / data(99)).write_bytes(b"")
    repair_dataset(folder)
    assert ("episodes", acceptance) == tuple(source_of(folder)[name] for name in ("stopped_by", "acceptance"))
    lose_tail(folder)
    repair_dataset(folder)
    assert not {"stopped_by", "acceptance"} & source_of(folder).keys()
    assert {"license": "mit", "plot": False} == read_info(folder)["card"]
    assert "returns.png" not in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (Path.unlink, ("not-a-dataset",)),
        (lambda path: path.write_text("{"), ("info-not-json",)),
        (lambda path: set_json(path, spaces={"observation": {}, "action": {}}), ("info-features",)),
        (lambda path: set_json(path, partitions="1"), ("info-value", "partitions", "'1'")),
        (lambda path: set_json(path, first_numbers=[0, 9]), ("info-value", "first_numbers", "[0, 9]")),
    ],
)
def test_a_lost_info_is_not_made_anew(folder: Path, harm: Harm, error: tuple[str, ...]) -> None:
    """The files do not have all that it records; the error says what helps, and nothing is changed."""
    harm(folder / INFO)
    before = hashes(folder)
    with raises(DatasetFormatError, *error) as caught:
        repair_dataset(folder)
    assert "meta/info.json" in caught.value.hint
    assert before == hashes(folder)
    assert not list(folder.glob(".*"))


def test_partitions_are_cut_by_themselves(tmp_path: Path) -> None:
    """A fault in one of them takes nothing from the others."""
    path = tmp_path / "out"
    chunks, partitions = [episode(n, 20) for n in range(120)], [n // 40 for n in range(120)]
    write_dataset(path, chunks, limits=SMALL, partitions=partitions, first_numbers=[0, 40, 80])
    set_values(path / data(1, chunk=1), "step", 9, [0])
    done = repair_dataset(path)
    assert ([], done.episodes) == (verify_dataset(path).faults, len(load(path)))
    kept = load(path).episodes["episode_id"].to_pylist()
    assert [*range(40), *range(80, 120)] == [one for one in kept if not 40 <= one < 80]
    assert 0 < len([one for one in kept if 40 <= one < 80]) < 40


@pytest.mark.parametrize("version", [1, 99])
def test_a_dataset_of_another_version_is_left_alone(folder: Path, version: int) -> None:
    """It needs the version that made it."""
    set_json(folder / INFO, format_version=version)
    with raises(DatasetFormatError, "info-version", version) as caught:
        repair_dataset(folder)
    assert "rollout-collect" in caught.value.hint


def test_a_dataset_that_is_being_written_is_left_alone(folder: Path) -> None:
    lock = FolderLock(FileStore(), folder)
    try:
        with pytest.raises(DatasetLockedError):
            repair_dataset(folder)
        assert not repair_dataset(folder, dry_run=True).changed
    finally:
        lock.release()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset with a fault in the middle and an unfinished file."""
    path = tmp_path_factory.mktemp("broken") / "out"
    assert (
        4
        == write_dataset(
            path, [episode(n, 9) for n in range(12)], limits=SizeLimits(segment_rows=30)
        ).segments
    )
    set_values(path / data(2), "step", 3, [0])
    (path / ".data-00000-00099.parquet.tmp").write_bytes(b"PAR1")
    return path


def repair_through(files: FileStore, path: Path) -> None:
    """Repair a dataset, with a store of the test's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair, "file_store", lambda _: files)
        repair_dataset(path)


@pytest.mark.parametrize("kind", usually(["fails", "is killed"], lambda kind: kind == "is killed"))
def test_a_repair_that_ends_early_is_completed_by_the_next(broken: Path, tmp_path: Path, kind: str) -> None:
    """Whichever operation is its last: the same episodes stay, nothing is lost, and nothing is called complete."""
    expected, before = count_before(broken, 2), hashes(broken)
    healthy = FailingFiles()
    repair_through(healthy, shutil.copytree(broken, tmp_path / "healthy"))
    for at in range(kind == "fails", len(healthy.operations), 2):
        path = Path(shutil.copytree(broken, tmp_path / f"out-{at}"))
        if kind == "fails":
            with raises(StorageError, "write-failed"):
                repair_through(FailingFiles(at, for_good=True), path)
        else:
            with pytest.raises(Killed):
                repair_through(KilledFiles(at), path)
        done = repair_dataset(path)
        assert (expected, "interrupted") == (done.episodes, done.status), at
        assert (expected, []) == (len(load(path)), verify_dataset(path).faults), at
        assert_nothing_is_lost(before, path, broken)
        shutil.rmtree(path)


def test_a_repaired_dataset_may_be_overwritten(folder: Path) -> None:
    """What was moved aside stays where it is."""
    (folder / episodes(1)).unlink()
    aside = repair_dataset(folder).aside
    assert aside is not None
    moved = hashes(aside)
    write_dataset(folder, [episode(0, 3)], overwrite=True)
    assert moved == hashes(aside)
    assert ([], []) == (verify_dataset(folder).faults, verify_dataset(folder).notes)
