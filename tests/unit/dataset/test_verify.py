"""verify: each thing that a dataset claims is broken by itself, and found, with its file and its episodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.dataset import CutLimits
from rollout_cli.dataset.cuts import CutState
from rollout_cli.dataset.verification.report import VerifyReport
from rollout_cli.dataset.verification.verify import verify
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import DatasetFormatError
from tests.support import damage
from tests.support.chunks import episode, in_parts
from tests.support.damage import DATA, EPISODES, INFO, STATS, set_bytes, set_footer, set_json, set_values
from tests.support.datasets import write_dataset

SPEC = EnvSpec(
    spaces.Dict(
        {"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "text": spaces.Text(6), "x": spaces.Box(-1, 1, (3,))}
    ),
    spaces.Discrete(3),
)
LIMITS = CutLimits(shard_bytes=30_000, min_shard_bytes=3_000, group_bytes=6_000, group_rows=30)
LENGTHS = [3 + (7 * number) % 20 for number in range(30)]
LENGTHS[4] = 70
SECOND = ("data/chunk-00000/file-00001.parquet", "meta/episodes/chunk-00000/file-00001.parquet")


def _episodes(numbers: range = range(30)) -> list[Any]:
    return [
        episode(
            number,
            LENGTHS[number],
            spec=SPEC,
            env_info=lambda n, s: {"speed": s * 0.5, **({"odd": [n]} if s % 2 else {})},
            episode_info=lambda n, s: {"level": n},
        )
        for number in numbers
    ]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several files with long and short episodes, infos of all sorts, and next observations."""
    path = tmp_path_factory.mktemp("verify") / "out"
    summary = write_dataset(path, _episodes(), spec=SPEC, limits=LIMITS, next_observation=True)
    assert summary.shards >= 3
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def problems(report: VerifyReport) -> dict[str, str]:
    """Return the first problem of each file."""
    out: dict[str, str] = {}
    for fault in report.faults:
        out.setdefault(fault.file, fault.problem)
    return out


def found(report: VerifyReport, file: str) -> set[int]:
    """Return the episodes that the faults of a file name."""
    return {number for fault in report.faults if fault.file == file for number in fault.episodes}


def test_what_was_written_is_whole(pristine: Path) -> None:
    """No fault, no note, and the totals are those of the episodes."""
    report = verify(pristine)
    assert ((), ()) == (report.faults, report.notes)
    assert (30, sum(LENGTHS), "complete") == (report.episodes, report.steps, report.status)
    assert report.files == 2 * json.loads((pristine / INFO).read_text())["shards"]


def row_of(number: int, step: int = 0) -> int:
    """Return the row, in the first data file, of a step of an episode."""
    return sum(LENGTHS[:number]) + step


