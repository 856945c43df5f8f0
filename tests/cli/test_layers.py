"""Imports point down the layers, as the contracts in pyproject.toml have it, and what a part of the package loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_cli
from tests.helpers.processes import ROOT, variables


def test_the_layers_hold() -> None:
    """import-linter finds no import that points up, and no heavy library where worker processes run."""
    program = Path(sys.executable).with_name("lint-imports")
    words = [str(program), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    ran = subprocess.run(words, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, ran.stdout + ran.stderr


PACKAGE = Path(rollout_cli.__file__).parent


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_import_goes_by_a_string(path: Path) -> None:
    """The contracts do not see one: the tables of public names alone, in `__init__`, name modules of the package."""
    tree = ast.parse(path.read_text())
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert not [text for text in texts if re.fullmatch(r"rollout_cli(\.\w+)+", text)]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert path.name == "__init__.py" or not {"import_module", "__name__"} <= names


LOADED = {
    "rollout_cli.load": ("samplers", "workers", "policies", "envs", "run", "cli", "options"),
    "rollout_cli.samplers.sampler": ("dataset", "run", "cli", "options"),
    "rollout_cli.samplers.processes.worker_main": ("dataset", "run", "cli", "options", "progress"),
}
"""By what a program loads, parts of the package that it does without."""


@pytest.mark.parametrize("name", LOADED)
def test_a_part_loads_what_it_needs(name: str) -> None:
    """The dataset library stands by itself, and workers have no library for tables, terminals or options."""
    module, _, attribute = name.rpartition(".")
    foreign = {"typer", "pydantic", "rich"} | ({"pyarrow"} if "samplers" in name else set())
    code = (
        f"import sys, {module}; {name if module == 'rollout_cli' else f'from {module} import {attribute}'}\n"
    )
    code += "print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=variables(), capture_output=True, text=True, check=False
    )
    assert 0 == ran.returncode, ran.stderr
    loaded = {".".join(module.split(".")[:2]) for module in ran.stdout.split()}
    assert not loaded & {*foreign, *(f"rollout_cli.{part}" for part in LOADED[name])}


def test_a_run_does_not_load_what_it_does_not_use(tmp_path: Path) -> None:
    """Many conversions of pyarrow load pandas, which takes longer than a short run; served policies need the others."""
    code = (
        "import sys, rollout_cli as r\n"
        f"r.collect(r.CollectConfig(episodes=3, sampler='local', seed=0, output={str(tmp_path / 'out')!r}))\n"
        "unused = {'asyncio', 'lerobot', 'msgpack', 'pandas', 'torch', 'websockets'}\n"
        "assert not unused & sys.modules.keys(), unused & sys.modules.keys()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=variables(), capture_output=True, text=True, check=False
    )
    assert 0 == ran.returncode, ran.stderr


def test_a_dataset_is_loaded_without_the_rest_of_the_package() -> None:
    """Neither workers, policies nor options, and no library that they need."""
    code = (
        "import sys, rollout_cli\n"
        "rollout_cli.load\n"
        "own = {name.split('.')[1] for name in sys.modules if name.startswith('rollout_cli.')}\n"
        "assert own == {"
        "'_version', 'dataset', 'episodes', 'errors', 'redact', 'seeding', 'sources'}, own\n"
        "assert not {'pydantic', 'typer', 'rich'} & sys.modules.keys()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=variables(), capture_output=True, text=True, check=False
    )
    assert 0 == ran.returncode, ran.stderr
