"""`kill -9` in the middle of a run, and `--resume`: `data/` ends as that of a run that nobody disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.collect import collect
from rollout_cli.config import CollectConfig, EpisodeRange, recorded_config
from rollout_cli.dataset import Dataset, load
from rollout_cli.dataset.layout import read_info
from rollout_cli.errors import DatasetFormatError, DatasetLockedError, UsageError
from tests.support.datasets import leftovers
from tests.support.kills import committed, finish, kill_after_commits, start, wait_for_commits
from tests.support.runs import data_hashes, run
from tests.support.slow import ROOT_SEED

SAME = ["--env", "tests.support.slow:chain", "--seed", str(ROOT_SEED), "--shard-bytes", "60000", "--quiet"]
RUNS = {
    "collect": ["collect", "--timesteps", "6000"],
    "exact": ["exact", "--episodes-per-worker", "200"],
}
WORKERS = {
    "default": ["--policy", "tests.support.policies:OwnGeneratorPolicy"],
    "vectorised": ["--policy", "tests.support.policies:RecurrentPolicy", "--envs-per-worker", "4"],
}


def stats(dataset: Path) -> Any:
    return json.loads((dataset / "meta" / "stats.json").read_text())


def numbers(dataset: Dataset) -> list[int]:
    return [int(number) for number in dataset.episodes["episode_number"].to_pylist()]


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("command", RUNS)
def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path: Path, command: str, worker: str) -> None:
    """Killed twice after a commit, in the first run and in one that goes on; the same bytes, statistics and totals."""
    words = [*RUNS[command], *SAME, *WORKERS[worker], "--workers", "2"]
    whole, out = tmp_path / "whole", tmp_path / "out"
    finish([*words, "--output", str(whole)])
    first = kill_after_commits([*words, "--output", str(out), "--flush-every", "0.05"], out)
    again = [command, "--resume", "--output", str(out), "--quiet"]
    second = kill_after_commits(again, out, more_than=first)
    finish(again)
    assert 0 < first < second < len(load(whole))
    assert len(data_hashes(whole)) > 2
    assert data_hashes(whole) == data_hashes(out)
    assert stats(whole) == stats(out)
    assert numbers(load(whole)) == numbers(load(out))
    names = ("status", "episodes", "steps", "shards", "dropped_infos", "features", "fingerprint")
    assert [read_info(whole)[name] for name in names] == [read_info(out)[name] for name in names]
    assert 2 == len(read_info(out)["times"]["resumed"])
    assert [] == leftovers(out)


def test_what_a_killed_run_left_out_is_listed(tmp_path: Path) -> None:
    """As in a run that nobody disturbed, but for the reason, which died with the run."""
    kwargs = ["--env-kwargs", "fault=raise", "--env-kwargs", "every=10"]
    faulty = ["--env", "tests.support.faults:FaultyEnv", *kwargs, "--on-env-error", "skip"]
    words = ["collect", "--episodes", "4000", *faulty, "--seed", "5", "--workers", "2", "--quiet"]
    whole, out = tmp_path / "whole", tmp_path / "out"
    finish([*words, "--output", str(whole)])
    kill_after_commits([*words, "--output", str(out), "--flush-every", "0.05"], out, more_than=20)
    finish(["collect", "--resume", "--output", str(out), "--quiet"])
    told, expected = ([*info["skipped"]["episodes"]] for info in map(read_info, (out, whole)))
    assert [one["episode_number"] for one in expected] == [one["episode_number"] for one in told]
    reasons = [one["reason"] for one in told]
    n_untold = reasons.count("the run that left it out was killed before it could tell why")
    assert 0 < n_untold < len(told)
    assert all("the simulator is broken" in reason for reason in reasons[n_untold:])


def test_a_kill_before_the_first_commit_begins_anew(tmp_path: Path) -> None:
    """In the same folder and with the same seed, though it was drawn."""
    out = tmp_path / "out"
    words = ["collect", "--timesteps", "1500", "--env", "tests.support.slow:chain", "--quiet", "--output", str(out)]
    kill_after_commits(words, out, more_than=-1)
    seed = committed(out)["root_seed"]
    printed = finish(["collect", "--resume", "--output", str(out)])
    assert "begins anew, with the same seed" in printed
    assert (seed, "complete") == (committed(out)["root_seed"], committed(out)["status"])
    run(tmp_path / "whole", timesteps=1500, env="tests.support.slow:chain", seed=seed, workers=1)
    assert data_hashes(tmp_path / "whole") == data_hashes(out)


def test_two_runs_cannot_have_one_folder(tmp_path: Path) -> None:
    """The second is told so while the first one runs, whether it wants to go on or to begin anew."""
    out = tmp_path / "out"
    with start([*RUNS["collect"], *SAME, "--output", str(out)]) as first:
        wait_for_commits(first, out, more_than=-1)
        changes: list[dict[str, Any]] = [{"resume": True}, {"overwrite": True}]
        for options in changes:
            with pytest.raises(DatasetLockedError, match="being written by another run"):
                collect(CollectConfig(timesteps=10, output=out, **options))
        first.kill()
        first.communicate(timeout=60)


def test_a_run_that_was_asked_to_end_goes_on(tmp_path: Path) -> None:
    """By SIGTERM: what was finished is there, and `--resume` makes the rest."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    words = [*RUNS["collect"], *SAME, "--workers", "2"]
    with start([*words, "--flush-every", "0.05", "--output", str(out)]) as run:
        wait_for_commits(run, out)
        run.terminate()
        run.communicate(timeout=60)
    assert (143, "interrupted") == (run.returncode, committed(out)["status"])
    finish(["collect", "--resume", "--output", str(out), "--quiet"])
    finish([*words, "--output", str(whole)])
    assert data_hashes(whole) == data_hashes(out)


