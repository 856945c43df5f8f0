"""The floors of ARCHITECTURE.md: imports point down, and workers load nothing that only the parent needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_cli

ROOT = Path(rollout_cli.__file__).parent
FLOORS = dict.fromkeys(("cli", "entry", "__main__", "__init__"), 7)
FLOORS |= dict.fromkeys(("collect", "header", "interrupts", "progress", "config", "assembling", "reproducing"), 6)
FLOORS |= dict.fromkeys(("skipping", "fingerprint", "resuming", "recorded_layer"), 6)
FLOORS |= {"dataset": 5, "exporters": 5, "samplers": 4, "workers": 3, "policies": 2, "envs": 2}
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
PARENT_ONLY = {"pyarrow", "rich", "typer"}
PURE = ("worker_machine", "sampler_machine", "worker_leases", "supervision", "plan", "prefix", "offsets")


def floor(module: str) -> int:
    """Return the floor of a module named from the package down; what has no room of its own stands on the first."""
    return FLOORS.get(module.split(".", maxsplit=1)[0], 1)


def imports(module: str) -> Iterator[str]:
    """Yield all modules that `module` names in an import, also inside functions and for type checking."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield node.module or ""
            yield from (f"{node.module}.{name.name}" for name in node.names)


def own_imports(module: str) -> set[str]:
    """Return the modules of the package that `module` imports, named from the package down.

    A name that the package itself offers is imported from its `__init__`.
    """
    inner = {name.removeprefix("rollout_cli.") for name in imports(module) if name.startswith("rollout_cli.")}
    known = {name for name in inner if name in MODULES or f"{name}.__init__" in MODULES}
    return known | {"__init__" for name in inner - known if "." not in name}


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    """No module imports one of a higher floor."""
    assert set() == {name for name in own_imports(module) if floor(name) > floor(module)}


@pytest.mark.parametrize("module", [module for module in MODULES if floor(module) <= 4])
def test_workers_import_nothing_of_the_parents(module: str) -> None:
    """Floors 1 to 4 are loaded by every worker: they name no pyarrow, rich or typer."""
    assert set() == {name.split(".")[0] for name in imports(module)} & PARENT_ONLY


@pytest.mark.parametrize("name", PURE)
def test_machines_and_plans_are_pure(name: str) -> None:
    """They are told what happened, and know neither processes nor time."""
    impure = {"multiprocessing", "queue", "time", "threading"}
    assert set() == {imported.split(".")[0] for imported in imports(f"samplers.{name}")} & impure


def test_a_worker_process_loads_nothing_of_the_parents() -> None:
    """Nor does anything that it imports in turn."""
    code = f"import sys, rollout_cli.samplers.worker_process; print(*sorted({PARENT_ONLY} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "" == done.stdout.strip()


def test_the_map_is_whole() -> None:
    """Modules are found, imports are seen, and every room stands where the map says."""
    assert {"collect", "cli", "dataset", "samplers", "workers", "policies", "envs"} <= {
        module.split(".")[0] for module in MODULES
    }
    assert {"samplers", "samplers.plan", "workers"} <= own_imports("__init__")
    assert "_batch_checks" in own_imports("episode_batch")
    assert "__init__" in own_imports("cli.app")
