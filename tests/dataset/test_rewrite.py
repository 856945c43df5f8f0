"""Datasets that are made of others: what they hold and record, and that they verify and are not continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.dataset.folder import OutputFolder
from rollout_cli.dataset.layout import collected_source, read_info
from rollout_cli.dataset.metadata import DatasetSummary
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.dataset.repair import repair_dataset
from rollout_cli.dataset.rewrite import derivation, rewrite
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import StorageError, UsageError
from rollout_cli.progress import Progress
from tests.helpers.batches import assert_same_info_values, assert_same_steps
from tests.helpers.chunks import episode
from tests.helpers.damage import data, episodes, set_values
from tests.helpers.datasets import episodes_of, info_of, set_source
from tests.helpers.errors import raises
from tests.helpers.thorough import usually
from tests.helpers.writing import (
    RICH_SPEC,
    SMALL,
    FailingFiles,
    all_files,
    data_files,
    hidden_files,
    rich_episodes,
    write_dataset,
)


def derived(path: Path, *inputs: Dataset, **options: Any) -> DatasetSummary:
    made = derivation(inputs, path, operation="test", options={"step": 2})
    files = options.pop("files", None)
    folder = OutputFolder(path, **options)
    folder.files = files or folder.files
    return rewrite(made.chunks, folder, made.settings, n_steps=made.result.steps, progress=Progress())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one run; its number 61 was skipped."""
    path = tmp_path_factory.mktemp("one") / "d"
    write_dataset(
        path, rich_episodes(), spec=RICH_SPEC, limits=SMALL, header={"env": {"id": "A"}, "policy": {}}
    )
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of another run of two partitions, with other infos, and one of another type."""
    path, chunks = (
        tmp_path_factory.mktemp("other") / "d",
        [
            episode(n, 30, spec=RICH_SPEC, env_info=lambda n, step: {"x": step, "y": n, "text": 5})
            for n in range(50)
        ],
    )
    partitions = [int(chunk.numbers[0]) // 25 for chunk in chunks]
    options: dict[str, Any] = {"root_seed": 7, "first_numbers": [0, 25], "header": {"env": {"id": "B"}}}
    write_dataset(path, chunks, spec=RICH_SPEC, limits=SMALL, partitions=partitions, **options)
    return path


def assert_same_episodes(expected: Dataset, found: Dataset) -> None:
    assert_same_steps(expected.to_episode_batch(), found.to_episode_batch())
    assert_same_info_values(expected.to_episode_batch(), found.to_episode_batch())
    for name in ("episode_number", "root_seed", "seed", "worker", "wall_time_s", "return"):
        assert expected.episodes[name].equals(found.episodes[name])


def test_every_second_episode_is_a_dataset_that_says_how_it_was_made(tmp_path: Path, one: Path) -> None:
    before = all_files(one)
    summary = derived(tmp_path / "d", load(one)[::2])
    assert (60, "complete") == (summary.episodes, summary.status)
    assert ([], []) == ((report := verify_dataset(tmp_path / "d")).faults, report.notes)
    assert_same_episodes(load(one)[::2], load(tmp_path / "d"))
    assert list(range(60)) == load(tmp_path / "d").episodes["episode_id"].to_pylist()
    info, old = info_of(tmp_path / "d"), info_of(one)
    assert old["sources"] == info["sources"]
    (made,) = info["derived"]
    assert 32 == len(made.pop("episodes"))
    assert {"operation": "test", "options": {"step": 2}, "inputs": [old["sources"][0]["run"]]} == made
    assert before == all_files(one)


def test_datasets_of_two_runs_are_joined(tmp_path: Path, one: Path, other: Path) -> None:
    """Numbers repeat; with the source they say which episode it is. Infos without a common type become JSON."""
    derived(tmp_path / "d", load(one)[10:90], load(other)[[40, 3, 5]])
    joined = load(tmp_path / "d")
    assert ([], []) == ((report := verify_dataset(tmp_path / "d")).faults, report.notes)
    assert [0] * 80 + [1] * 3 == joined.episodes["source"].to_pylist()
    assert [0] * 80 + [7] * 3 == joined.episodes["root_seed"].to_pylist()
    assert [40, 3, 5] == joined.episodes["episode_number"].to_pylist()[80:]
    assert_same_steps(load(one)[10:90].to_episode_batch(), joined[:80].to_episode_batch())
    expected, found = load(other)[[40, 3, 5]].to_episode_batch(), joined[80:].to_episode_batch()
    assert_same_steps(expected, found)
    for key in ("x", "y", "text"):
        assert expected.env_infos[key].tolist() == found.env_infos[key].tolist()
    assert (1, 3) == (joined[80].source, joined[81].number)
    assert "Episodes of A and B" in (tmp_path / "d/README.md").read_text()


def test_a_run_without_an_episode_is_no_source(tmp_path: Path, one: Path, other: Path) -> None:
    """Neither in what is made of a selection, nor in its card and its footers."""
    derived(tmp_path / "both", load(one)[:9], load(other)[:5])
    part = load(tmp_path / "both")[9:]
    assert 1 == derivation([part], tmp_path / "d", operation="test", options={}).result.sources
    derived(tmp_path / "d", part)
    assert info_of(other)["sources"] == info_of(tmp_path / "d")["sources"]
    assert ([], []) == ((report := verify_dataset(tmp_path / "d")).faults, report.notes)
    assert [0] * 5 == load(tmp_path / "d").episodes["source"].to_pylist()
    assert_same_episodes(load(other)[:5], load(tmp_path / "d"))
    assert "Episodes of B\n" in (tmp_path / "d/README.md").read_text()


@pytest.mark.thorough
def test_what_is_derived_is_derived_from_again(tmp_path: Path, one: Path, other: Path) -> None:
    """Datasets of one run share its record; their episodes, split and joined, are those that there were."""
    whole = load(one)
    for name, part in (("a", whole[:50]), ("b", whole[50:])):
        derived(tmp_path / name, part)
    derived(tmp_path / "c", load(tmp_path / "a"), load(other)[:5], load(tmp_path / "b"))
    info = info_of(tmp_path / "c")
    assert (2, 2) == (len(info["sources"]), len(info["derived"]))
    assert_same_steps(whole[50:].to_episode_batch(), load(tmp_path / "c")[55:].to_episode_batch())
    assert [] == verify_dataset(tmp_path / "c").faults


def test_parts_of_one_run_share_what_each_records(tmp_path: Path, one: Path) -> None:
    """In any order: the weaker verdict, all changes, and all skipped episodes."""
    verdicts = [{"status": "yes", "reason": ""}, {"status": "no", "reason": "files changed"}]
    changes: list[Any] = [[], [{"what": "files changed", "from_numbers": [0]}]]
    skipped = [{"count": 1, "episodes": [{"episode_number": n, "reason": str(n)}]} for n in (61, 62)]
    parts = [tmp_path / "a", tmp_path / "b"]
    for at, part in enumerate(parts):
        derived(part, load(one)[at * 5 : at * 5 + 5])
        set_source(part, reproducible=verdicts[at], changes=changes[at], skipped=skipped[at])
    for inputs in (parts, parts[::-1]):
        made = derivation([load(part) for part in inputs], tmp_path / "c", operation="test", options={})
        (source,) = made.settings.sources
        assert (verdicts[1], changes[1]) == (source["reproducible"], source["changes"])
        numbers = [episode["episode_number"] for episode in source["skipped"]["episodes"]]
        assert (2, [61, 62]) == (source["skipped"]["count"], sorted(numbers))


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"path": "w", "sha256": "2", "read": "load"}]},
        {"policy": {"sha256": "2"}},
        {"collector": {"epsilon": 0.1, "shard": "2/2"}},
    ],
)
def test_parts_of_other_files_keep_a_record_of_their_own(
    tmp_path: Path, one: Path, change: dict[str, Any]
) -> None:
    """Though their first episodes are the same; an episode of both is refused all the same."""
    facts = {"policy": {"sha256": "1"}, "collector": {"shard": "1/2"}}
    files = [{"path": name, "sha256": "1", "read": read} for name, read in (("v", "episode"), ("w", "load"))]
    for name, part in (("a", load(one)[:5]), ("b", load(one)[5:9]), ("c", load(one)[9:12])):
        derived(tmp_path / name, part)
        set_source(tmp_path / name, **facts, files=files[1:] if name == "a" else files)
    set_source(tmp_path / "b", **change)
    derived(tmp_path / "d", *(load(tmp_path / name) for name in "abc"))
    sources = info_of(tmp_path / "d")["sources"]
    assert [0] * 5 + [1] * 4 + [0] * 3 == load(tmp_path / "d").episodes["source"].to_pylist()
    assert files == sources[0]["files"]
    assert change == {name: sources[1][name] for name in change}
    assert [] == verify_dataset(tmp_path / "d").faults
    with raises(UsageError, "episode-repeated"):
        derivation([load(tmp_path / "b")] * 2, tmp_path / "e", operation="test", options={})


def test_files_are_compared_only_within_a_run(
    tmp_path: Path, one: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pair of a thousand runs would take minutes."""
    monkeypatch.setattr("rollout_cli.dataset.rewrite.compare_files", None)
    derived(tmp_path / "a", load(one), load(other))
    assert [0, 1] == sorted({*load(tmp_path / "a").episodes["source"].to_pylist()})


