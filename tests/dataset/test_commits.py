"""What is committed: after a kill at any moment, and after files were damaged or removed."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.dataset.commits import SegmentRecord
from rollout_cli.dataset.committed import read_committed, read_record
from rollout_cli.dataset.layout import SegmentId, read_info
from rollout_cli.dataset.stats import column_stats, stats_to_json
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episodes.plain import plain_json
from rollout_cli.errors import DatasetFormatError, StorageError
from tests.helpers.chunks import episode
from tests.helpers.damage import INFO, data, episodes, flip, make_folder, set_json, set_values
from tests.helpers.datasets import source_of
from tests.helpers.errors import raises
from tests.helpers.thorough import usually
from tests.helpers.writing import (
    CHUNKS,
    SMALL,
    FailingFiles,
    Killed,
    KilledFiles,
    all_files,
    data_files,
    hidden_files,
    open_writer,
    resume_dataset,
    third_of,
    vanish,
    write_dataset,
)

EPISODES = tuple(episode(number, 9 + number % 5) for number in range(130))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "dataset"
    write_dataset(path, EPISODES, limits=SMALL)
    assert 8 == len(data_files(path))
    return path


@pytest.fixture
def dataset(tmp_path: Path, whole: Path) -> Path:
    """Return a copy of the dataset, to be damaged."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


# Records.


def test_a_record_comes_back_from_a_footer_exactly() -> None:
    stats = {
        "reward": column_stats(np.array([0.1, 1e300, -3.0, np.nan]).reshape(-1, 1)),
        "x": column_stats(np.full(3, np.inf)),
    }
    record = SegmentRecord(
        start=3, stop=9, skipped=((4, 5), (7, 8)), episodes=4, steps=40, last_length=7, return_sum=float("-inf"),
        nominal=999, is_long=False, stats=stats, anomalies={"reward:not_finite": (5, 2)},
        dropped_infos={"env_info.f": 3},
    )  # fmt: skip
    footer = {key.encode(): value.encode() for key, value in record.footer().items()}
    found = SegmentRecord.from_footer(footer)
    for name in (
        "start",
        "stop",
        "skipped",
        "episodes",
        "return_sum",
        "anomalies",
        "dropped_infos",
        "is_long",
    ):
        assert getattr(record, name) == getattr(found, name)
    assert plain_json(stats_to_json(stats)) == plain_json(stats_to_json(found.stats))


@pytest.mark.parametrize(
    "footer",
    [
        {},
        {b"rollout.segment": b"{", b"rollout.stats": b"{}"},
        {b"rollout.segment": b"[]", b"rollout.stats": b"[]"},
    ],
)
def test_a_footer_without_a_record_is_told_apart(footer: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match=r"footer|Expecting"):
        SegmentRecord.from_footer(footer)


def test_the_record_of_a_segment_states_its_episodes(whole: Path) -> None:
    run = source_of(whole)["run"]
    records = [read_record(whole, run, SegmentId(1, 0, number)) for number in range(8)]
    assert 130 == sum(record.episodes for record in records)
    assert sum(one.n_steps for one in EPISODES) == sum(record.steps for record in records)
    assert [record.stop for record in records[:-1]] == [record.start for record in records[1:]]
    assert sum(float(one.rewards.sum()) for one in EPISODES) == pytest.approx(
        sum(r.return_sum for r in records)
    )
    assert EPISODES[-1].n_steps == records[-1].last_length


# Kills.


def kill(path: Path, kill_at: int) -> None:
    """Write the dataset, and end without another operation on the disk before operation number `kill_at`."""
    files = KilledFiles(kill_at)
    writer: DatasetWriter | None = None
    with suppress(Killed):
        writer = open_writer(path, limits=SMALL, files=files)
        for at, chunk in enumerate(CHUNKS):
            writer.write(chunk)
            if at % 7 == 0:
                writer.flush()
        writer.close(status="complete")
    if writer is not None:
        vanish(writer)


def count_operations(path: Path) -> int:
    files = FailingFiles()
    write_dataset(path, CHUNKS, limits=SMALL, flush=True, files=files)
    return len(files.operations)


@pytest.mark.parametrize("part", usually([0, 4, 11], lambda part: part == 4))
def test_a_kill_at_any_moment_changes_no_byte_in_the_end(tmp_path: Path, part: int) -> None:
    """Before operations of all kinds on the disk: the run is resumed, or begun anew, and `data/` is that of one run."""
    write_dataset(tmp_path / "whole", CHUNKS, limits=SMALL)
    expected, resumed = data_files(tmp_path / "whole"), 0
    total = count_operations(tmp_path / "counted")
    for kill_at in third_of(range(part, total, 15)):
        path = tmp_path / f"killed-{kill_at}"
        kill(path, kill_at)
        committed = None
        if (path / "meta/info.json").exists():
            committed = read_committed(path, read_info(path))
        if committed is not None and committed.can_resume:
            resume_dataset(path, CHUNKS, limits=SMALL)
            resumed += 1
        else:
            shutil.rmtree(path, ignore_errors=True)
            write_dataset(path, CHUNKS, limits=SMALL)
        assert expected == data_files(path), kill_at
        assert (tmp_path / "whole/meta/stats.json").read_text() == (path / "meta/stats.json").read_text(), (
            kill_at
        )
        shutil.rmtree(path)
    assert resumed


