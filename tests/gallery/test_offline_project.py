"""The tutorial of an offline project: its commands run as written, and its policies and datasets rank as it says.

Training needs minutes and pins packages, so `.ci/matrix/libraries` runs this module in an environment of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import rollout_cli
from tests.cli.test_docs import blocks
from tests.helpers.processes import ROOT, called, variables

PAGE = "docs/tutorials/offline_project.md"
MEDIUM, EXPERT = "logs/sac/Pendulum-v1_1/rl_model_2500_steps.zip", "logs/sac/Pendulum-v1_1"

pytestmark = pytest.mark.timeout(1200)  # It trains two policies.


@dataclass(frozen=True, slots=True)
class Story:
    """The folder in which the commands ran, and what the last command of each block printed to stdout."""

    folder: Path
    printed: dict[str, str]


def commands() -> list[str]:
    """Return the commands of the page: a here-document is one, and so are the lines that a backslash joins."""
    found: list[str] = []
    for language, body in blocks(PAGE):
        if language == "bash":
            found += [body] if "<<" in body else body.replace("\\\n", " ").splitlines()
    return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Run all commands after the first one, which installs."""
    folder = tmp_path_factory.mktemp("story")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    printed = {}
    for command in commands()[1:]:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=folder,
            env=variables(PATH=path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == ran.returncode, f"{command}\n{ran.stdout}\n{ran.stderr}"
        printed[command] = ran.stdout
    return Story(folder, printed)


def scores_of(table: str) -> dict[str, float]:
    """Return the score of each policy from the first table that `rollout evaluate` printed."""
    rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()]
    (start,) = [number for number, row in enumerate(rows) if row[:2] == ["policy", "episodes"]]
    column = rows[start].index("score")
    return {row[0]: float(row[column]) for row in rows[start + 1 : rows.index([""], start)]}


def test_there_are_few_commands() -> None:
    """The first one installs what `.ci/matrix/libraries` installs for these tests."""
    assert 11 == len(commands())
    words = shlex.split(commands()[0])
    tested = re.search(
        r"^tests_of offline_project (.*)$", (ROOT / ".ci/matrix/libraries").read_text(), re.MULTILINE
    )
    assert tested
    assert [".", *shlex.split(tested[1])] == words[words.index("install") + 1 :]


def test_the_datasets_have_scores(story: Story) -> None:
    """Random actions have 0, the expert has 100, and the early checkpoint is between them."""
    scores = {}
    for name in ("random", "medium", "expert"):
        dataset = story.folder / "suite" / name
        assert [] == rollout_cli.verify(dataset).faults
        document = json.loads(called("stats", dataset, "--json").stdout)
        assert 100 == document["episodes"]
        scores[name] = document["estimates"]["normalized score"]["value"]
    assert {"random": pytest.approx(0, abs=1e-6), "expert": pytest.approx(100)} == {
        name: scores[name] for name in ("random", "expert")
    }
    assert 20 < scores["medium"] < 95
    printed = re.search(r"normalized score +([\d.]+)", story.printed["rollout stats suite/medium"])
    assert printed
    assert pytest.approx(scores["medium"], rel=1e-4) == float(printed[1])
    assert {*scores} == {
        *re.findall(r"^\| (\w+) \| Ep", (story.folder / "suite/README.md").read_text(), re.MULTILINE)
    }


def test_the_offline_policy_is_better_than_random(story: Story) -> None:
    """And worse than the expert: it saw the medium dataset only. All of them are evaluated in other episodes."""
    scores = scores_of(story.printed[commands()[-1]])
    assert {MEDIUM, "offline.d3", "random", EXPERT} == {*scores}
    assert {"random": 0, "expert": 100} == {"random": scores["random"], "expert": scores[EXPERT]}
    assert 30 < scores["offline.d3"] < 100
    assert 20 < scores[MEDIUM] < 95


def test_the_page_shows_what_is_printed(story: Story) -> None:
    """Each line that it shows starts like one that the command above it printed."""
    command, n_shown = "", 0
    for language, body in blocks(PAGE):
        if language == "bash":
            command = body if "<<" in body else body.replace("\\\n", " ").splitlines()[-1]
        else:
            firsts = {line.split()[0] for line in story.printed[command].splitlines() if line.strip()}
            assert {line.split()[0] for line in body.splitlines() if line.strip()} <= firsts
            n_shown += 1
    assert 3 == n_shown
