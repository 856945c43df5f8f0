"""`kill -9` in the middle of a run, and `--resume`: `data/` ends as that of a run that nobody disturbed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rollout_cli import load
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.breaks import contents
from tests.helpers.damage import set_values
from tests.helpers.datasets import (
    assert_same_data,
    data_hashes,
    episodes_of,
    info_of,
    numbers_of,
    set_source,
    source_of,
    stats_of,
)
from tests.helpers.envs import HIDDEN, SIGNS
from tests.helpers.processes import Ran, called, running
from tests.helpers.thorough import usually

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--seed", "7", "--segment-bytes", "20000", "--quiet")
RUNS = {
    "collect": ("collect", "--timesteps", "2700", "--policy", "tests.helpers.policies:OwnNoisePolicy"),
    "exact": ("exact", "--episodes-per-worker", "250"),
    "four rows": (
        *("collect", "--timesteps", "2700", "--envs-per-worker", "4"),
        *("--policy", "tests.helpers.policies:CountingPolicy"),
    ),
}
LOCAL = ("--sampler", "local", "--workers", "1")


def end_in(
    episodes: list[int],
    output: Path,
    *words: str,
    more_than: int = 0,
    by: int = signal.SIGKILL,
) -> Ran:
    """Run until the episodes with these seeds, which hang, and send a signal once more episodes are committed.

    A worker keeps what it has finished for a twentieth of a second, and so for ever where it hangs by then, though
    others wait for it: hence a lull before.
    """
    hang = {HIDDEN: json.dumps({"what": "hang", "episodes": episodes, "pace": 0.001, "lull": 0.06})}
    with running([*words, "--flush-every", "0.05", "--output", str(output)], env=hang) as run:
        run.wait_until(lambda: len(_committed(output)) > more_than)
        run.process.send_signal(by)
        return run.end()


def _committed(output: Path) -> list[int]:
    """Return the numbers that are committed; files may be replaced while we look."""
    try:
        return numbers_of(output)
    except (OSError, ValueError):
        return []


@pytest.mark.parametrize("kind", usually(RUNS, lambda kind: kind == "collect"))
def test_a_killed_run_is_resumed_as_if_it_had_not_been_killed(tmp_path: Path, kind: str) -> None:
    """Killed twice after a commit, in the first run and in one that resumes: the same bytes, statistics and totals."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = (*RUNS[kind], *ENV, "--workers", "2")
    called(*words, "--output", whole)
    seeds = episodes_of(whole)["seed"].to_pylist()
    hanging = (seeds[200::250], seeds[230::250]) if kind == "exact" else (seeds[280:281], seeds[380:381])
    assert -signal.SIGKILL == end_in(hanging[0], out, *words).code
    first = len(numbers_of(out))
    again = (words[0], "--resume", "--quiet")
    assert -signal.SIGKILL == end_in(hanging[1], out, *again, more_than=first).code
    second = len(numbers_of(out))
    called("verify", out)
    called(*again, "--output", out)
    assert 0 < first < second < len(numbers_of(whole))
    assert_same_data(whole, out)
    assert stats_of(whole) == stats_of(out)
    assert len(data_hashes(whole)) > 2
    for name in ("status", "episodes", "steps", "dropped_infos", "features"):
        assert info_of(whole)[name] == info_of(out)[name]
    called("verify", out)
    assert [] == [path for path in out.rglob(".*") if path.is_file()]


