"""The installed command as a process: what it loads, its streams, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, run_command, run_process

HEAVY = {"numpy", "gymnasium", "pyarrow", "torch", "cloudpickle", "multiprocessing"}


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Return the top-level modules that are loaded after `code` has run."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\nprint('\\n' + ' '.join(sys.modules))"
    ran = run_process([sys.executable, "-c", script, *arguments])
    assert ran.code == 0, ran.stderr
    return {name.split(".")[0] for name in ran.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["collect", "--help"], ["exact", "--help"], ["info", "--help"], ["policy", "pack", "--help"]],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """Help pages come without the libraries that runs need."""
    loaded = loaded_by("from rollout_cli.entry import main; main()", *arguments)
    assert "typer" in loaded
    assert loaded & HEAVY == set()


def test_the_dry_run_loads_nothing_heavy() -> None:
    """A configuration can be checked without the libraries that runs need."""
    loaded = loaded_by("from rollout_cli.entry import main; main()", "collect", "--timesteps", "1", "--dry-run")
    assert loaded & HEAVY == set()


def test_the_entry_point_loads_nothing() -> None:
    """What a worker process runs again when it is spawned loads no Typer, rich or pyarrow, and nothing heavy."""
    loaded = loaded_by("import rollout_cli.entry")
    assert loaded & (HEAVY | {"typer", "rich", "pydantic"}) == set()


def test_the_console_script_loads_nothing_as_a_child() -> None:
    """The installed script itself, run under the name that worker processes give it, loads no more than that."""
    code = f"import runpy; runpy.run_path({str(COMMAND)!r}, run_name='__mp_main__')"
    assert loaded_by(code) & (HEAVY | {"typer", "rich", "pydantic"}) == set()


def test_python_m() -> None:
    """`python -m rollout_cli` is the same command."""
    ran = run_process([sys.executable, "-m", "rollout_cli", "--version"])
    assert (ran.code, ran.stdout) == (0, run_command("--version").stdout)


def test_a_usage_error_of_a_process() -> None:
    """The exit code and the streams are those of the process too."""
    ran = run_command("collect")
    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr.startswith("rollout: error: how much to collect is not said")
    ran = run_command("collect", "--json", "--timesteps", "x")
    assert (ran.code, ran.stderr) == (2, "")
    assert json.loads(ran.stdout)["error"]["class"] == "ConfigError"


@pytest.mark.parametrize("arguments", [["--version"], ["collect", "--timesteps", "1", "--dry-run"]])
def test_a_closed_reader_is_harmless(arguments: list[str]) -> None:
    """A pipe that nobody reads any more is no error, and leaves no complaint."""
    read, write = os.pipe()
    os.close(read)
    try:
        ran = subprocess.run(
            [COMMAND, *arguments], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(write)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_closed_streams_are_harmless(tmp_path: Path) -> None:
    """A process that is started without stdout or stderr runs all the same."""
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        script = f"{COMMAND} collect --timesteps 1 --dry-run {closed}"
        assert run_process(["bash", "-c", script], cwd=tmp_path).code == 0


def test_the_public_names_load_when_used() -> None:
    """`import rollout_cli` loads nothing; each public name is found, and others are not."""
    assert loaded_by("import rollout_cli") & (HEAVY | {"typer"}) == set()
    code = (
        "import rollout_cli as r\n"
        "assert all(getattr(r, name) is not None for name in r.__all__)\n"
        "assert set(r.__all__) <= set(dir(r))\n"
        "assert not hasattr(r, 'nothing')"
    )
    ran = run_process([sys.executable, "-c", code])
    assert (ran.code, ran.stderr) == (0, "")
