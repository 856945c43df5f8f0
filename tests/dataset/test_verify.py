"""verify: each contradiction is found, with its file, its problem and its episodes; harmless things are noted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset import verify
from rollout_cli.dataset.layout import NEXT, REPLACED, read_info
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import DatasetFormatError, StorageError
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
    rewrite,
    set_footer,
    set_json,
    set_record,
    set_values,
)
from tests.helpers.datasets import stats_of
from tests.helpers.errors import raises
from tests.helpers.writing import (
    RICH_SPEC,
    SMALL,
    open_writer,
    resume_dataset,
    rich_episodes,
    wait_for_writes,
    write_dataset,
)

LIMITS = replace(SMALL, segment_rows=400, segment_bytes=64_000)
"""Seven segments rather than twenty: each file costs time in every test."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of many segments, with spaces and infos of all sorts, next observations and a skipped number."""
    path = tmp_path_factory.mktemp("verify") / "out"
    summary = write_dataset(path, rich_episodes(), spec=RICH_SPEC, limits=LIMITS, next_observation=True)
    assert summary.segments > 5
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def test_a_healthy_dataset_has_no_faults(pristine: Path) -> None:
    """Nor notes; the report counts what there is."""
    steps = sum(chunk.n_steps for chunk in rich_episodes())
    counts = {"episodes": 119, "steps": steps, "files": len(list(pristine.rglob("*.parquet")))}
    nothing: dict[str, Any] = {"faults": [], "n_faults": 0, "notes": [], "n_notes": 0}
    expected = {"path": str(pristine), "ok": True, "status": "complete", **counts, **nothing}
    assert expected | {"quick": False} == verify_dataset(pristine).document()
    assert expected | {"quick": True} == verify_dataset(pristine, quick=True).document()