def test_bytes_are_on_disk_before_their_name_and_that_before_the_next(tmp_path: Path) -> None:
    """What a crash of the machine leaves is whole; a segment's data has its name before its commit has."""
    before = set[str]()

    class Noting(FailingFiles):
        def rename(self, source: Path, target: Path) -> None:
            if source.suffix == ".tmp":
                before.add([kind for kind, path in self.operations if path == source and kind != "stat"][-1])
            super().rename(source, target)

    files = Noting()
    write_dataset(tmp_path, CHUNKS, limits=SMALL, flush=True, files=files)
    assert {"fsync"} == before
    named = [(path, then) for (kind, path), then in pairwise(files.operations) if kind == "rename"]
    assert all(then == ("fsync", path.parent) for path, then in named)
    names = [path.relative_to(tmp_path).parts[-3] for path, _ in named if path.suffix == ".parquet"]
    assert ["data", "episodes"] * (len(names) // 2) == names != []


def test_rows_that_no_commit_states_do_not_come_back(tmp_path: Path) -> None:
    """A kill between the names of the two files leaves a data file with more rows than are committed."""
    write_dataset(tmp_path / "short", EPISODES[:100], limits=SMALL)
    write_dataset(tmp_path / "longer", EPISODES[:102], limits=SMALL)
    last = max(data_files(tmp_path / "short"))
    shutil.copy(tmp_path / "longer" / last, tmp_path / "short" / last)
    committed = resume_dataset(tmp_path / "short", EPISODES, limits=SMALL)
    assert 100 == committed.episodes
    write_dataset(tmp_path / "whole", EPISODES, limits=SMALL)
    assert data_files(tmp_path / "whole") == data_files(tmp_path / "short")


def test_a_data_file_without_a_commit_is_moved_aside(tmp_path: Path, whole: Path) -> None:
    write_dataset(tmp_path / "d", EPISODES[:100], limits=SMALL)
    orphan = tmp_path / "d" / data(len(data_files(tmp_path / "d")))
    orphan.write_bytes(b"rows of a killed run")
    committed = resume_dataset(tmp_path / "d", EPISODES, limits=SMALL)
    assert 100 == committed.episodes
    assert 1 == len(committed.notices)
    (aside,) = (tmp_path / "d").glob(".repair-*")
    assert {orphan.relative_to(tmp_path / "d").as_posix(): b"rows of a killed run"} == all_files(aside)
    assert data_files(whole) == {
        name: data for name, data in data_files(tmp_path / "d").items() if ".repair" not in name
    }


# Damage.


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def garbage(path: Path) -> None:
    path.write_bytes(b"not Parquet")


DAMAGES: list[Callable[[Path], None]] = [Path.unlink, cut, garbage, make_folder]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [data(2), episodes(2), episodes(0), data(5)])
def test_a_hole_in_the_middle_is_refused_and_nothing_changes(
    dataset: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(dataset / name)
    before = all_files(dataset)
    with raises(DatasetFormatError, "segment-unreadable", name[-18:]) as caught:
        read_committed(dataset, read_info(dataset))
    assert f"rollout repair {dataset}" in caught.value.hint
    assert before == all_files(dataset)


@pytest.mark.parametrize("damage", [*DAMAGES, lambda path: flip(path, path.stat().st_size // 3)])
@pytest.mark.parametrize("name", [data(7), episodes(7)])
def test_a_damaged_last_segment_is_moved_aside_reported_and_collected_again(
    dataset: Path, whole: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(dataset / name)
    lost = {
        other: content for other, content in all_files(dataset).items() if other in (data(7), episodes(7))
    }
    committed = resume_dataset(dataset, EPISODES, limits=SMALL)
    assert committed.episodes < 130
    (notice,) = committed.notices
    assert name in notice
    (aside,) = dataset.glob(".repair-*")
    assert lost == all_files(aside)
    assert data_files(whole) == data_files(dataset)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [(data(7), "reward", 9.5), (data(7), "action", 7), (data(7), "step", 3), (episodes(7), "seed", 0)],
)
def test_other_values_in_the_open_segment_get_no_new_statistics(
    dataset: Path, name: str, column: str, value: float
) -> None:
    """Its pages have the right checksums; to extend it would hide the damage, so nothing changes."""
    set_values(dataset / name, column, 1, [value])
    before = all_files(dataset)
    with raises(DatasetFormatError, "dataset-damaged", "file-00007.parquet") as caught:
        resume_dataset(dataset, EPISODES, limits=SMALL)
    assert "rollout repair" in caught.value.hint
    assert before == all_files(dataset)


@pytest.mark.parametrize("name", ["data", "data/chunk-00000", "meta/episodes", "meta/episodes/chunk-00000"])
def test_a_folder_that_cannot_be_read_is_an_error_and_not_an_empty_one(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else its episodes would be collected again, over the old ones. Root reads any folder, so it is patched."""
    iterdir = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path == dataset / name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    with raises(StorageError, "read-failed", name):
        resume_dataset(dataset, EPISODES, limits=SMALL)


def test_segments_of_two_runs_do_not_join(tmp_path: Path, dataset: Path) -> None:
    write_dataset(tmp_path / "other", EPISODES[3:], limits=SMALL, first_numbers=[3])
    for name in (data(3), episodes(3)):
        shutil.copy(tmp_path / "other" / name, dataset / name)
    with raises(DatasetFormatError, "segment-unreadable"):
        read_committed(dataset, read_info(dataset))


def test_a_last_data_file_of_another_run_is_moved_aside(tmp_path: Path, dataset: Path) -> None:
    """Its rows would else be written again as if they were this run's."""
    write_dataset(tmp_path / "other", EPISODES, limits=SMALL, header={"env": {"kwargs": {"a": 1}}})
    last = max((dataset / "data").rglob("*.parquet"))
    shutil.copy(tmp_path / "other" / last.relative_to(dataset), last)
    committed = read_committed(dataset, read_info(dataset))
    assert [last.relative_to(dataset)] == [path for path in committed.damaged if path.parts[0] == "data"]
    assert "rollout.run is" in committed.notices[0]


def test_without_any_commit_there_is_nothing_to_resume(dataset: Path) -> None:
    shutil.rmtree(dataset / "meta/episodes")
    shutil.rmtree(dataset / "data")
    committed = read_committed(dataset, read_info(dataset))
    assert (0, 0, False) == (committed.episodes, committed.partitions[0].next_number, committed.can_resume)


def test_columns_that_were_not_decided_cannot_be_resumed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", EPISODES[:3], limits=SMALL)
    committed = read_committed(tmp_path / "d", read_info(tmp_path / "d"))
    assert (3, False) == (committed.episodes, committed.can_resume)


@pytest.mark.parametrize(
    "change",
    [{"partitions": None}, {"partitions": 2, "first_numbers": [0]}, {"features": 3}, {"spaces": {}}],
)
def test_an_info_that_does_not_say_enough_is_refused(dataset: Path, change: dict[str, Any]) -> None:
    set_json(dataset / INFO, **change)
    with pytest.raises(DatasetFormatError):
        read_committed(dataset, read_info(dataset))


def test_each_partition_continues_by_itself(tmp_path: Path) -> None:
    options: dict[str, Any] = {"first_numbers": [0, 40, 80], "limits": SMALL}
    path, numbers = tmp_path / "d", [*range(40), *range(40, 55)]
    write_dataset(path, [EPISODES[n] for n in numbers], partitions=[n // 40 for n in numbers], **options)
    committed = read_committed(path, read_info(path))
    assert [40, 55, 80] == [one.next_number for one in committed.partitions]
    assert [sum(one.n_steps for one in EPISODES[a:b]) for a, b in ((0, 40), (40, 55), (0, 0))] == [
        one.steps for one in committed.partitions
    ]
    assert [EPISODES[39].n_steps, EPISODES[54].n_steps, None] == [
        one.last_length for one in committed.partitions
    ]
    rest = range(55, 120)
    write_dataset(
        path, [EPISODES[n] for n in rest], partitions=[n // 40 for n in rest], committed=committed, **options
    )
    every = range(120)
    write_dataset(
        tmp_path / "whole", [EPISODES[n] for n in every], partitions=[n // 40 for n in every], **options
    )
    assert data_files(tmp_path / "whole") == data_files(path)


def test_resuming_keeps_the_start_and_notes_the_resume(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", EPISODES[:100], limits=SMALL)
    before = json.loads((tmp_path / "d/meta/info.json").read_text())
    resume_dataset(tmp_path / "d", EPISODES, limits=SMALL)
    after = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert before["times"]["started"] == after["times"]["started"]
    assert 1 == len(after["times"]["resumed"])
    assert (130, [], []) == (
        after["episodes"],
        hidden_files(tmp_path / "d"),
        before["times"].get("resumed", []),
    )