STEP_BREAKS: list[tuple[str, Callable[[Path], None], str, set[int]]] = [
    ("episode_id", lambda path: set_values(path, "episode_id", row_of(1, 2), [7]), "another episode_id", {1}),
    ("step", lambda path: set_values(path, "step", [row_of(1, 2), row_of(2, 0)], [5, 1]), "not numbered", {1, 2}),
    ("step in a split episode", lambda path: set_values(path, "step", row_of(4, 69), [5]), "not numbered", {4}),
    ("flag in the middle", lambda path: set_values(path, "terminated", row_of(2, 3), [True]), "terminated is not", {2}),
    ("flag missing", lambda path: set_values(path, "truncated", row_of(3) - 1, [False]), "truncated is not", {2}),
    ("step type", lambda path: set_values(path, "step_type", row_of(3), [1]), "step types", {3}),
    ("step type at a split", lambda path: set_values(path, "step_type", row_of(4, 24), [0]), "step types", {4}),
    ("reward", lambda path: set_values(path, "reward", row_of(0, 1), [1e-9]), "sum to its return", {0}),
    ("reward of a split one", lambda path: set_values(path, "reward", row_of(4, 5), [1.0]), "sum to its return", {4}),
    (
        "next observation",
        lambda path: set_values(path, "next_observation.x", row_of(1, 1), [[0.0, 0.5, 0.0]]),
        "not what was observed next",
        {1},
    ),
    (
        "next observation at an end",
        lambda path: set_values(path, "next_observation.text", row_of(2) - 1, ["other"]),
        "not what was observed next",
        {1},
    ),
    (
        "next observation across row groups",
        lambda path: set_values(path, "observation.image", row_of(4, 23), [b"\1" * 48]),
        "not what was observed next",
        {4},
    ),
    (
        "no reward",
        lambda path: set_values(path, "reward", row_of(1), [None]),
        "reward is double, expected double not null",
        set(),
    ),
    ("no number", lambda path: set_values(path, "observation.x", row_of(2), [[1, None, 0]]), "x is fixed", set()),
    (
        "no action",
        lambda path: set_values(path, "action", row_of(3), [None]),
        "action is int64, expected int64 not null",
        set(),
    ),
    ("no text", lambda path: set_bytes(path, "observation.text", row_of(2), b"\xff"), "no UTF-8 text", {2}),
    ("no JSON", lambda path: set_values(path, "env_info_extra", row_of(2), ["{"]), "no JSON object", {2}),
    ("another JSON", lambda path: set_values(path, "env_info_extra", row_of(2), ["[]"]), "no JSON object", {2}),
    ("deep JSON", lambda path: set_values(path, "env_info_extra", row_of(2), ["[" * 10**5]), "no JSON object", {2}),
]


@pytest.mark.parametrize(("name", "harm", "problem", "episodes"), STEP_BREAKS, ids=[one[0] for one in STEP_BREAKS])
def test_steps(folder: Path, name: str, harm: Callable[[Path], None], problem: str, episodes: set[int]) -> None:
    """Each contradiction within the steps is found in its episodes."""
    harm(folder / DATA)
    report = verify(folder)
    assert problem in " ".join(str(fault) for fault in report.faults)
    assert episodes == found(report, DATA)
    assert {DATA, INFO, STATS} >= problems(report).keys()


EPISODE_BREAKS: list[tuple[str, str, Any, str]] = [
    ("episode_id", "episode_id", 9, "its id is not the next one"),
    ("number", "episode_number", 0, "not above the one before"),
    ("root seed", "root_seed", 5, "root_seed is not"),
    ("length", "length", 1, "data_row_index is not"),
    ("no length", "length", 0, "length is not in"),
    ("endless", "length", 2**60, "length is not in"),
    ("chunk", "data_chunk_index", 1, "data_chunk_index is not"),
    ("file", "data_file_index", 1, "data_file_index is not"),
    ("row", "data_row_index", 1, "data_row_index is not"),
]


@pytest.mark.parametrize(("name", "column", "value", "problem"), EPISODE_BREAKS, ids=[one[0] for one in EPISODE_BREAKS])
def test_episodes(folder: Path, name: str, column: str, value: Any, problem: str) -> None:
    """Each contradiction within an episode's row is found in that file, and names the episode."""
    set_values(folder / EPISODES, column, 2, [value])
    report = verify(folder)
    faults = [fault for fault in report.faults if problem in fault.problem]
    assert [EPISODES] == [fault.file for fault in faults]
    assert {2, 9} & {*faults[0].episodes}
    assert faults[0].row in (2, 3)


@pytest.mark.parametrize("column", ["return", "terminated", "truncated"])
def test_facts_that_the_steps_contradict(folder: Path, column: str) -> None:
    """They are told of the data file: its steps are not those of the episode."""
    old = pq.read_table(folder / EPISODES)[column][2].as_py()
    set_values(folder / EPISODES, column, 2, [0.25 if column == "return" else not old])
    assert {2} == found(verify(folder), DATA)


def test_an_ending_without_a_flag(folder: Path) -> None:
    """An episode of a dataset has ended somehow."""
    set_values(folder / EPISODES, "terminated", 3, [False])
    set_values(folder / EPISODES, "truncated", 3, [False])
    assert {3} == found(verify(folder), EPISODES)