def test_partitions_and_long_episodes_have_no_faults(tmp_path: Path) -> None:
    """Each partition has a chunk folder; a long episode is written in pieces."""
    chunks = [episode(n, 4 if n != 5 else 900) for n in range(12)]
    partitions = [n // 4 for n in range(12)]
    write_dataset(tmp_path / "out", chunks, partitions=partitions, first_numbers=[0, 4, 8], limits=SMALL)
    report = verify_dataset(tmp_path / "out")
    assert ([], [], 12) == (report.faults, report.notes, len(load(tmp_path / "out")))


Harm = Callable[[Path], object]
DATA, EPISODES = data(1), episodes(1)


def put(file: str, column: str, row: int, value: Any) -> Harm:
    return lambda root: set_values(root / file, column, row, [value])


def drop(file: str, change: Callable[[pa.Table], pa.Table]) -> Harm:
    return lambda root: rewrite(root / file, change)


def state(**values: Any) -> Harm:
    return lambda root: set_json(root / INFO, **values)


def record(**values: Any) -> Harm:
    return lambda root: set_record(root / EPISODES, **values)


def footer(file: str, key: str, value: str | None) -> Harm:
    return lambda root: set_footer(root / file, key, value)


ANOMALY = {"column": "reward", "problem": "not_finite", "what": "nan", "episode": 0, "step": 0}

Row = tuple[str, Harm, str, str, list[int] | None]
ROWS: list[Row] = [
    # What is broken, the file that is named, part of the problem, and which episodes of the second segment.
    ("a data file is missing", lambda root: (root / DATA).unlink(), DATA, "", None),
    (
        "an episodes file is missing",
        lambda root: (root / EPISODES).unlink(),
        EPISODES,
        "later segments exist",
        [],
    ),
    ("a file is empty", lambda root: (root / DATA).write_bytes(b""), DATA, "", None),
    ("a data file is a FIFO", lambda root: make_fifo(root / DATA), DATA, "", None),
    (
        "an episodes file is a FIFO",
        lambda root: make_fifo(root / EPISODES),
        EPISODES,
        "",
        [],
    ),
    ("a data file is a folder", lambda root: make_folder(root / DATA), DATA, "", None),
    ("stats.json is a FIFO", lambda root: make_fifo(root / STATS), STATS, "missing", []),
    ("stats.json is missing", lambda root: (root / STATS).unlink(), STATS, "missing", []),
    (
        "stats.json is no JSON",
        lambda root: (root / STATS).write_text("{"),
        STATS,
        "differ from those of the steps",
        [],
    ),
    (
        "stats.json is of others",
        lambda root: set_json(root / STATS, reward={}),
        STATS,
        "differ from those of the steps",
        [],
    ),
    ("data is a file", lambda root: make_file(root / "data"), DATA, "", None),
    (
        "a folder has a file's name",
        lambda root: (root / episodes(99)).mkdir(),
        episodes(99),
        "",
        [],
    ),
    (
        "a file twice",
        lambda root: shutil.copy(root / EPISODES, root / episodes(99)),
        episodes(99),
        "another",
        None,
    ),
    ("a row is missing", drop(DATA, lambda table: table.slice(1)), DATA, "by its episodes file", [-1]),
    ("no reward", drop(DATA, lambda table: table.drop_columns(["reward"])), DATA, "reward", None),
    ("no seed", drop(EPISODES, lambda table: table.drop_columns(["seed"])), EPISODES, "seed", []),
    ("no episode", drop(EPISODES, lambda table: table.slice(0, 0)), EPISODES, "", []),
    ("a wrong episode_id", put(DATA, "episode_id", 0, 3), DATA, "episode_id", [0]),
    ("a wrong step", put(DATA, "step", 0, 7), DATA, "step does not match", [0]),
    ("a wrong step type", put(DATA, "step_type", -1, 1), DATA, "step_type", [-1]),
    ("a wrong flag", put(DATA, "terminated", 0, True), DATA, "terminated", [0]),
    ("a wrong reward", put(DATA, "reward", 0, 9.5), DATA, "do not sum", [0]),
    (
        "a wrong next observation",
        put(DATA, "next_observation.mission", 0, "odd"),
        DATA,
        "next_observation differs",
        [0],
    ),
    (
        "a wrong last observation",
        put(EPISODES, "last_observation.mission", -1, "odd"),
        DATA,
        "next_observation differs",
        [-1],
    ),
    (
        "another observation",
        put(DATA, "observation.frames", 0, [[4.0] * 3] * 2),
        EPISODES,
        "statistics in its",
        [],
    ),
    ("a wrong id", put(EPISODES, "episode_id", 1, 0), EPISODES, "id is not", None),
    ("a number twice", put(EPISODES, "episode_number", 1, 1), EPISODES, "not higher", None),
    ("a wrong root seed", put(EPISODES, "root_seed", 1, 9), EPISODES, "root_seed", [1]),
    ("a wrong seed", put(EPISODES, "seed", 1, 0), EPISODES, "its seed does not", [1]),
    ("a wrong length", put(EPISODES, "length", 1, 0), EPISODES, "its length", [1]),
    ("a wrong row", put(EPISODES, "data_row_index", 1, 0), EPISODES, "first step", [1]),
    ("a wrong file", put(EPISODES, "data_file_index", 1, 0), EPISODES, "another", [1]),
    ("a wrong return", put(EPISODES, "return", 1, 0.5), DATA, "do not sum", [1]),
    (
        "a damaged record",
        footer(EPISODES, "rollout.checksum", "0"),
        EPISODES,
        "record in its footer is damaged",
        [],
    ),
    ("no record", footer(EPISODES, "rollout.segment", None), EPISODES, "no commit", []),
    ("a wrong start", record(start=0), EPISODES, "starts with episode number 0", []),
    ("a wrong stop", record(stop=99), EPISODES, "are not the numbers", []),
    ("a skipped number", record(skipped=[[1, 2]]), EPISODES, "are not the numbers", []),
    ("wrong counts", record(steps=3), EPISODES, "totals in its footer", []),
    ("wrong spaces", footer(DATA, "rollout.spaces", "{}"), DATA, "rollout.spaces", []),
    ("a data file of another run", footer(DATA, "rollout.run", "0" * 32), DATA, "rollout.run is 000", None),
    (
        "an episodes file of another run",
        footer(EPISODES, "rollout.run", "0"),
        EPISODES,
        "rollout.run is 0, not",
        [],
    ),
    ("a data file without a run", footer(DATA, "rollout.run", None), DATA, "rollout.run is missing", None),
    (
        "a data file of another partition",
        footer(DATA, "rollout.partition", "1"),
        DATA,
        "partition is 1, not 0",
        None,
    ),
    (
        "a data file in another's place",
        lambda root: shutil.copy(root / data(2), root / DATA),
        DATA,
        "number is",
        None,
    ),
    ("more episodes stated", state(episodes=120), INFO, "120 episodes", []),
    ("fewer steps stated", state(steps=3), INFO, "it states 3 steps", []),
    ("other bytes stated", state(bytes=3), INFO, "it states 3 bytes", []),
    ("other anomalies stated", state(anomalies=[ANOMALY]), INFO, "its anomalies differ", []),
    (
        "other lost infos stated",
        state(dropped_infos={"env_info.x": 3}),
        INFO,
        "its dropped_infos differ",
        [],
    ),
    ("another first number stated", state(first_numbers=[5]), episodes(0), "expected 5", []),
]


def test_extremes_by_which_readers_select_are_those_of_the_rows(folder: Path) -> None:
    """A flipped bit in the footer, of which Parquet has no checksum, would hide an episode from them."""
    path = folder / DATA

    def last() -> int:
        groups = pq.read_metadata(path)
        return int(groups.row_group(groups.num_row_groups - 1).column(0).statistics.max)

    before = last()
    lowest = (before & -before).bit_length() - 1
    flip(path, path.read_bytes().rindex(before.to_bytes(8, "little")), lowest)
    assert last() < before
    assert [(DATA, "the min and max of episode_id in its footer differ from its rows")] == [
        (fault.file, fault.problem) for fault in verify_dataset(folder).faults
    ]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_fault_is_named_with_its_file_and_episodes(folder: Path, row: Row) -> None:
    """`places` counts from the first episode of the second segment; None stands for some of them, or all."""
    _, harm, file, problem, places = row
    ids = pq.read_table(folder / EPISODES, columns=["episode_id"])["episode_id"].to_pylist()
    harm(folder)
    report = verify_dataset(folder)
    faults = [fault for fault in report.faults if fault.file == file and problem in fault.problem]
    assert faults, report.faults
    assert not report.document()["ok"]
    if places is not None:
        assert tuple(ids[place] for place in places) == faults[0].episodes
    else:
        assert faults[0].episodes
    assert file in str(faults[0])


@pytest.mark.parametrize("shape", [(1_100,), (40, 30)])
def test_large_infos_of_some_steps_of_a_long_episode_have_no_faults(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """One row in 100 counts, however the rows are divided into row groups and however many lack a value."""

    def scan(number: int, step: int) -> dict[str, Any]:
        return {"scan": np.full(shape, step, np.float64)} if step % 7 == 0 else {}

    write_dataset(tmp_path / "out", [episode(n, 1_000, env_info=scan) for n in range(2)], limits=SMALL)
    assert pq.read_metadata(tmp_path / "out" / data(0)).num_row_groups > 5
    assert [] == verify_dataset(tmp_path / "out").faults
    assert 2 * 2 * int(np.prod(shape)) == stats_of(tmp_path / "out")["env_info.scan"]["count"]


@pytest.mark.parametrize("value", [1.7e308, 1e306, 1e200])
def test_numbers_whose_sums_are_beyond_float64_have_no_faults(tmp_path: Path, value: float) -> None:
    """In a long episode their mean depends on the row groups: some infos begin with the largest number."""

    def best(number: int, step: int) -> dict[str, Any]:
        return {"best": value if step % 3 else -value}

    write_dataset(tmp_path / "out", [episode(0, 1_000, env_info=best)], limits=SMALL)
    assert [] == verify_dataset(tmp_path / "out").faults


@pytest.mark.parametrize("run", ["its columns are decided", "it is resumed", "it is collected again"])
def test_a_run_that_changes_the_dataset_meanwhile_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    """Between info.json, which is read first, and the files: they are verified again."""
    path, chunks = tmp_path / "out", [episode(n, 60) for n in range(24)]

    def change() -> None:
        if run == "it is resumed":
            resume_dataset(path, chunks)
        elif run == "it is collected again":
            write_dataset(path, chunks, root_seed=1, overwrite=True)
        else:
            for chunk in chunks:
                writer.write(chunk)
            writer.flush()
            wait_for_writes(writer)

    def slow_read_info(root: Path) -> DatasetInfo:
        monkeypatch.setattr(verify, "read_info", read_info)
        info = read_info(root)
        change()
        return info

    monkeypatch.setattr(verify, "read_info", slow_read_info)
    if run == "its columns are decided":
        with open_writer(path) as writer:
            report = verify_dataset(path)
    else:
        write_dataset(path, chunks[:18])
        report = verify_dataset(path)
    assert ([], [], 24) == (report.faults, report.notes, report.document()["episodes"])


def test_a_folder_that_a_run_removes_meanwhile_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a dataset which was to replace this one."""
    shutil.copytree(folder / "meta", folder / NEXT / "meta")
    found = Path.rglob

    def slow_rglob(self: Path, pattern: str) -> Iterator[Path]:
        for path in found(self, pattern):
            if self == folder / NEXT and self.is_dir():
                shutil.rmtree(self)
            yield path

    monkeypatch.setattr(Path, "rglob", slow_rglob)
    assert [] == verify_dataset(folder).faults


@pytest.mark.parametrize("options", [{}, {"next_observation": True}])
def test_a_run_that_has_not_decided_its_columns_verifies(tmp_path: Path, options: dict[str, Any]) -> None:
    """Nothing is committed, and info.json says no more than that."""
    with open_writer(tmp_path / "out", spec=RICH_SPEC, **options) as writer:
        writer.write(rich_episodes()[0])
        report = verify_dataset(tmp_path / "out")
    assert ([], [], "collecting") == (report.faults, report.notes, report.document()["status"])


def test_a_quick_verification_reads_no_step(folder: Path) -> None:
    """But everything else."""
    set_values(folder / data(1), "step", 0, [7])
    assert [] == verify_dataset(folder, quick=True).faults
    (folder / data(1)).unlink()
    assert {data(1), INFO} == {fault.file for fault in verify_dataset(folder, quick=True).faults}


def lose_last(root: Path) -> None:
    for name in ("data", "meta/episodes"):
        max((root / name).rglob("*.parquet")).unlink()


@pytest.mark.parametrize("status", ["complete", "interrupted"])
@pytest.mark.parametrize("harm", [lose_last, lambda root: shutil.rmtree(root / "meta/episodes")])
def test_a_missing_tail_is_a_fault(folder: Path, harm: Harm, status: str) -> None:
    """The totals are those of the end of the run, whatever ended it."""
    set_json(folder / INFO, status=status)
    harm(folder)
    problems = {fault.problem for fault in verify_dataset(folder).faults if fault.file == INFO}
    assert any("it states 119 episodes, but the files hold" in problem for problem in problems)


NOTES: list[tuple[str, Harm, str]] = [
    (
        "an unfinished file",
        lambda root: (root / ".data-00000-00099.parquet.tmp").touch(),
        ".tmp does not belong",
    ),
    ("a file of the user's", lambda root: (root / "mine.txt").touch(), "mine.txt does not belong"),
    ("a file among ours", lambda root: (root / "data/mine.txt").touch(), "data/mine.txt does not belong"),
    (
        "a dataset that was being replaced",
        lambda root: (root / REPLACED).mkdir(),
        ".replaced does not belong",
    ),
    ("no card", lambda root: (root / "README.md").unlink(), "card, is missing"),
    ("uncommitted rows", lambda root: shutil.copy(root / data(0), root / data(99)), "has no episodes file"),
]


@pytest.mark.parametrize(("name", "change", "note"), NOTES, ids=[row[0] for row in NOTES])
def test_harmless_things_are_noted(folder: Path, name: str, change: Harm, note: str) -> None:
    change(folder)
    report = verify_dataset(folder)
    assert ([], True) == (report.faults, report.document()["ok"])
    assert [True] == [note in one for one in report.notes]


def test_a_run_that_is_not_over_verifies_as_far_as_it_is_committed(folder: Path) -> None:
    """Totals and statistics are written at the end."""
    set_json(folder / INFO, status="collecting", episodes=0, steps=0, bytes=0, segments=0)
    (folder / STATS).unlink()
    report = verify_dataset(folder)
    assert ([], [], "collecting") == (report.faults, report.notes, report.document()["status"])
    assert 119 == report.document()["episodes"]


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (Path.unlink, "not-a-dataset"),
        (make_fifo, "not-a-regular-file"),
        (lambda path: path.write_text("{"), "info-not-json"),
        (lambda path: set_json(path, steps=None), "info-value"),
        (lambda path: set_json(path, status="done"), "info-value"),
        (lambda path: set_json(path, spaces={}), "info-features"),
        (lambda path: set_json(path, features=3), "info-value"),
    ],
)
def test_without_a_whole_info_there_is_nothing_to_verify(folder: Path, harm: Harm, code: str) -> None:
    harm(folder / INFO)
    with raises(DatasetFormatError, code, "info.json"):
        verify_dataset(folder)


# Flipped bits.


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one file each."""
    path = tmp_path_factory.mktemp("flipped") / "out"
    chunks = [
        episode(n, 5 + n, env_info=lambda n, s: {"x": s, **({"odd": [n]} if s % 2 else {})}) for n in range(6)
    ]
    write_dataset(path, chunks)
    return path


def contents(path: Path) -> Any:
    """Return all that a reader gets from a file: rows, types and the footer's keys."""
    file = pq.ParquetFile(path)
    footer = {key: value for key, value in file.metadata.metadata.items() if key != b"ARROW:schema"}
    table = file.read()
    return table.to_pydict(), table.schema, footer


def is_reported(root: Path) -> bool:
    try:
        return bool(verify_dataset(root).faults)
    except StorageError:
        return True


@pytest.mark.parametrize("file", [data(0), episodes(0)])
def test_any_flipped_bit_of_a_page_is_found(small: Path, tmp_path: Path, file: str) -> None:
    """By its checksum, in every column, and the file is named."""
    root = Path(shutil.copytree(small, tmp_path / "out"))
    path, rng = root / file, random.Random(0)
    good = path.read_bytes()
    for name in pq.ParquetFile(path).schema_arrow.names:
        pages = page_bytes(path, name)
        flip(path, pages[-1 - rng.randrange(min(4, len(pages)))], rng.randrange(8))
        faults = [fault for fault in verify_dataset(root).faults if fault.file == file]
        assert faults, f"column {name}"
        if file == data(0):
            assert tuple(range(6)) == faults[0].episodes
        path.write_bytes(good)


@pytest.mark.parametrize("file", [data(0), episodes(0)])
@pytest.mark.parametrize("part", ["all", "footer"])
def test_any_flipped_bit_is_found_or_changes_nothing(
    small: Path, tmp_path: Path, file: str, part: str
) -> None:
    """At seeded places of the file, and of its footer alone, which has no checksum."""
    root = Path(shutil.copytree(small, tmp_path / "out"))
    path, rng = root / file, random.Random(f"{file} {part}")
    good, expected = path.read_bytes(), contents(path)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    reported = 0
    for _ in range(60):
        at = rng.randrange(footer if part == "footer" else 0, len(good))
        flip(path, at, rng.randrange(8))
        if is_reported(root):
            reported += 1
        else:
            assert expected == contents(path), f"byte {at} of {file}"
        path.write_bytes(good)
    assert reported > 10


def test_any_flipped_bit_of_the_statistics_is_found(small: Path, tmp_path: Path) -> None:
    """Each digit is held against the steps, but for the last ones of means."""
    root = Path(shutil.copytree(small, tmp_path / "out"))
    path, rng = root / STATS, random.Random(0)
    good = path.read_bytes()
    digits = [at for at, byte in enumerate(good) if chr(byte) in "123456789"]
    reported = 0
    for at in rng.sample(digits, 30):
        flip(path, at)
        reported += is_reported(root)
        path.write_bytes(good)
    assert reported > 10
