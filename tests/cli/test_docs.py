"""The documents are true: their blocks run in order, and their tables are those of the code."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import rollout_cli
from rollout_cli import errors
from rollout_cli.errors import RolloutError
from tests.cli.calling import Caller
from tests.helpers.processes import ROOT, variables
from tests.helpers.projects import project
from tests.helpers.thorough import usually

__all__ = ["project"]

DOCUMENTS = [
    "README.md",
    # Without the pages of the site that show files from elsewhere: docs/conf.py.
    *sorted(
        f"docs/{path.name}"
        for path in (ROOT / "docs").glob("*.md")
        if path.name != "index.md" and not path.read_text().startswith("<!-- The site shows")
    ),
    # The other pages there run in the environments of their tools: .ci/matrix/run.
    *(f"docs/use/{name}.md" for name in ("README", "duckdb", "pandas", "polars", "pyarrow")),
]
INSTALLS = ("<!-- first command -->", "<!-- test command -->")
LANGUAGES = {"bash", "python", "sql", "toml", "json", "text", "js"}
"""Those of blocks; `.ci/matrix` runs the programs in `js`, since these tests need no Node.js."""


def blocks(document: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of each block of a document, without those that install, which `.ci/run` runs."""
    text = (ROOT / document).read_text()
    for before, language, body in re.findall(
        r"([^\n]*)\n```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        if before not in INSTALLS:
            yield language, body


def can_run(body: str) -> bool:
    """Return whether all packages that a block imports are installed: the tests need no torch.

    `.ci/matrix/documents` installs what the page names, and runs all blocks.
    """
    if "ROLLOUT_TEST_ALL_BLOCKS" in os.environ:
        return True
    names = re.findall(r"^(?:import|from) (\w+)", body, re.MULTILINE)
    return all(importlib.util.find_spec(name) or name == "lean" for name in names)


def run_shell(body: str, rollout: Caller) -> None:
    """Run the lines of a block: those of `rollout` in this process, which has its libraries loaded."""
    for line in body.splitlines():
        match shlex.split(line):
            case ["rollout", *words, ">", file]:
                Path(file).write_text(rollout(*words).stdout)
            case ["rollout", *words]:
                rollout(*words)
            case _:
                subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True)


@pytest.mark.timeout(300)  # The README has some twenty commands, one after another.
@pytest.mark.parametrize("document", usually(DOCUMENTS, "README.md".__eq__))
def test_blocks_run(document: str, project: Path, rollout: Caller) -> None:
    """Every block of a document runs in one folder: files and commands in order, then Python as one program."""
    found = list(blocks(document))
    assert {language for language, _ in found} <= LANGUAGES
    assert found
    programs = []
    for language, body in found:
        if named := re.match(r"# (\w+\.\w+)\n", body):
            (project / named[1]).write_text(body)
        elif language == "bash":
            run_shell(body, rollout)
        elif language == "sql":
            assert duckdb.execute(body).fetchall()
        elif language == "python" and can_run(body):
            programs.append(body)
    if programs:
        (project / "block.py").write_text("\n".join(programs))
        ran = subprocess.run(
            [sys.executable, "block.py"],
            env=variables(SB3_LOGDIR=str(project / "logs")),
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == ran.returncode, ran.stdout + ran.stderr


def test_the_two_first_commands() -> None:
    """The README has one line that installs and collects, and one that runs the tests."""
    lines = (ROOT / "README.md").read_text().splitlines()
    first, test = (lines[lines.index(marker) + 1 : lines.index(marker) + 4] for marker in INSTALLS)
    assert ("```bash", "```") == (first[0], first[2]) == (test[0], test[2])
    assert first[1].startswith("python3 -m venv ")
    assert first[1].endswith("rollout collect --timesteps 100000")
    assert test[1].endswith(".venv/bin/python -m pytest -n auto --dist worksteal")


def test_all_exit_codes_are_listed() -> None:
    """Each error class stands in the row of its exit code."""
    text = (ROOT / "docs/command-line.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \| .* \|$", text, re.MULTILINE)
    listed = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert {name: kind.exit_code for name, kind in vars(errors).items() if is_error(kind)} == listed
    short = re.findall(r"^\| (\d+) \| .* \|$", (ROOT / "docs/long-runs.md").read_text(), re.MULTILINE)
    assert [code for code, _ in rows] == short


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, RolloutError) and kind is not RolloutError


def test_documents_that_are_named_exist() -> None:
    """Links between the documents lead somewhere."""
    pages = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*/*.md")]
    for document in {*DOCUMENTS, *pages}:
        for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / document).read_text()):
            assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"


def test_the_changelog_has_the_version() -> None:
    """The version that is built has its entry."""
    assert f"## {rollout_cli.__version__}" in (ROOT / "CHANGELOG.md").read_text()
