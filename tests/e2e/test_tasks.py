"""Options of resets, and tasks by the number of the episode: for any workers, and again in each way to run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_cli import load
from rollout_cli.errors import ArgumentError
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import VecWorker
from rollout_cli.workers.values import EpisodeRules
from tests.helpers.datasets import assert_same_data
from tests.helpers.errors import raises
from tests.helpers.processes import called

ENV = ("--env", "tests.helpers.envs:OptionsEnv", "--seed", "3", "--quiet", "--reset-options", "wind=2")
LOCAL = ("--sampler", "local", "--workers", "1")
TASKS = [{"goal": 1}, {"goal": 2, "wind": 5}, {"goal": 3}]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Give a file of tasks."""
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    return tmp_path / "tasks.json"


def test_tasks(tmp_path: Path, tasks: Path) -> None:
    """Episode i has task i % n, for 1 and 2 workers and several rows; replay and render need no file of tasks."""
    outputs = [tmp_path / name for name in ("one", "two", "rows")]
    ways = (LOCAL, ("--workers", "2"), (*LOCAL, "--envs-per-worker", "3"))
    for output, way in zip(outputs, ways, strict=True):
        called("collect", *ENV, "--tasks", tasks, "--episodes", "7", *way, "--output", output)
    batch = load(outputs[0]).to_episode_batch()
    assert [0, 1, 2, 0, 1, 2, 0] == batch.episode_infos["task"].tolist()
    firsts = [episode.observations[0].tolist() for episode in batch.split()]
    assert [[1, 2], [2, 5], [3, 2], [1, 2], [2, 5], [3, 2], [1, 2]] == firsts
    for output in outputs[1:]:
        assert_same_data(outputs[0], output)
    tasks.unlink()
    called("replay", "--trust", outputs[0], "--all", "--quiet")
    called("render", "--trust", outputs[0], "--episode", "1", "--output", tmp_path / "film.gif")


def test_resume_with_other_tasks(tmp_path: Path, tasks: Path) -> None:
    """A resume takes the recorded tasks, and refuses others."""
    output = tmp_path / "out"
    called("collect", *ENV, "--tasks", tasks, "--episodes", "3", *LOCAL, "--output", output)
    tasks.write_text(json.dumps(TASKS[1:]))
    words = ("collect", *ENV, "--episodes", "6", *LOCAL, "--resume", "--output", output)
    ran = called(*words, "--tasks", tasks, code=2)
    assert all(part in ran.stderr for part in ("tasks", "[resume-refused]"))
    called(*words)
    assert [0, 1, 2, 0, 1, 2] == load(output).to_episode_batch().episode_infos["task"].tolist()


def test_names_of_tasks() -> None:
    """A task is recorded by its name where all have one; the environment cannot change the tasks."""
    rules = EpisodeRules(tasks=[{"name": "near", "cell": [1]}, {"name": "far", "cell": [2]}])
    assert ["near", "far", "near"] == [rules.task_of(number) for number in range(3)]
    options = rules.options_of(1)
    assert options is not None
    options["cell"].append(9)
    assert {"name": "far", "cell": [2]} == rules.options_of(1)
    assert 1 == EpisodeRules(tasks=[{"name": "near"}, {}]).task_of(3)
    assert EpisodeRules().options_of(3) is None


@pytest.mark.parametrize("text", ["[]", "[1]", "["])
def test_faulty_files(tmp_path: Path, tasks: Path, text: str) -> None:
    """They are refused before a worker starts."""
    tasks.write_text(text)
    words = ("collect", *ENV, "--episodes", "1", "--output", tmp_path / "out", "--tasks", tasks)
    ran = called(*words, code=2)
    assert all(part in ran.stderr for part in ("--tasks", "[option-value]")), ran.stderr


def test_native_rows_take_no_tasks(tmp_path: Path, tasks: Path) -> None:
    """No row of theirs is reset with options of its own."""
    words = (
        "collect",
        "--vectorization",
        "native",
        "--episodes",
        "1",
        "--output",
        tmp_path / "out",
        "--tasks",
        tasks,
    )
    ran = called(*words, code=2)
    assert all(part in ran.stderr for part in ("--tasks", "[options-exclude-each-other]")), ran.stderr
    with raises(ArgumentError, "factory-argument"):
        WorkerFactory(
            worker_class=VecWorker, worker_args={"vectorization": "native"}, rules=EpisodeRules(tasks=[{}])
        )
