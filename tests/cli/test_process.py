"""The installed command as a process: what it loads, its streams, and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, ROOT, Ran, run_command, run_process

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


def modules_when_the_fork_server_starts(*options: str) -> list[set[str]]:
    """Run a short collection; return what this process had loaded each time that the fork server was asked for."""
    script = (
        "import sys\n"
        "from multiprocessing import forkserver\n"
        "ensure, seen = forkserver.ensure_running, []\n"
        "def noted():\n"
        "    seen.append(sorted(sys.modules))\n"
        "    ensure()\n"
        "forkserver.ensure_running = noted\n"
        "from rollout_cli.entry import main\n"
        "code = main()\n"
        "import json\n"
        "print(json.dumps(seen))\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "collect", "--timesteps", "5", "-w", "1", "-q", "-o", "out", *options]
    ran = run_process(command)
    assert ran.code == 0, ran.stderr
    return [set(modules) for modules in json.loads(ran.stdout.splitlines()[-1])]


def test_the_fork_server_starts_before_anything_heavy_is_loaded() -> None:
    """It imports what the workers need while the command imports what it needs itself, rather than after that."""
    loaded = {name.split(".")[0] for name in modules_when_the_fork_server_starts()[0]}
    assert "typer" in loaded
    assert loaded & (HEAVY - {"multiprocessing"} | {"rich"}) == set()


@pytest.mark.parametrize("options", [["--sampler", "local"], ["--start-method", "fork"]])
def test_no_fork_server_where_none_is_needed(options: list[str]) -> None:
    """Workers that are not forked from it do without it."""
    assert modules_when_the_fork_server_starts(*options) == []


@pytest.mark.parametrize("policy", ["random", "plain:policy"])
def test_torch_is_not_loaded_for_a_policy_that_does_without(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the command nor a worker imports torch, where it is installed, unless the policy does."""
    (tmp_path / "plain.py").write_text("def policy(observation): return 0\n")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "torch.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w').close()\nraise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path / "path"), os.getenv("PYTHONPATH")])))
    options = ["--timesteps", "50", "-w", "2", "--policy", policy, "-q", "-o", "out"]
    ran = run_command("collect", *options, cwd=tmp_path)
    assert (ran.code, ran.stderr) == (0, "")
    assert not (tmp_path / "loaded").exists()
    assert run_process([sys.executable, "-c", "import torch"]).code == 1
    assert (tmp_path / "loaded").exists(), "the module that stands for torch was not within reach"


def test_the_fork_server_is_not_interrupted_while_it_imports() -> None:
    """Ctrl-C in a terminal reaches the fork server too, whose traceback nobody wants; later it is as it was before."""
    script = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in {'numpy', 'rollout_cli.samplers.worker_process'}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "            print(name)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import rollout_cli.samplers.preloaded\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    ran = run_process([sys.executable, "-c", script])
    assert ran == Ran(0, "rollout_cli.samplers.worker_process\nnumpy\nTrue\n", "")


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


COLLECT = "collect --episodes 3 --seed 5 --workers 1 --output out"


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        ("collect --timesteps 1 --dry-run", ">&-"),
        (COLLECT, "2>&-"),
        (COLLECT, "<&- >&- 2>&-"),
        (f"{COLLECT} --sampler local", "<&- >&- 2>&-"),
    ],
)
def test_closed_streams_are_harmless(tmp_path: Path, arguments: str, closed: str) -> None:
    """A process that is started without its standard streams runs all the same."""
    assert 0 == run_process(["bash", "-c", f"{COMMAND} {arguments} {closed}"], cwd=tmp_path).code
    if "out" in arguments:
        assert 0 == run_command("verify", "out", cwd=tmp_path).code


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """What user code prints would get into it."""
    (tmp_path / "loud.py").write_text(
        "import os\n"
        "from tests.support.envs import ChainEnv\n"
        "class LoudEnv(ChainEnv):\n"
        "    def reset(self, **options):\n"
        "        os.write(1, b'loud words')\n"
        "        os.write(2, b'loud words')\n"
        "        return super().reset(**options)\n"
    )
    script = f"PYTHONPATH=$PYTHONPATH:{ROOT} {COMMAND} {COLLECT} --env loud:LoudEnv --sampler local <&- >&- 2>&-"
    assert 0 == run_process(["bash", "-c", script], cwd=tmp_path).code
    assert 0 == run_command("verify", "out", cwd=tmp_path).code
    files = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not [content for content in files if b"loud words" in content]


@pytest.mark.parametrize("arguments", ["--version", "--help", f"{COLLECT} --quiet", f"{COLLECT} --dry-run --json"])
def test_results_that_cannot_be_written(tmp_path: Path, arguments: str) -> None:
    """One line, and the exit code of output that failed, though the document of the error cannot be written either."""
    ran = run_process(["bash", "-c", f"{COMMAND} {arguments} >/dev/full"], cwd=tmp_path)
    assert (5, "rollout: error: cannot write to standard output: No space left on device\n") == (ran.code, ran.stderr)


def test_an_error_whose_document_cannot_be_written(tmp_path: Path) -> None:
    """It is told in lines, and keeps its exit code."""
    ran = run_process(["bash", "-c", f"{COMMAND} info nothing --json >/dev/full"], cwd=tmp_path)
    assert 5 == ran.code
    assert ran.stderr.startswith("rollout: error: nothing is not a dataset")


@pytest.mark.parametrize("arguments", [COLLECT, f"{COLLECT} --no-progress", "collect --steps"])
def test_messages_that_cannot_be_written(tmp_path: Path, arguments: str) -> None:
    """A run need not end for them; nor is an error another one."""
    expected = run_process(["bash", "-c", f"{COMMAND} {arguments}"], cwd=tmp_path).code
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert expected == run_process(["bash", "-c", f"{COMMAND} {arguments} 2>/dev/full"], cwd=tmp_path).code


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