@pytest.mark.parametrize("column", ["last_observation.x", "last_observation.text", "last_observation.image", "length"])
def test_missing_values(folder: Path, column: str) -> None:
    """Each episode has one more observation than steps, and all its facts: a column that may lack some is refused."""
    set_values(folder / EPISODES, column, 2, [None])
    assert f"{column} is " in problems(verify(folder))[EPISODES]


def test_rows_behind_the_first_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their episodes, and rows of the episodes file, are counted through the whole file."""
    monkeypatch.setattr("rollout_cli.dataset.episodes._GROUP_EPISODES", 2_000)
    episodes = [episode(n, 3, episode_info=lambda n, s: {"odd": [n]} if n % 2 else {}) for n in range(4000)]
    write_dataset(tmp_path / "out", episodes, limits=CutLimits(group_rows=6_000))
    row = pq.ParquetFile(tmp_path / "out" / EPISODES).metadata.row_group(0).num_rows
    set_values(tmp_path / "out" / EPISODES, "episode_info_extra", row, ["x"])
    report = verify(tmp_path / "out")
    assert ({row}, {row}) == (found(report, EPISODES), {fault.row for fault in report.faults if fault.file == EPISODES})


@pytest.mark.parametrize("file", [DATA, EPISODES])
@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda table: table.drop_columns([table.column_names[-1]]), "no such column"),
        (lambda table: table.append_column("more", pa.nulls(table.num_rows, pa.int8())), "more is int8"),
        (lambda table: table.set_column(0, "episode_id", table["episode_id"].cast(pa.int32())), "episode_id is int32"),
        (lambda table: table.select([*table.column_names[::-1]]), "order"),
    ],
)
def test_columns(folder: Path, file: str, harm: Callable[[pa.Table], pa.Table], problem: str) -> None:
    """Names, types and order are those of the dataset, in every file."""
    path = folder / file
    table = harm(pq.ParquetFile(path).read())
    pq.write_table(table, path)
    assert problem in problems(verify(folder))[file]


@pytest.mark.parametrize("file", [DATA, EPISODES])
@pytest.mark.parametrize(
    "key", ["rollout.format_version", "rollout.spaces", "rollout.max_episode_length", "rollout.env", "huggingface"]
)
@pytest.mark.parametrize("value", [None, "17"])
def test_footers(folder: Path, file: str, key: str, value: str | None) -> None:
    """Each key of a footer is there and says what the dataset says."""
    set_footer(folder / file, key, value)
    assert key in problems(verify(folder))[file]


@pytest.mark.parametrize(
    ("settles", "problem"),
    [
        (None, "does not say"),
        ("[]", "does not say"),
        ('{"start": 0}', "does not say"),
        ('{"start": "0", "stop": 3, "skipped": []}', "in no known way"),
        ('{"start": 0, "stop": 3, "skipped": []}', "not in 0 to 2"),
        ('{"start": 0, "stop": 99, "skipped": []}', "are missing, and were not skipped"),
        ('{"start": 0, "stop": 99, "skipped": [200]}', "skips numbers outside"),
    ],
)
def test_settled_numbers(folder: Path, settles: str | None, problem: str) -> None:
    """An episodes file settles all numbers of its range, and no others."""
    set_footer(folder / EPISODES, "rollout.settles", settles)
    assert problem in " ".join(fault.problem for fault in verify(folder).faults if fault.file == EPISODES)


def test_files_settle_one_range_after_another(folder: Path) -> None:
    """The second file begins where the first one ends."""
    numbers = pq.read_table(folder / SECOND[1])["episode_number"].to_pylist()
    set_footer(
        folder / SECOND[1],
        "rollout.settles",
        json.dumps({"start": numbers[0] - 1, "stop": numbers[-1] + 1, "skipped": []}),
    )
    assert f"expected from {numbers[0]} on" in problems(verify(folder))[SECOND[1]]


@pytest.mark.parametrize(
    ("file", "rows", "problem"),
    [(0, 0, "says that it is open"), (-1, 1, "row groups do not end"), (-1, 10**6, "are open")],
)
def test_open_ends(folder: Path, file: int, rows: int, problem: str) -> None:
    """Only the last file may be one that more episodes join, and behind the end of a row group."""
    path = sorted((folder / "meta" / "episodes").rglob("*.parquet"))[file]
    set_footer(path, "rollout.open", json.dumps({"rows": rows, "cuts": asdict(CutState())}))
    assert problem in " ".join(map(str, verify(folder).faults))


def test_skipped_numbers_leave_gaps(tmp_path: Path) -> None:
    """A gap is legal where the footer says that the number was skipped, and only there."""
    kept = [number for number in range(30) if number not in (3, 8)]
    write_dataset(tmp_path / "out", [one for number in kept for one in _episodes(range(number, number + 1))], spec=SPEC)
    path = tmp_path / "out" / EPISODES
    assert () == verify(tmp_path / "out").faults
    set_footer(path, "rollout.settles", json.dumps({"start": 0, "stop": 30, "skipped": []}))
    assert "2 episode numbers from 3 on are missing" in str(verify(tmp_path / "out").faults[0])
    set_footer(path, "rollout.settles", json.dumps({"start": 0, "stop": 30, "skipped": [3, 8, 9]}))
    assert {7} == found(verify(tmp_path / "out"), EPISODES), "the episode with number 9 has the place 7"


def _bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"episodes": 29}, "says 29 episodes"),
        ({"steps": 3}, "says 3 steps"),
        ({"bytes": 3}, "says 3 bytes"),
        ({"shards": 9}, "says 9 shards"),
        ({"episodes": "30"}, "expected a whole number"),
        ({"status": "done"}, "status is 'done'"),
        ({"window": "closed?"}, "window"),
        ({"lanes": 0}, "lanes is 0"),
        ({"root_seed": -1}, "root_seed is -1"),
        ({"next_observation": False}, "features are not"),
        ({"features": {}}, "features are not"),
        ({"features": {"a": 1}}, "features"),
        ({"features": None}, "has no features"),
        ({"spaces": {"observation": {}, "action": {}}}, "space"),
        ({"spaces": []}, "has no spaces"),
    ],
)
def test_info(folder: Path, values: dict[str, Any], problem: str) -> None:
    """Totals are those of the files, and everything else in info.json has its type and agrees with the rest."""
    set_json(folder / INFO, **values)
    assert problem in problems(verify(folder))[INFO]


@pytest.mark.parametrize("text", ["{", "[" * 10**5, '{"format": "rollout", "a": ' + "[" * 500 + "]" * 500 + "}"])
def test_an_info_that_is_no_json(folder: Path, text: str) -> None:
    """The dataset is damaged: that is a fault of info.json, whatever depth it has."""
    (folder / INFO).write_text(text)
    assert "not valid JSON" in problems(verify(folder))[INFO]


def test_no_dataset(tmp_path: Path) -> None:
    """A folder without info.json is none, and one of another format neither."""
    with pytest.raises(DatasetFormatError, match=r"no meta/info\.json"):
        verify(tmp_path)
    (tmp_path / "meta").mkdir()
    (tmp_path / INFO).write_text("{}")
    with pytest.raises(DatasetFormatError, match="does not describe"):
        verify(tmp_path)


def test_stats(folder: Path) -> None:
    """They are those of the steps; a run that goes on has none yet, or old ones."""
    stats = json.loads((folder / STATS).read_text())
    stats["reward"]["max"] += 1e-3
    (folder / STATS).write_text(json.dumps(stats))
    assert {STATS: "it is not that of the steps in reward"} == problems(verify(folder))
    set_json(folder / INFO, status="interrupted")
    report = verify(folder)
    assert () == report.faults
    assert "not that of the steps" in report.notes[0]
    (folder / STATS).unlink()
    assert ((), ()) == (verify(folder).faults, verify(folder).notes)
    set_json(folder / INFO, status="complete")
    assert {STATS: "it is missing"} == problems(verify(folder))


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


def first_rows(left: int) -> Callable[[pa.Table], pa.Table]:
    """Return what takes the first rows of row groups that come one after another."""

    def take(table: pa.Table) -> pa.Table:
        nonlocal left
        taken = table.slice(0, left)
        left -= taken.num_rows
        return taken

    return take


def test_missing_rows(folder: Path) -> None:
    """The episodes whose rows a data file lacks are named."""
    rows = pq.ParquetFile(folder / DATA).metadata.num_rows
    damage.rewrite(folder / DATA, first_rows(rows - 2))
    last = pq.read_table(folder / EPISODES)["episode_id"].to_pylist()[-1]
    report = verify(folder)
    assert f"has {rows - 2} rows, and its episodes file states {rows}" in problems(report)[DATA]
    assert {last} == found(report, DATA)


def test_row_groups_over_the_limit(folder: Path) -> None:
    """What info.json says of their size holds."""
    pq.write_table(pq.ParquetFile(folder / DATA).read(), folder / DATA)
    assert "expected 1 to 30" in problems(verify(folder))[DATA]


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


def test_quick_looks_at_no_step(folder: Path) -> None:
    """It finds what episodes files and footers tell, and no more."""
    set_values(folder / DATA, "reward", 0, [3.0])
    set_json(folder / INFO, bytes=_bytes(folder))
    assert () == verify(folder, quick=True).faults
    assert () != verify(folder).faults
    set_values(folder / EPISODES, "length", 0, [1])
    assert () != verify(folder, quick=True).faults


def test_many_faults_are_counted(folder: Path) -> None:
    """Of an endless list the first twenty are shown, with the number of all."""
    for file in (folder / "meta" / "episodes").rglob("*.parquet"):
        rows = np.arange(pq.read_table(file).num_rows)
        set_values(file, "root_seed", rows, [5] * len(rows))
    document = verify(folder).document()
    assert len(document["faults"]) <= 20
    assert document["n_faults"] >= len(document["faults"])
    assert 30 == sum(fault["n_episodes"] for fault in document["faults"] if "root_seed" in fault["problem"])


def test_lanes(tmp_path: Path) -> None:
    """Each lane is contiguous by itself; when the dataset is complete, all of them are together."""
    path = tmp_path / "out"
    write_dataset(path, _episodes(), spec=SPEC, lanes=[at // 10 for at in range(30)], n_lanes=3, limits=LIMITS)
    assert () == verify(path).faults
    shutil.rmtree(path / "data/chunk-00001")
    shutil.rmtree(path / "meta/episodes/chunk-00001")
    assert "lane 1 has no episode" in " ".join(map(str, verify(path).faults))
    counted = verify(path)
    set_json(path / INFO, status="interrupted", episodes=counted.episodes, steps=counted.steps, shards=_shards(path))
    (path / STATS).unlink()
    assert () == verify(path).faults


def _shards(root: Path) -> int:
    return len(list((root / "data").rglob("*.parquet")))


def test_arrival_order(tmp_path: Path) -> None:
    """Numbers come as they ended; each of them once."""
    path = tmp_path / "out"
    order = [3, 1, 2, 0]
    header = {"collector": {"order": "arrival"}}
    write_dataset(path, [_episodes(range(n, n + 1))[0] for n in order], spec=SPEC, header=header)
    assert () == verify(path).faults
    set_values(path / EPISODES, "episode_number", 2, [1])
    assert {2} == found(verify(path), EPISODES)


def test_an_empty_dataset(tmp_path: Path) -> None:
    """It holds nothing, as it says."""
    write_dataset(tmp_path / "out", [])
    assert ((), 0) == (verify(tmp_path / "out").faults, verify(tmp_path / "out").episodes)


def test_an_episode_in_parts(tmp_path: Path) -> None:
    """Its return is that of all its row groups together."""
    parts = [part for one in _episodes(range(4, 6)) for part in in_parts(one, [2, one.n_steps])]
    write_dataset(tmp_path / "out", parts, spec=SPEC, limits=LIMITS, next_observation=True)
    assert () == verify(tmp_path / "out").faults