@pytest.mark.thorough
def test_a_run_that_was_asked_to_end_is_resumed(tmp_path: Path) -> None:
    """By SIGTERM: what was finished is there, and another number of workers, in one process, makes the rest."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    words = ("collect", "--timesteps", "2000", *ENV, "--workers", "2")
    called(*words, "--output", whole)
    seeds = episodes_of(whole)["seed"].to_pylist()
    ran = end_in(seeds[250:251], out, *words, "--grace", "0.2", by=signal.SIGTERM)
    assert (143, "interrupted") == (ran.code, info_of(out)["status"]), ran.said
    called("collect", "--resume", *LOCAL, "--output", out)
    assert_same_data(whole, out)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["collect", "exact"])
def test_a_run_that_is_killed_in_its_first_steps_keeps_its_episodes(tmp_path: Path, kind: str) -> None:
    """They are committed while another one hangs; a run that gets less far leaves them, and the last one has all."""
    whole, out, signs = tmp_path / "whole", tmp_path / "out", tmp_path / "signs"
    signs.mkdir()
    words = (*RUNS[kind], *ENV, "--workers", "2")
    called(*words, "--output", whole)
    seeds = episodes_of(whole)["seed"].to_pylist()
    assert -signal.SIGKILL == end_in(seeds[40:41], out, *words, more_than=39).code
    first = numbers_of(out) or numbers_of(out / ".replaced")
    assert len(first) > 39
    assert 40 not in first
    if info_of(out):  # Else it was killed between two names, and the next run puts the older one back.
        assert ("collecting", "partial") == tuple(info_of(out)[name] for name in ("status", "info_columns"))
        assert first == load(out).to_episode_batch().numbers.tolist()
        called("verify", out)
        called("info", out)
    again = (words[0], "--resume", "--quiet")
    env = {HIDDEN: json.dumps({"what": "hang", "episodes": seeds[5:6]}), SIGNS: str(signs)}
    with running([*again, "--flush-every", "0.05", "--output", str(out)], env=env) as run:
        run.wait_until(lambda: any(signs.iterdir()))
        run.process.kill()
        run.end()
    assert first == numbers_of(out)
    called(*again, "--output", out)
    assert_same_data(whole, out)
    assert stats_of(whole) == stats_of(out)
    called("verify", out)
    assert [] == [path for path in out.rglob(".*") if path.is_file()]


@pytest.mark.parametrize(
    "damage",
    usually(
        ["an episodes file is cut", "a data file is missing"],
        lambda damage: "missing" in damage,
    ),
)
def test_a_damaged_last_segment_is_run_again(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are moved aside with a warning, and the bytes are those of one run; the folder has a relative name."""
    monkeypatch.chdir(tmp_path)
    words = ("collect", *ENV, *LOCAL)
    called(*words, "--timesteps", "3000", "--output", "whole")
    called(*words, "--timesteps", "2000", "--output", "out")
    file = max(Path("out/data" if "data" in damage else "out/meta/episodes").rglob("file-*.parquet"))
    if "missing" in damage:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100])
    ran = called("collect", "--resume", "--timesteps", "3000", "--output", "out")
    assert "its files are moved to a repair folder" in ran.stderr
    assert_same_data(tmp_path / "whole", tmp_path / "out")
    assert [file.name] == sorted({path.name for path in Path("out").glob(".repair-*/**/file-*.parquet")})