@pytest.mark.thorough
def test_the_same_is_made_of_the_same(tmp_path: Path, one: Path, other: Path) -> None:
    for name in ("a", "b"):
        derived(tmp_path / name, load(one), load(other))
    assert data_files(tmp_path / "a") == data_files(tmp_path / "b")


def test_episodes_that_do_not_go_together_are_refused(tmp_path: Path, one: Path) -> None:
    write_dataset(tmp_path / "box", [episode(n, 50) for n in range(3)])
    for inputs, code, value in (
        ([load(one), load(tmp_path / "box")], "datasets-incompatible", "spaces"),
        ([load(one)[:3], load(one)[2:5]], "episode-repeated", ""),
        ([load(one)[:0]], "no-episode", ""),
    ):
        with raises(UsageError, code, value):
            derived(tmp_path / "d", *inputs)
        assert not (tmp_path / "d").exists()
    with raises(UsageError, "output-is-input"):
        derived(tmp_path / "box", load(tmp_path / "box"), overwrite=True)


def test_a_derived_dataset_is_not_continued(tmp_path: Path, one: Path) -> None:
    derived(tmp_path / "d", load(one)[:4])
    with raises(UsageError, "run-unknown"):
        collected_source(read_info(tmp_path / "d"))


@pytest.mark.parametrize(
    ("harm", "problem"),
    usually(
        [
            (lambda root: set_values(root / episodes(1), "source", 0, [2]), "not in the dataset's sources"),
            (
                lambda root: set_values(root / episodes(1), "source", 0, [1]),
                "root_seed is not the root seed of its source",
            ),
            (lambda root: (root / data(1)).unlink(), "is missing"),
        ],
        lambda row: row[1] == "root_seed is not the root seed of its source",
    ),
)
def test_faults_of_a_derived_dataset_are_found_and_repaired(
    tmp_path: Path, one: Path, other: Path, harm: Any, problem: str
) -> None:
    derived(tmp_path / "d", load(one), load(other))
    harm(tmp_path / "d")
    assert any(problem in fault.problem for fault in verify_dataset(tmp_path / "d").faults)
    repair_dataset(tmp_path / "d")
    assert [] == verify_dataset(tmp_path / "d").faults
    assert 0 < len(load(tmp_path / "d")) < 119


