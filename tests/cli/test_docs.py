"""The documents tell the truth: their blocks are run in order, and their tables are those of the code."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from rollout_cli import errors
from rollout_cli.config import OPTIONS, Option
from rollout_cli.errors import RolloutError
from tests.cli.conftest import COMMAND, ROOT, Ran, run_process

DOCUMENTS = ["README.md", "docs/command-line.md", "docs/dataset-format.md"]
INSTALLS = ("<!-- first command -->", "<!-- test command -->")
RUN_BY_TOOLS = {"bash", "python", "sql", "toml", "json"}


def blocks(document: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of each block of a document, without those that install, which `.ci/run` runs."""
    text = (ROOT / document).read_text()
    for before, language, body in re.findall(r"([^\n]*)\n```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if before not in INSTALLS:
            yield language, body


def run_block(language: str, body: str, folder: Path) -> None:
    """Run a block, or save it under the name in its first line."""
    named = re.match(r"# (\w+\.\w+)\n", body)
    if named:
        (folder / named[1]).write_text(body)
    elif language == "bash":
        check(run_process(["bash", "-euo", "pipefail", "-c", body], cwd=folder))
    elif language == "python":
        (folder / "block.py").write_text(body)
        check(run_process([sys.executable, "block.py"], cwd=folder))
    elif language == "sql":
        assert duckdb.execute(body).fetchall()


def check(ran: Ran) -> None:
    assert ran.code == 0, ran.stdout + ran.stderr


@pytest.mark.timeout(300)  # The README has some thirty commands, one after another.
@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a document runs, one after another, in one folder."""
    monkeypatch.setenv("PATH", f"{COMMAND.parent}:{os.environ['PATH']}")
    found = list(blocks(document))
    assert {language for language, _ in found} <= RUN_BY_TOOLS
    assert found
    for language, body in found:
        run_block(language, body, tmp_path)


def test_the_two_first_commands() -> None:
    """The README's first two blocks are single lines: one that installs and collects, one that runs the tests."""
    lines = (ROOT / "README.md").read_text().splitlines()
    first, test = (lines[lines.index(marker) + 1 : lines.index(marker) + 4] for marker in INSTALLS)
    assert (first[0], first[2]) == (test[0], test[2]) == ("```bash", "```")
    assert first[1].startswith("python3 -m venv ")
    assert first[1].endswith("rollout collect --timesteps 100000")
    assert test[1].endswith("pytest")


def row(option: Option) -> str:
    """Return the line that a document must have of an option."""
    names = ", ".join(f"`{name}`" for name in (option.flag, option.short) if name)
    metavar = " " + option.kind.metavar.replace("|", "\\|") if option.kind.metavar else ""
    default = f"`{option.default}`" if option.default else "none"
    return f"| {names}{metavar} | {option.help} | {default} | {', '.join(option.commands)} |"


def test_all_options_are_listed() -> None:
    """The options in the document are those that are declared, in words and order."""
    listed = re.findall(r"^\| `--.*\| \w+(?:, \w+)* \|$", (ROOT / "docs/command-line.md").read_text(), re.MULTILINE)
    assert listed == [row(option) for option in OPTIONS.values()]


def test_all_exit_codes_are_listed() -> None:
    """Each error class stands in the row of its exit code, and the README has the same codes and meanings."""
    text = (ROOT / "docs/command-line.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    told = {name: int(code) for code, names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    classes = {name: kind.exit_code for name, kind in vars(errors).items() if is_error(kind)}
    assert told == classes
    short = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert short == [(code, meaning) for code, _, meaning in rows]


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, RolloutError) and kind is not RolloutError


def test_documents_that_are_named_exist() -> None:
    """Links between the documents lead somewhere."""
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / document).read_text()):
            assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"


def test_the_changelog_has_the_version() -> None:
    """The version that is built has its entry."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
