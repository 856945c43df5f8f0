"""Shards of a run, each collected by itself, and merged: the bytes of the single run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.options.types import Shard
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.breaks import BREAKS
from tests.helpers.datasets import (
    assert_same_data,
    episodes_of,
    has_commit,
    info_of,
    numbers_of,
    set_source,
    source_of,
)
from tests.helpers.envs import HIDDEN
from tests.helpers.policies import WEIGHT
from tests.helpers.processes import called, running
from tests.helpers.thorough import usually

ENV = "tests.helpers.envs:FaultyEnv"
LATE = f"episodes={[env_seed(3, number) for number in range(200, 300, 3)]}"
"""Episodes behind those that decide the columns."""
RUNS: dict[str, tuple[str, ...]] = {
    "episodes": ("collect", "--episodes", "400"),
    "a range of episodes": ("collect", "--episodes", "100:500", "--next-observation"),
    "exact": ("exact", "--episodes-per-worker", "80", "--workers", "5"),
    "fewer steps than decide the columns": ("collect", "--episodes", "30"),
    "infos": ("collect", "--episodes", "300", "--env-kwargs", "what=info late"),
    "late infos": ("collect", "--episodes", "300", "--env-kwargs", "what=info late", "--env-kwargs", LATE),
    "late infos of other types": (
        *("collect", "--episodes", "300", "--env-kwargs", "what=info mixed"),
        *("--env-kwargs", LATE),
    ),
    "texts": ("collect", "--episodes", "300", "--env-kwargs", "space=dict"),
}


def shards(folder: Path, *words: str, parts: int = 3) -> list[Path]:
    """Collect each part of a run."""
    found = [folder / f"part{number}" for number in range(1, parts + 1)]
    for number, path in enumerate(found, 1):
        called(*words, "--shard", f"{number}/{parts}", "--output", path)
    return found


def run_words(name: str, seed: int = 3) -> tuple[str, ...]:
    small = ("--segment-bytes", "20000", "--env", ENV)
    return (*RUNS[name], *small, "--seed", str(seed), "--sampler", "local", "--quiet")


@pytest.mark.parametrize("name", usually(RUNS, "exact".__eq__))
def test_merged_shards_are_the_single_run(name: str, tmp_path: Path) -> None:
    """Data files and the facts of episodes are the same, in any order of the parts; the whole verifies and replays."""
    words = run_words(name)
    called(*words, "--output", tmp_path / "one")
    parts = shards(tmp_path, *words)
    called("merge", *parts[1:], parts[0], "--output", tmp_path / "all", "--quiet")
    assert_same_data(tmp_path / "one", tmp_path / "all")
    if name == "exact":  # Each worker's own episodes, as in the single run.
        assert [one // 80 for one in range(400)] == episodes_of(tmp_path / "all")["worker"].to_pylist()
    called("verify", tmp_path / "all")
    called("replay", "--trust", tmp_path / "all", "--episodes", "20:25")
    assert {"complete", "yes"} == {
        info_of(tmp_path / "all")["status"],
        source_of(tmp_path / "all")["reproducible"]["status"],
    }


@pytest.mark.thorough
def test_merged_shards_of_a_short_run_are_extended(tmp_path: Path) -> None:
    """Its columns are not decided yet: infos that come later have one, as in the run as a whole."""
    words = (*run_words("late infos")[3:], "--env-kwargs", LATE.replace("[", f"[{env_seed(3, 20)}, "))
    parts = shards(tmp_path, "collect", "--episodes", "6", *words, parts=2)
    called("merge", *parts, "--output", tmp_path / "all", "--quiet")
    called("collect", "--resume", "--episodes", "300", "--output", tmp_path / "all", "--quiet")
    called("collect", "--episodes", "300", *words, "--output", tmp_path / "one")
    assert "env_info.late" in info_of(tmp_path / "one")["features"]
    assert_same_data(tmp_path / "one", tmp_path / "all")


def test_a_shard_is_replayed_by_itself(tmp_path: Path) -> None:
    """One process does not divide among others: that it was a part says only which episodes it has."""
    part = tmp_path / "part"
    called("exact", "-k", "2", "-w", "3", "--shard", "2/3", *run_words("exact")[5:], "--output", part)
    called("verify", part)
    assert 2 == json.loads(called("replay", "--trust", part, "--all", "--json").stdout)["identical"]


@pytest.mark.parametrize(
    "edges", usually([[0, 250, 400], [30, 150, 300, 400]], lambda edges: len(edges) == 3)
)
def test_merged_ranges_are_the_single_run(edges: list[int], tmp_path: Path) -> None:
    """Runs of one seed over episodes that follow one another; with a gap they are joined as what they are."""
    words = ("collect", *run_words("episodes")[3:])
    parts = [tmp_path / f"{first}" for first in edges[:-1]]
    for part, first, stop in zip(parts, edges, edges[1:], strict=False):
        called(*words, "--episodes", f"{first}:{stop}", "--output", part)
    called(*words, "--episodes", f"{edges[0]}:{edges[-1]}", "--output", tmp_path / "one")
    dry = called("merge", *parts, "--output", tmp_path / "all", "--dry-run")
    assert "merge, not done (--dry-run)" in dry.stdout
    assert not (tmp_path / "all").exists()
    called("merge", *reversed(parts), "--output", tmp_path / "all", "--quiet")
    assert_same_data(tmp_path / "one", tmp_path / "all")
    assert source_of(tmp_path / "one")["collector"] == source_of(tmp_path / "all")["collector"]
    if len(parts) > 2:
        called("verify", tmp_path / "all")
        called("diff", tmp_path / "one", tmp_path / "all")
        called("replay", "--trust", tmp_path / "all", "--episodes", "20:25")
        called("merge", parts[2], parts[0], "--output", tmp_path / "gap", "--quiet")
        called("verify", tmp_path / "gap")
        assert [*range(300, 400), *range(30, 150)] == numbers_of(tmp_path / "gap")
        assert "merge" == info_of(tmp_path / "gap")["derived"][0]["operation"]
        for part, first, stop in zip(parts, edges, edges[1:], strict=False):  # Not all of a range is there.
            cut = (*words, "--timesteps", "400", "--episodes", f"{first}:{stop}")
            called(*cut, "--output", part, "--overwrite")
        called("merge", *parts, "--output", tmp_path / "cut", "--quiet")
        assert "merge" == info_of(tmp_path / "cut")["derived"][0]["operation"]


@pytest.mark.thorough
def test_a_shard_is_resumed(tmp_path: Path) -> None:
    """One that was killed is refused by name, with the command that finishes it, and merges after that."""
    words = run_words("episodes")
    called(*words, "--output", tmp_path / "one")
    parts = shards(tmp_path, *words)
    again = tmp_path / "again"
    hang = {HIDDEN: json.dumps({"what": "hang", "episodes": [env_seed(3, 250)], "pace": 0.001})}
    with running(
        [*words, "--shard", "2/3", "--flush-every", "0.05", "--output", str(again)], env=hang
    ) as run:
        run.wait_until(lambda: has_commit(again))
        run.process.send_signal(signal.SIGKILL)
        assert -signal.SIGKILL == run.end().code
    assert "collecting" == info_of(again)["status"]
    refused = called("merge", parts[0], again, parts[2], "--output", tmp_path / "all", code=2)
    assert "[shard-incomplete]" in refused.stderr
    assert f"--resume --output {again}" in refused.stderr
    verified = called("verify", again)
    assert "everything so far" in verified.stdout
    called("collect", "--resume", "--output", again, "--quiet")
    called("merge", parts[0], again, parts[2], "--output", tmp_path / "all", "--quiet")
    assert_same_data(tmp_path / "one", tmp_path / "all")


@pytest.mark.thorough
def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    """Missing, twice, of another run, or no shard at all: refused by name, and nothing is written."""
    one, two, three = shards(tmp_path, *run_words("episodes"))
    called(*run_words("episodes", seed=4), "--shard", "3/3", "--output", tmp_path / "foreign")
    called(*run_words("episodes"), "--output", tmp_path / "whole")
    called(*run_words("episodes"), "--shard", "2/4", "--output", tmp_path / "quarter")
    for parts, named, code in (
        ([one, three], "2/3", "shard-missing"),
        ([one, two, two, three], "", "shard-missing"),
        ([one, tmp_path / "quarter", three], f"{tmp_path / 'quarter'}", "shards-of-other-division"),
        ([one, two, tmp_path / "foreign"], ": seed differ", "shards-of-other-runs"),
        ([tmp_path / "whole"], "", "one-dataset"),
        ([one, tmp_path / "whole"], "", "episode-repeated"),
    ):
        refused = called("merge", *parts, "--output", tmp_path / "all", code=2)
        assert f"[{code}]" in refused.stderr, refused.said
        assert named in refused.stderr, refused.said
    assert not (tmp_path / "all").exists()
    refused = called("merge", one, two, three, "--output", three, "--overwrite", code=2)
    assert "[output-is-input]" in refused.stderr, refused.said
    assert "complete" == info_of(three)["status"]


def test_a_shard_that_lacks_a_segment_is_refused(tmp_path: Path) -> None:
    """A copy that is not whole says so: its own info.json states more episodes."""
    parts = shards(tmp_path, *run_words("episodes"), parts=2)
    BREAKS["the last segment is missing"](parts[0])
    refused = called("merge", *parts, "--output", tmp_path / "all", code=5)
    (error,) = (line for line in refused.stderr.splitlines() if line.startswith("rollout: error: "))
    named = (f"{parts[0]}", "meta/info.json", "200", f"{len(numbers_of(parts[0]))}", "[dataset-damaged]")
    assert all(part in error for part in named), refused.said
    assert not (tmp_path / "all").exists()


def with_other_weights(folder: Path) -> list[Path]:
    """Collect two shards by one policy, whose weights change in between; no hash of its source shows that."""
    parts = [folder / f"part{number}" for number in (1, 2)]
    words = (
        *run_words("fewer steps than decide the columns"),
        "--policy",
        "tests.helpers.policies:WeightedPolicy",
    )
    for number, path in enumerate(parts, 1):
        called(*words, "--shard", f"{number}/2", "--output", path, env={WEIGHT: f"{number / 4}"})
    return parts


def test_shards_of_another_policy_under_the_same_name_are_refused(tmp_path: Path) -> None:
    """Their first episode differs, though every shard looked at the same one."""
    parts = with_other_weights(tmp_path)
    refused = called("merge", *parts, "--output", tmp_path / "all", code=2)
    assert all(part in refused.stderr for part in (*map(str, parts), "[shards-of-other-files]"))
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    "change",
    [{"reproducible": {"status": "no", "reason": "the env draws"}}, {"versions": {"platform": "another"}}],
)
def test_shards_that_may_differ_by_themselves_are_merged_with_a_warning(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """A run that is not reproducible, or another machine, gives another first episode; the whole verifies."""
    parts = with_other_weights(tmp_path)
    set_source(parts[1], **change)
    merged = called("merge", *parts, "--output", tmp_path / "all")
    assert f"warning: the first episodes of {parts[0]} and {parts[1]} differ" in merged.stderr
    called("verify", tmp_path / "all")
    assert source_of(parts[0])["run"] == source_of(tmp_path / "all")["run"] != source_of(parts[1])["run"]


def test_changes_of_exact_shards_are_of_all_workers(tmp_path: Path) -> None:
    """The record of the whole says of each worker where a change begins; of those of other shards nowhere."""
    words = ("-k", "1", "-w", "3", "--env", ENV, "--seed", "3", "--sampler", "local", "--quiet")
    parts = shards(tmp_path, "exact", *words, parts=2)
    set_source(parts[1], changes=[{"what": "files changed: x", "from_numbers": [1, 2]}])
    called("merge", *parts, "--output", tmp_path / "all", "--quiet")
    (change,) = source_of(tmp_path / "all")["changes"]
    partitions = info_of(tmp_path / "all")["partitions"]
    assert (3, [3, 1, 2], "files changed: x") == (partitions, change["from_numbers"], change["what"])


def test_each_shard_is_compared_with_all_before_it(tmp_path: Path) -> None:
    """A file that the first one did not read; and one that is put back, of which both changes are recorded."""
    words = ("collect", "--episodes", "3", "--env", ENV, "--seed", "3", "--sampler", "local", "--quiet")
    parts, merging = shards(tmp_path, *words), ("--output", tmp_path / "all", "--quiet")

    def read(hashes: str, kind: str) -> None:
        for part, sha256 in zip(parts, hashes, strict=True):
            source, pinned = source_of(part), sha256 if kind == "load" else "-"
            policy = {**source["policy"], "sha256": pinned}
            wrapper = {"spec": "w:W", "kwargs": {}, "sha256": pinned}
            env_source = {**source["env_source"], "wrappers": [wrapper]}
            files = [{"path": "w", "sha256": sha256, "read": kind}] if sha256 != "-" else []
            set_source(part, files=files, policy=policy, env_source=env_source)

    read("-12", "episode")
    refused = called("merge", *parts, *merging, code=2)
    assert all(part in refused.stderr for part in (f"{parts[2]}", f"{parts[0]}", "[shards-of-other-files]"))
    read("121", "load")
    called("merge", *parts, *merging, "--accept-changes")
    source = source_of(tmp_path / "all")
    before = [
        (change["from_numbers"], change["before"]["files"][0]["sha256"]) for change in source["changes"]
    ]
    assert [([1], "1"), ([2], "2")] == before
    read("122", "load")
    called("merge", *parts, *merging, "--accept-changes", "--overwrite")
    source = source_of(tmp_path / "all")
    assert (1, "2") == (len(source["changes"]), source["policy"]["sha256"])
    assert "2" == source["files"][0]["sha256"] == source["env_source"]["wrappers"][0]["sha256"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ("collect", "--timesteps", "10", "--seed", "1"),
            ("--shard", "--timesteps", "[options-exclude-each-other]"),
        ),
        (("collect", "--episodes", "10"), ("--shard", "--seed", "[option-needs-another]")),
        (("collect", "--episodes", "2", "--seed", "1"), ("--shard 3/3", "episodes (2)", "[shard-option]")),
        (("exact", "-k", "5", "-w", "2", "--seed", "1"), ("--shard 3/3", "workers (2)", "[shard-option]")),
    ],
)
def test_shards_that_are_refused(words: Any, parts: tuple[str, ...], tmp_path: Path) -> None:
    """Each with one line that says why."""
    refused = called(*words, "--shard", "3/3", "--output", tmp_path / "out", code=2)
    assert all(part in refused.stderr for part in parts), refused.said


@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_parts_cover_the_whole_once(count: int) -> None:
    """Whatever the number of parts, in order."""
    numbers = range(5, 26)
    parts = [Shard(number, count).part_of(numbers) for number in range(1, count + 1)]
    assert list(numbers) == [one for part in parts for one in part]