@pytest.mark.thorough
def test_other_values_in_the_last_segment_are_refused(tmp_path: Path) -> None:
    """A run would write it again, with statistics of the damage. Repaired, the dataset gets its bytes."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = ("collect", *ENV, *LOCAL)
    called(*words, "--timesteps", "3000", "--output", whole)
    called(*words, "--timesteps", "2000", "--output", out)
    file = max((out / "data").rglob("file-*.parquet"))
    set_values(file, "reward", 0, [9.5])
    before = contents(out)
    ran = called("collect", "--resume", "--timesteps", "3000", "--output", out, code=5)
    assert all(part in ran.stderr for part in (file.name, "[dataset-damaged]"))
    assert before == contents(out)
    called("repair", out)
    called("collect", "--resume", "--timesteps", "3000", "--output", out)
    assert_same_data(whole, out)


def test_a_kill_before_the_first_commit_begins_anew_with_the_same_seed(tmp_path: Path) -> None:
    """In the same folder, though the seed was drawn."""
    out, signs = tmp_path / "out", tmp_path / "signs"
    signs.mkdir()
    env = ("--env", "tests.helpers.envs:FaultyEnv", "--workers", "1", "--quiet")
    hang = {HIDDEN: '{"what": "hang"}', SIGNS: str(signs)}
    with running(["collect", "--timesteps", "500", *env, "--output", str(out)], env=hang) as run:
        run.wait_until(lambda: any(signs.iterdir()) and bool(info_of(out)))
        run.process.kill()
        run.end()
    seed = source_of(out)["root_seed"]
    called("collect", "--resume", "--output", out)
    assert (seed, "complete") == (source_of(out)["root_seed"], info_of(out)["status"])
    called("collect", "--timesteps", "500", *env, "--seed", str(seed), "--output", tmp_path / "whole")
    assert_same_data(tmp_path / "whole", out)


def test_two_runs_cannot_have_one_folder(tmp_path: Path) -> None:
    """Neither to resume nor to overwrite: exit code 5, and the first run ends well."""
    out, signs = tmp_path / "out", tmp_path / "signs"
    signs.mkdir()
    words = ["collect", "--episodes", "20", *ENV, "--workers", "1", "--output", str(out)]
    with running(words, env={SIGNS: str(signs), HIDDEN: '{"meet": 2}'}) as first:
        first.wait_until(lambda: any(signs.iterdir()) and bool(info_of(out)))
        for option in ("--resume", "--overwrite"):
            ran = called("collect", "--episodes", "20", *ENV, *LOCAL, option, "--output", out, code=5)
            assert "[dataset-locked]" in ran.stderr
        (signs / "met-other").touch()
        assert 0 == first.end().code
    assert list(range(20)) == numbers_of(out)


@pytest.mark.thorough
def test_what_was_skipped_before_a_kill_is_still_listed(tmp_path: Path) -> None:
    """The same episodes as in a run that nobody disturbed."""
    well, out = tmp_path / "well", tmp_path / "out"
    called("collect", "--episodes", "300", *ENV, *LOCAL, "--output", well)
    seeds = episodes_of(well)["seed"].to_pylist()
    fault = {"what": "raise", "episodes": seeds[10::40]}
    words = (
        "collect",
        "--episodes",
        "300",
        *ENV,
        "--on-env-error",
        "skip",
        "--flush-every",
        "0.05",
        "--workers",
        "2",
    )
    slow = {HIDDEN: json.dumps({**fault, "pace": 0.005})}
    with running([*words, "--output", str(out)], env=slow) as run:
        run.wait_until(lambda: len(_committed(out)) > 60)
        run.process.kill()
        run.end()
    assert len(numbers_of(out)) < 290
    called("collect", "--resume", "--quiet", "--output", out, env={HIDDEN: json.dumps(fault)})
    listed = [one["episode_number"] for one in source_of(out)["skipped"]["episodes"]]
    assert list(range(10, 300, 40)) == listed
    assert sorted(set(range(300)) - set(listed)) == numbers_of(out)
    called("verify", out)


def skipping(output: Path, *numbers: int) -> None:
    """Collect 250 episodes, of which those of these numbers fail and are skipped."""
    fault = {HIDDEN: json.dumps({"what": "raise", "episodes": [env_seed(7, number) for number in numbers]})}
    words = ("--episodes", "250", *ENV, *LOCAL, "--on-env-error", "skip", "--output", output)
    called("collect", *words, env=fault)


def test_skipped_episodes_that_run_again_are_listed_no_more(tmp_path: Path) -> None:
    """Those behind the last episode do, and may succeed; one before it stays skipped."""
    out = tmp_path / "out"
    skipping(out, 10, 248, 249)
    assert 3 == source_of(out)["skipped"]["count"]
    called("collect", "--resume", "--episodes", "260", "--output", out)
    assert [10] == [one["episode_number"] for one in source_of(out)["skipped"]["episodes"]]
    assert sorted({*range(260)} - {10}) == numbers_of(out)


@pytest.mark.thorough
def test_why_episodes_were_skipped_outlives_a_kill(tmp_path: Path) -> None:
    """Of the run that extends a complete dataset, at any time."""
    out = tmp_path / "out"
    skipping(out, 10)
    before = source_of(out)["skipped"]
    again = ("collect", "--resume", "--quiet", "--episodes", "256", "--sampler", "multiprocessing")
    assert -signal.SIGKILL == end_in([env_seed(7, 255)], out, *again, more_than=249).code
    assert ("collecting", before) == (info_of(out)["status"], source_of(out)["skipped"])
    called("collect", "--resume", *LOCAL, "--episodes", "256", "--output", out)
    assert before == source_of(out)["skipped"]


EXTENSIONS = {
    "steps": (("--timesteps", "1000"), ("--timesteps", "2500")),
    "episodes": (("--episodes", "150"), ("--episodes", "300")),
    "a range": (("--episodes", "30:40"), ("--episodes", "30:60")),
    "steps to episodes": (("--timesteps", "1000"), ("--episodes", "300")),
    "few steps": (("--timesteps", "50"), ("--timesteps", "1500")),
}


@pytest.mark.parametrize("kind", usually(EXTENSIONS, {"steps", "few steps"}.__contains__))
def test_a_complete_dataset_is_extended_by_a_larger_number(tmp_path: Path, kind: str) -> None:
    """`data/` and the statistics are those of the larger run."""
    before, after = EXTENSIONS[kind]
    out, whole = tmp_path / "out", tmp_path / "whole"
    called("collect", *before, *ENV, *LOCAL, "--output", out)
    called("collect", *after, "--resume", "--output", out)
    called("collect", *after, *ENV, *LOCAL, "--output", whole)
    assert_same_data(whole, out)
    assert stats_of(whole) == stats_of(out)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("complete") / "out"
    called("collect", "--timesteps", "1000", *ENV, *LOCAL, "--output", out)
    return out


def test_a_complete_dataset_is_not_touched(complete: Path) -> None:
    """To resume it is no error, and writes nothing."""
    before = {path: path.stat().st_mtime_ns for path in complete.rglob("*") if path.is_file()}
    called("collect", "--resume", "--output", complete)
    assert before == {path: path.stat().st_mtime_ns for path in complete.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "former",
    [
        {"sampler": "ray", "ray_address": "auto", "step_timeout": 60.0},
        {"sampler": "multiprocessing", "step_timeout": 60.0, "episode_timeout": 90.0},
    ],
)
def test_another_sampler_does_not_take_what_the_former_one_took(
    tmp_path: Path, former: dict[str, Any]
) -> None:
    """Options that only the recorded sampler has are no error of a run that names another one."""
    out = tmp_path / "out"
    called("collect", "--episodes", "4", *ENV, *LOCAL, "--output", out)
    set_source(out, collector=source_of(out)["collector"] | former)
    called("collect", "--resume", "--episodes", "6", *LOCAL, "--output", out)
    assert list(range(6)) == numbers_of(out)


CHANGES = {
    "fewer steps": ("--timesteps", "500"),
    "fewer episodes": ("--episodes", "3"),
    "seed": ("--seed", "1"),
    "env kwargs": ("--env-kwargs", "space=image"),
    "policy": ("--policy", "tests.helpers.policies:OwnNoisePolicy"),
    "a limit": ("--max-episode-length", "3"),
    "rows": ("--envs-per-worker", "2"),
    "columns": ("--next-observation",),
    "segments": ("--segment-bytes", "70000"),
    "infos": ("--drop-info", "steps"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_would_give_other_data_is_refused(complete: Path, change: str) -> None:
    """Exit code 2, and the dataset stays as it was."""
    before = data_hashes(complete)
    amount = () if change.startswith("fewer") else ("--timesteps", "2000")
    called("collect", "--resume", *amount, *CHANGES[change], "--output", complete, code=2)
    assert before == data_hashes(complete)
    called("verify", complete)


def test_exact_cannot_be_extended(tmp_path: Path) -> None:
    """Each worker's numbers follow from how many it has."""
    called("exact", "--episodes-per-worker", "5", *ENV, *LOCAL, "--output", tmp_path / "out")
    called("exact", "--episodes-per-worker", "8", "--resume", "--output", tmp_path / "out", code=2)