LOCAL: dict[str, Any] = {"env": "tests.support.slow:chain", "sampler": "local", "workers": 1, "seed": ROOT_SEED}


def resumed(output: Path, **options: Any) -> Dataset:
    """Go on with a dataset by the Python interface."""
    assert "complete" == collect(recorded_config(read_info(output), output=output, resume=True, **options)).status
    return load(output)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"timesteps": 1200}, {"timesteps": 2500}),
        ({"episodes": EpisodeRange(0, 150)}, {"episodes": EpisodeRange(0, 300)}),
        ({"episodes": EpisodeRange(30, 40)}, {"episodes": EpisodeRange(30, 60)}),
        ({"timesteps": 1200}, {"episodes": EpisodeRange(0, 300), "timesteps": None}),
        ({"timesteps": 300}, {"timesteps": 1500}),
    ],
    ids=["steps", "episodes", "a range", "steps to episodes", "an open window"],
)
def test_a_finished_dataset_is_extended(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    """By a larger number; the data are those of the larger run."""
    run(tmp_path / "out", **LOCAL, **before)
    dataset = resumed(tmp_path / "out", **after)
    assert dataset.info["status"] == "complete"
    whole = run(tmp_path / "whole", **LOCAL, **{name: value for name, value in after.items() if value is not None})
    assert numbers(whole) == numbers(dataset)
    assert data_hashes(tmp_path / "whole") == data_hashes(tmp_path / "out")
    assert stats(tmp_path / "whole") == stats(tmp_path / "out")


def test_exact_cannot_be_extended(tmp_path: Path) -> None:
    """Each worker's numbers follow from how many it has."""
    run(tmp_path / "out", command="exact", episodes_per_worker=30, **LOCAL)
    with pytest.raises(UsageError, match="episodes_per_worker was 30, is 40"):
        resumed(tmp_path / "out", episodes_per_worker=40)


def test_exact_goes_on_lane_by_lane_in_one_process(tmp_path: Path) -> None:
    """Where some lanes are done, and one is not, and one has nothing."""
    options: dict[str, Any] = {**LOCAL, "command": "exact", "workers": 3, "episodes_per_worker": 60}
    run(tmp_path / "whole", **options)
    run(tmp_path / "out", **options)
    for path in sorted((tmp_path / "out").rglob("chunk-00001/*.parquet")):
        path.unlink()
    info = read_info(tmp_path / "out") | {"status": "collecting"}
    (tmp_path / "out" / "meta" / "info.json").write_text(json.dumps(info))
    resumed(tmp_path / "out")
    assert data_hashes(tmp_path / "whole") == data_hashes(tmp_path / "out")


def test_what_is_complete_is_left_alone(tmp_path: Path) -> None:
    """Not a file of it is touched."""
    run(tmp_path / "out", **LOCAL, timesteps=1200)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    resumed(tmp_path / "out")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}


def test_less_than_there_is_is_refused(tmp_path: Path) -> None:
    """A dataset is never cut short."""
    run(tmp_path / "out", **LOCAL, timesteps=1200)
    with pytest.raises(UsageError, match="more than a run of 500 steps has"):
        resumed(tmp_path / "out", timesteps=500)
    with pytest.raises(UsageError, match="more than the 3 that are asked for"):
        resumed(tmp_path / "out", timesteps=None, episodes=EpisodeRange(0, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"env_kwargs": {"seconds": 0.1}},
        {"policy": "tests.support.policies:OwnGeneratorPolicy"},
        {"max_episode_length": 3},
        {"envs_per_worker": 2},
        {"next_observation": True},
        {"shard_bytes": 70_000},
        {"drop_info": ("x",)},
        {"worker_args": {"x": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_runs_dataset_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """The option that differs is named, with both its values; the dataset stays as it was."""
    run(tmp_path / "out", **LOCAL, timesteps=1200)
    with pytest.raises(UsageError, match=rf"cannot be gone on with.*{next(iter(change))} was .*, is ") as caught:
        resumed(tmp_path / "out", timesteps=2000, **change)
    assert 2 == caught.value.exit_code
    assert "complete" == load(tmp_path / "out").info["status"]


def test_a_folder_without_a_dataset_cannot_be_resumed(tmp_path: Path) -> None:
    """Unless it is empty: then a dataset begins, so that one command line serves for the first time and the next."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DatasetFormatError, match="is not a dataset"):
        collect(CollectConfig(output=tmp_path, resume=True, timesteps=5))
    run(tmp_path / "new", **LOCAL, timesteps=50, resume=True)


def test_order_of_arrival_goes_on_behind_the_highest_number(tmp_path: Path) -> None:
    """No number comes twice, and at least so many steps are there."""
    options: dict[str, Any] = {"env": "tests.support.slow:chain", "workers": 2, "order": "arrival", "seed": 1}
    run(tmp_path / "out", **options, timesteps=1500)
    dataset = resumed(tmp_path / "out", timesteps=3000)
    found = numbers(dataset)
    assert len(found) == len(set(found))
    assert sum(dataset.episodes["length"].to_pylist()) >= 3000
