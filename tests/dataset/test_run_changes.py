"""The table of `compare_runs`: each row is a test by its name, and the docstring's table has these rows."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from rollout_cli.dataset.record import RunFacts
from rollout_cli.dataset.run_changes import (
    Change,
    ChangeKind,
    Effect,
    compare_files,
    compare_runs,
    compare_spaces,
    joined_files,
    joined_messages,
    of_effect,
)
from rollout_cli.sources.pins import FileRecord


def entry(path: str, sha256: str, read: str = "load", place: str = "") -> FileRecord:
    file: FileRecord = {"path": path, "sha256": sha256, "read": read}
    return {**file, "place": place} if place else file


STORED: dict[str, Any] = {
    "root_seed": 7,
    "env": {"kwargs": {}, "sha256": "e", "max_episode_length": 500},
    "env_source": {
        "spec": "mine:Env",
        "path": None,
        "wrappers": [{"spec": "w:Wrap", "kwargs": {}, "sha256": "w"}],
    },
    "policy": {
        "spec": "p.zip",
        "scheme": "sb3",
        "path": "/a/p.zip",
        "sha256": "p",
        "options": {"other": "/a/q"},
        "class": "PPO",
    },
    "collector": {
        "command": "collect",
        "shard": None,
        "tasks": None,
        "workers": 2,
        "episodes_per_worker": 4,
        "worker_class": "mine:Worker",
    },
    "worker": {"sha256": "k"},
    "files": [
        entry("mine.py", "m"),
        entry("level.json", "1", "episode", "/data/level.json"),
        entry("p.zip", "p"),
    ],
    "versions": {"numpy": "2.0", "python": "3.11"},
}
"""The record of a stored run."""
OPTIONS = ("command", "shard", "tasks")


def changes(*edits: tuple[str, Any], has_read_files: bool = True, **stored: Any) -> list[tuple[Effect, str]]:
    """Return what differs once these fields of the new run have other values, as `env.sha256`."""
    new = copy.deepcopy({**STORED, **stored})
    for place, value in edits:
        *parents, name = place.split(".")
        document = new
        for parent in parents:
            document = document[parent]
        document[name] = value
    before = cast("RunFacts", {**STORED, **stored})
    found = compare_runs(before, cast("RunFacts", new), OPTIONS, has_read_files=has_read_files)
    return [(change.effect, str(change)) for change in found]


def test_equal_runs_do_not_differ() -> None:
    assert [] == changes()


def test_an_option_that_decides_the_data() -> None:
    """Also an empty value, and one that the stored run did not record; long values are not shown."""
    assert [(Effect.REFUSED, 'shard was not set, is "1/2"')] == changes(("collector.shard", "1/2"))
    assert [] == changes(("collector.tasks", []))
    assert [(Effect.REFUSED, "tasks has another value")] == changes(("collector.tasks", ["x" * 600]))
    assert [] == changes(("collector.workers", 3))
    exact = {**STORED["collector"], "command": "exact"}
    for name in ("workers", "episodes_per_worker"):
        assert [Effect.REFUSED] == [
            effect for effect, _ in changes((f"collector.{name}", 9), collector=exact)
        ]


def test_the_spec_of_the_policy_or_environment() -> None:
    """A file may be in another folder; one that another scheme reads is another policy."""
    assert [(Effect.REFUSED, 'env was "mine:Env", is "other:Env"')] == changes(
        ("env_source.spec", "other:Env")
    )
    assert [] == changes(("policy.spec", "b/p.zip"), ("policy.path", "/b/p.zip"))
    assert [Effect.REFUSED] == [
        effect for effect, _ in changes(("policy.spec", "x"), ("policy.scheme", "d3rlpy"))
    ]


def test_the_options_of_the_policy() -> None:
    assert [] == changes(("policy.options", {"other": "/b/q"}))
    assert [Effect.REFUSED] == [effect for effect, _ in changes(("policy.options", {"other": "q"}))]
    users = {**STORED["policy"], "scheme": None}
    assert [Effect.REFUSED] == [
        effect for effect, _ in changes(("policy.options", {"other": "/b/q"}), policy=users)
    ]


def test_the_root_seed() -> None:
    """0 is a seed, and no empty value."""
    assert [(Effect.REFUSED, "seed was 7, is 8")] == changes(("root_seed", 8))
    assert [(Effect.REFUSED, "seed was 0, is not set")] == changes(("root_seed", None), root_seed=0)


def test_the_time_limit_and_the_class_of_the_policy() -> None:
    """Both are known only after a worker has started."""
    assert [(Effect.REFUSED, "time limit was 500, is not set")] == changes(("env.max_episode_length", None))
    assert [(Effect.REFUSED, 'policy class was "PPO", is "DQN"')] == changes(("policy.class", "DQN"))
    assert [] == changes(("env", {"sha256": "e"}))


def test_spaces_and_columns() -> None:
    stored = {"spaces": {"action": 2}, "features": {}}
    found = compare_spaces(stored, {"spaces": {"action": 3}, "features": {}})
    assert [(Effect.REFUSED, "spaces")] == [(change.effect, change.name) for change in found]
    assert [] == compare_spaces(stored, {"spaces": {"action": 2}})


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("policy", "the source of the policy has changed (p.zip)"),
        ("env", "the source of the environment has changed (mine:Env)"),
        ("worker", "the source of the worker class has changed (mine:Worker)"),
    ],
)
def test_the_content_of_a_source(field: str, what: str) -> None:
    assert [(Effect.ACCEPTABLE, what)] == changes((f"{field}.sha256", "9"))


def test_the_content_of_a_wrapper() -> None:
    wrappers = [{"spec": "w:Wrap", "kwargs": {}, "sha256": "9"}]
    assert [(Effect.ACCEPTABLE, "the source of the wrapper has changed (w:Wrap)")] == changes(
        ("env_source.wrappers", wrappers)
    )


def test_other_content_at_a_stored_place() -> None:
    """Read at load or in an episode; also if the process has not read all files, or two files swapped contents."""
    files = [
        entry("mine.py", "9"),
        entry("level.json", "8", "episode", "/data/level.json"),
        entry("p.zip", "p"),
    ]
    expected = [(Effect.ACCEPTABLE, "mine.py has changed"), (Effect.ACCEPTABLE, "level.json has changed")]
    for has_read_files in (True, False):
        assert expected == changes(("files", files), has_read_files=has_read_files)
    swapped = [entry("mine.py", "p"), entry("p.zip", "m")]
    assert ["mine.py has changed", "p.zip has changed"] == [what for _, what in changes(("files", swapped))]
    two = [entry("w", "1"), entry("w", "2")]
    assert ["w"] == [change.name for change in compare_files(two, [entry("w", "1"), entry("w", "3")])]
    assert [] == compare_files(two, two[::-1])


def test_content_that_was_read_at_load_is_not_read() -> None:
    """It may be read later, and the same content under another name is the same file."""
    files = [entry("lib/mine.py", "m"), entry("p.zip", "p")]
    assert [] == changes(("files", files))
    assert [(Effect.ACCEPTABLE, "mine.py is no longer read")] == changes(("files", files[1:]))
    assert [] == changes(("files", files[1:]), has_read_files=False)
    moved = [entry("lib/mine.py", "9"), entry("p.zip", "p")]
    assert (Effect.ACCEPTABLE, "mine.py has changed") == changes(("files", moved))[0]


def test_a_process_that_had_imported_a_module_reads_its_files_no_more() -> None:
    """A program that collects twice; where no file shows that, a missing one is a change."""
    stored = [entry("mine.py", "1"), entry("w", "2")]
    assert [] == compare_files(stored, [entry("mine.py", "1", "episode")])
    for file in (entry("mine.py", "1"), entry("other.py", "1", "episode")):
        assert ["w"] == [change.name for change in compare_files(stored, [file])]
    now = [entry("mine.py", "1", "episode")]
    joined = joined_files(stored, now)
    assert sorted(map(str, stored)) == sorted(map(str, joined))
    assert [] == compare_files(joined, now), "it is resumed a second time, or a third shard is merged"


def test_an_episode_may_read_other_files() -> None:
    stored = [entry("level.json", digit, "episode", f"/data/{digit}/level.json") for digit in "12"]
    assert [] == compare_files(stored, stored[:1])
    assert [stored[1], stored[0]] == joined_files(stored, stored[:1])


def test_unknown_content_at_an_unknown_place() -> None:
    """A file that was moved is known by its content; one that was also edited is a new file."""
    new = entry("level.json", "9", "episode", "/data/2/level.json")
    assert [(Effect.NOTICE, "level.json is read, and was not read before")] == changes(
        ("files", [*STORED["files"], new])
    )
    assert [] == changes(("files", [*STORED["files"], {**new, "sha256": "1"}]))


def test_a_version() -> None:
    """One that only one of the runs recorded is not compared."""
    versions = {"numpy": "2.1", "torch": "2.13"}
    assert [(Effect.WARNING, "numpy was 2.0, is 2.1")] == changes(("versions", versions))


def test_what_a_record_does_not_contain_is_not_compared() -> None:
    """Before its workers have started, a run knows neither files nor versions."""
    new = {name: value for name, value in STORED.items() if name not in ("files", "versions", "root_seed")}
    assert () == compare_runs(cast("RunFacts", STORED), cast("RunFacts", new), OPTIONS)


def test_an_accepted_change_is_not_found_again() -> None:
    """The joined files have neither the old content of a changed file nor a file that is no longer read."""
    stored = [entry("v", "1"), entry("w", "2"), entry("x", "3", "episode"), entry("y", "4")]
    new = [entry("w", "2"), entry("y", "9")]
    accepted = compare_files(stored, new)
    assert "v is no longer read; y has changed" == joined_messages(accepted)
    joined = joined_files(stored, new, accepted)
    assert [entry("x", "3", "episode"), *new] == joined
    assert [] == compare_files(joined, new)


def test_the_table_has_a_row_for_each_rule() -> None:
    """At most 15 rows, so that a person can know them all."""
    rows = [line for line in str(compare_runs.__doc__).splitlines() if line.strip().startswith("| ")]
    assert len(rows) - 2 <= 15
    assert [Change(ChangeKind.FILE_NEW, "a")] == of_effect(
        [Change(ChangeKind.VERSION, "b"), Change(ChangeKind.FILE_NEW, "a")], Effect.NOTICE
    )