def test_a_folder_with_other_files_cannot_be_resumed_or_overwritten(tmp_path: Path) -> None:
    """An empty or missing one can: a dataset begins, so that one command line serves for every time."""
    (tmp_path / "notes.txt").touch()
    for option in ("--resume", "--overwrite"):
        called("collect", "--episodes", "5", *ENV, *LOCAL, option, "--output", tmp_path, code=5)
    for _ in range(2):
        called("collect", "--episodes", "5", *ENV, *LOCAL, "--resume", "--output", tmp_path / "new")
    assert (tmp_path / "notes.txt").exists()


def test_overwrite_replaces_a_dataset(tmp_path: Path) -> None:
    """The new one alone is left; without the option the folder is refused."""
    words = ("collect", "--episodes", "20", *ENV[:2], *LOCAL, "--output", tmp_path / "out")
    called(*words, "--seed", "1")
    old = contents(tmp_path)
    called(*words, "--seed", "2", code=5)
    called(*words, "--seed", "2", "--overwrite")
    assert 2 == source_of(tmp_path / "out")["root_seed"]
    assert not old & contents(tmp_path)
    called("verify", tmp_path / "out")


def test_what_rows_of_a_batch_share_is_no_change(tmp_path: Path) -> None:
    """A policy that draws for all rows from one generator cannot be repeated: its run goes on, and says so."""
    words = ("--policy", "tests.helpers.policies:SharedNoisePolicy", "--envs-per-worker", "3", "--seed", "4")
    called("collect", "--timesteps", "1500", *words, *ENV, *LOCAL, "--output", tmp_path / "out")
    assert "no" == source_of(tmp_path / "out")["reproducible"]["status"]
    called("collect", "--resume", "--timesteps", "2000", *LOCAL, "--output", tmp_path / "out")
    assert "no" == source_of(tmp_path / "out")["reproducible"]["status"]
    called("verify", tmp_path / "out")
