"""verify: what is whole or only unfinished has no fault; files that are missing or lie elsewhere are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset.verification.verify import verify
from tests.support import damage
from tests.support.damage import DATA, EPISODES, INFO, set_json
from tests.support.datasets import write_dataset
from tests.unit.dataset.broken_dataset import LENGTHS, SECOND, first_rows, folder, found, pristine, problems

__all__ = ["folder", "pristine"]


def test_what_was_written_is_whole(pristine: Path) -> None:
    """No fault, no note, and the totals are those of the episodes."""
    report = verify(pristine)
    assert ((), ()) == (report.faults, report.notes)
    assert (30, sum(LENGTHS), "complete") == (report.episodes, report.steps, report.status)
    assert report.files == 2 * json.loads((pristine / INFO).read_text())["shards"]


@pytest.mark.parametrize(
    ("file", "problem"), [(SECOND[1], "missing, and there are later ones"), (SECOND[0], "it is missing")]
)
def test_missing_files(folder: Path, file: str, problem: str) -> None:
    """The one that is missing is named, and of a data file its episodes."""
    ids = pq.read_table(folder / SECOND[1])["episode_id"].to_pylist()
    (folder / file).unlink()
    report = verify(folder)
    assert problem in problems(report)[file]
    assert (set(ids) if file == SECOND[0] else set()) == found(report, file)


def test_what_does_no_harm_is_noted(folder: Path) -> None:
    """Unfinished files, foreign ones, a missing card, and a data file that nothing commits."""
    (folder / "data/chunk-00000/.file-00099.parquet.tmp").write_bytes(b"PAR1")
    (folder / "data/notes.parquet").write_bytes(b"")
    (folder / "mine.txt").write_text("mine")
    (folder / "README.md").unlink()
    shutil.copy(folder / DATA, folder / "data/chunk-00000/file-00098.parquet")
    (folder / ".repair-20260101T000000Z/data").mkdir(parents=True)
    report = verify(folder)
    assert () == report.faults
    expected = ["file-00098", ".file-00099", "notes.parquet", "mine.txt", "README.md"]
    assert expected == [next(name for name in expected if name in note) for note in report.notes]


def test_files_without_checksums_are_noted(folder: Path) -> None:
    """Written anew by somebody else they are sound as far as one can see, and it is told how far that is."""
    for path in (folder / DATA, folder / SECOND[0]):
        file = pq.ParquetFile(path)
        groups = [file.read_row_group(at) for at in range(file.num_row_groups)]
        size = path.stat().st_size
        with pq.ParquetWriter(path, file.schema_arrow, write_page_checksum=False) as writer:
            for group in groups:
                writer.write_table(group)
        info = json.loads((folder / INFO).read_text())
        set_json(folder / INFO, bytes=info["bytes"] + path.stat().st_size - size)
    report = verify(folder)
    assert () == report.faults
    (note,) = report.notes
    assert f"without page checksums: 2, the first of them {DATA}" in note


@pytest.mark.parametrize("status", ["collecting", "interrupted"])
def test_a_killed_run_is_verified_as_far_as_it_got(folder: Path, status: str) -> None:
    """info.json may be behind the files by what was committed last, and rows may wait for their episodes file."""
    last = max((folder / "meta" / "episodes").rglob("*.parquet"))
    last.unlink()
    info = json.loads((folder / INFO).read_text())
    set_json(folder / INFO, status=status, episodes=1, steps=LENGTHS[0], bytes=1, shards=1, times=info["times"])
    report = verify(folder)
    assert () == report.faults
    assert 0 < report.episodes < 30
    set_json(folder / INFO, episodes=30)
    assert "says 30 episodes" in problems(verify(folder))[INFO]


def test_a_run_that_was_killed_before_it_told_its_columns(folder: Path) -> None:
    """Its first files are there, and info.json knows of none: the columns are those of the first file."""
    info = json.loads((folder / INFO).read_text())
    features = {name: feature for name, feature in info["features"].items() if feature["kind"] not in ("info", "fact")}
    totals = dict.fromkeys(("episodes", "steps", "bytes", "shards"), 0)
    set_json(folder / INFO, **totals, status="collecting", window="waiting", features=features)
    assert () == verify(folder).faults
    table = pq.ParquetFile(folder / SECOND[0]).read()
    pq.write_table(table.drop_columns(["env_info.speed"]), folder / SECOND[0])
    assert "env_info.speed is no such column" in problems(verify(folder))[SECOND[0]]


def test_surplus_rows_are_noted(folder: Path) -> None:
    """Rows behind the last stated episode are uncommitted; they may hold anything."""
    last = max((folder / "meta" / "episodes").rglob("*.parquet"))
    numbers = pq.read_table(last)["episode_number"].to_pylist()
    assert len(numbers) > 1
    settles = {"start": numbers[0], "stop": numbers[-1], "skipped": []}
    footer = {"rollout.settles": json.dumps(settles), "rollout.open": "null"}
    damage.rewrite(last, first_rows(len(numbers) - 1), footer=footer)
    set_json(folder / INFO, status="interrupted", episodes=29, steps=sum(LENGTHS[:-1]))
    report = verify(folder)
    assert () == report.faults
    assert f"{LENGTHS[-1]} rows that no episodes file states" in " ".join(report.notes)


@pytest.mark.parametrize("file", [DATA, EPISODES])
def test_links_that_lead_out_are_refused(folder: Path, tmp_path: Path, file: str) -> None:
    """Whatever they lead to."""
    shutil.move(folder / file, tmp_path / "elsewhere.parquet")
    (folder / file).symlink_to(tmp_path / "elsewhere.parquet")
    assert "link that leads out" in problems(verify(folder))[file]


def test_an_empty_dataset(tmp_path: Path) -> None:
    """It holds nothing, as it says."""
    write_dataset(tmp_path / "out", [])
    assert ((), 0) == (verify(tmp_path / "out").faults, verify(tmp_path / "out").episodes)