def test_a_disk_that_fails_keeps_what_was_committed(tmp_path: Path, one: Path) -> None:
    """And the error does not promise that the rest could be made later."""
    files = FailingFiles()
    derived(tmp_path / "counted", load(one), files=files)
    with raises(StorageError, "write-failed") as caught:
        derived(tmp_path / "d", load(one), files=FailingFiles(len(files.operations) // 2))
    n_episodes = len(episodes_of(tmp_path / "d"))
    assert all(part in caught.value.hint for part in (f"{n_episodes} episodes", str(tmp_path / "d")))
    assert "resume=True" not in caught.value.hint
    assert_same_steps(load(one)[:n_episodes].to_episode_batch(), load(tmp_path / "d").to_episode_batch())
    assert ("interrupted", []) == (info_of(tmp_path / "d")["status"], hidden_files(tmp_path / "d"))


def test_gaps_are_ranges(tmp_path: Path) -> None:
    """However many numbers are missing, the record of a segment is short."""
    numbers = [1, 2, 5_000_000_000, 5_000_000_001, 5_000_000_003]
    write_dataset(tmp_path, [episode(n, 4) for n in numbers], first_numbers=[0])
    (segment,) = verify_dataset(tmp_path).segments
    gaps = ((0, 1), (3, 5_000_000_000), (5_000_000_002, 5_000_000_003))
    assert (gaps, numbers[-1] + 1) == (segment.record.skipped, segment.record.stop)
    assert numbers == np.asarray(load(tmp_path).episodes["episode_number"]).tolist()
