"""The API reference lists every public name, and each listed object has an example, which runs."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rollout_cli
from tests.helpers.processes import ROOT

PAGES = ROOT / "docs" / "api"
PACKAGES = {"rollout_cli.plot": "matplotlib"}
"""By listed name, the optional package that its example needs."""


def listed() -> list[str]:
    """Return the dotted names in the pages' directives for classes and functions."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    return re.findall(r"^\.\. auto(?:class|function):: (\S+)$", pages, re.MULTILINE)


def named(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the program that the first page shows: it writes the dataset `data`, which the examples read."""
    folder = tmp_path_factory.mktemp("examples")
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", (PAGES / "index.md").read_text(), re.MULTILINE | re.DOTALL
    )
    with contextlib.chdir(folder):
        exec(program, {"__name__": "__main__"})
    return folder


@pytest.mark.parametrize("name", listed())
def test_examples_run(name: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They print what the docstring shows, in a folder with the dataset, after `import rollout_cli`."""
    variables = {"__name__": "__main__", "rollout_cli": rollout_cli}
    found = doctest.DocTestFinder().find(named(name), name, globs=variables)
    tests = [test for test in found if test.examples]
    assert tests, f"the docstring of {name} has no example"
    if (package := PACKAGES.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    shutil.copytree(prepared / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        printed: list[str] = []
        result = runner.run(test, out=printed.append)
        assert result.failed == 0, "".join(printed)


def test_every_public_name_is_listed() -> None:
    """An older name of a listed object need not be listed itself."""
    objects = [named(name) for name in listed()]
    public = {name: getattr(rollout_cli, name) for name in rollout_cli.__all__ if name != "__version__"}
    assert [] == [name for name, value in public.items() if value not in objects]
