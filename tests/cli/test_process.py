"""The command as a process: what it loads, its streams, its signals, and shell completion."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import termios
from array import array
from pathlib import Path
from typing import IO

import psutil
import pytest

from rollout_cli.cli.output import report
from rollout_cli.cli.streams import WITH_ASCII
from rollout_cli.errors import StorageError
from rollout_cli.reports.charts import PLOTS
from tests.cli.calling import Caller
from tests.helpers import processes
from tests.helpers.datasets import has_commit, info_of, numbers_of
from tests.helpers.processes import ROOT, command, running, variables
from tests.helpers.processes import rollout as as_process
from tests.helpers.projects import write_module
from tests.helpers.thorough import usually

HEAVY = {"numpy", "gymnasium", "pyarrow", "torch", "multiprocessing"}
ENV = ("--env", "tests.helpers.envs:FaultyEnv")
KINDS = {"processes": ("--workers", "2"), "local": ("--workers", "1", "--sampler", "local")}


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that are loaded after `code` has run."""
    script = f"import sys\n{code}\nprint('\\n' + ' '.join(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", script], env=variables(), capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in ran.stdout.splitlines()[-1].split()}


def test_help_and_options_load_nothing_heavy() -> None:
    """Help pages come, and a configuration is checked, without the libraries that runs need."""
    short = [[], ["--help"], ["info", "--help"], ["policy", "pack", "--help"], ["--version"]]
    calls = "from rollout_cli.cli.app import run\nfor words in {}: run(words)"
    loaded = loaded_by(calls.format(short))
    assert "typer" in loaded
    assert set() == loaded & HEAVY
    declared = [["collect", "--help"], ["exact", "--help"], ["collect", "--timesteps", "1", "--dry-run"]]
    assert set() == loaded_by(calls.format(declared)) & HEAVY


def test_glyphs_have_an_ascii_form() -> None:
    """Each character of messages and charts that ASCII lacks has one; any other one is escaped."""
    literals = [
        node.value
        for path in (ROOT / "rollout_cli").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert any("█" in text for text in literals)
    shown = "".join(literals).encode("ascii", WITH_ASCII)
    assert "".join(literals).count("\\") == shown.count(b"\\")
    assert b"caf\xe9 ##..." == "café ██…".encode("latin-1", WITH_ASCII)
    assert b"\\u20ac" == "€".encode("ascii", WITH_ASCII)


@pytest.mark.parametrize(
    ("encoding", "plots"),
    usually(
        [("ascii", [*PLOTS][:2]), ("ascii", [*PLOTS][2:]), ("latin-1", [*PLOTS])],
        lambda row: len(row[1]) == 2,
    ),
)
def test_streams_without_utf8(tmp_path: Path, encoding: str, plots: list[str]) -> None:
    """Bars, ranges and small histograms are drawn with ASCII characters, on a pipe too."""
    as_process("collect", "--timesteps", "500", *ENV, "--output", "d", "--quiet", cwd=tmp_path)
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    shown = [as_process("plot", "d", what, cwd=tmp_path, env=env).stdout for what in plots]
    assert "#" in shown[0]
    assert all(text.isascii() and "\\" not in text for text in shown)


def test_the_entry_point_loads_nothing() -> None:
    """A worker process that is spawned runs the console script again, under another name."""
    assert set() == loaded_by("import rollout_cli.entry") & (
        HEAVY | {"typer", "rich", "pydantic", "cloudpickle"}
    )


def test_workers_start_before_parquet_is_loaded() -> None:
    """What starts them loads no pyarrow, which this process loads while they build."""
    assert set() == loaded_by("import rollout_cli.run.collect") & {"pyarrow", "rich"}


def test_a_file_that_is_named_like_a_module_of_pythons_own(tmp_path: Path) -> None:
    """Python itself must not look for its modules in the working folder: `-P` says so."""
    (tmp_path / "types.py").write_text("raise ImportError")
    words = [sys.executable, "-P", "-m", "rollout_cli", "--version"]
    assert subprocess.run(words, cwd=tmp_path, env=variables(), capture_output=True, check=True).stdout


@pytest.mark.parametrize("place", usually(["installed", "a checkout", "another rollout"], "installed".__eq__))
def test_the_module_is_the_command(tmp_path: Path, place: str) -> None:
    """Wherever it is installed, in a checkout where it is not, and beside another project's `rollout`."""
    words = [sys.executable, "-m", "rollout_cli", "collect", "--episodes", "2", "--workers", "2", "--quiet"]
    libraries = ""
    if place == "a checkout":  # Without `site`, the libraries are found, and an editable installation is not.
        words.insert(1, "-S")
        libraries = sysconfig.get_path("purelib")
    if place == "another rollout":
        (tmp_path / "rollout").mkdir()
        for name in ("rollout/__init__.py", "entry.py", "typer.py"):
            (tmp_path / name).write_text("raise ImportError('a module of another project')")
    folder = ROOT if place == "a checkout" else tmp_path
    words += ["--output", str(tmp_path / "out")]
    env = variables(PYTHONPATH=libraries)
    ran = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (0, f"{tmp_path / 'out'}\n", "") == (ran.returncode, ran.stdout, ran.stderr)


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_user_code_prints_is_on_stderr(tmp_path: Path, kind: str) -> None:
    """By Python and past it, in this process and in workers; stdout is one JSON document."""
    words = ("collect", "--episodes", "4", *ENV, "--env-kwargs", "what=print", *KINDS[kind], "--json")
    ran = as_process(*words, "--output", tmp_path / "out")
    assert 4 == json.loads(ran.stdout)["episodes"]
    for line in ("a line that a simulator prints", "and one past Python"):
        assert line in ran.stderr


def test_what_user_code_leaves_in_buffers_is_on_stderr(tmp_path: Path) -> None:
    """Of Python's own stdout, and of C's: whoever writes them out later, results stay one JSON document."""
    words = ("collect", "--episodes", "1", *ENV, "--env-kwargs", "what='print unflushed'", *KINDS["local"])
    ran = as_process(*words, "--json", "--output", tmp_path / "out", env={"PYTHONUNBUFFERED": ""})
    assert 1 == json.loads(ran.stdout)["episodes"]
    for line in ("a line by a stream that was kept", "a line of a C library"):
        assert line in ran.stderr


@pytest.mark.parametrize("method", usually(["forkserver", "spawn"], "forkserver".__eq__))
def test_nothing_is_left_open(tmp_path: Path, method: str) -> None:
    """With all warnings as errors, a worker reports no file or socket that it leaves behind."""
    words = ("collect", "--episodes", "4", *ENV, *KINDS["processes"], "--start-method", method, "--quiet")
    ran = subprocess.run(
        [*command(), *words, "--output", str(tmp_path / "out")],
        env=variables(PYTHONWARNINGS="error::ResourceWarning"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "" == ran.stderr


def test_a_reader_that_goes_is_no_error(rollout: Caller, tmp_path: Path) -> None:
    """`rollout … | head -1` ends well."""
    rollout("collect", "--episodes", "2", "--quiet", *KINDS["local"], "--output", tmp_path / "out")
    shell = f"{shlex.join([*command(), 'info', str(tmp_path / 'out')])} | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", shell], env=variables(), capture_output=True, text=True, check=False)
    assert (0, "") == (ran.returncode, ran.stderr)


def test_results_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    """A full disk under stdout is exit code 5."""
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*command(), "--version"], env=variables(), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (5, True) == (ran.returncode, b"[stdout-failed]" in ran.stderr)


def test_streams_that_are_closed(rollout: Caller, tmp_path: Path) -> None:
    """A run without standard streams makes the dataset, and prints into none of its files."""

    def close() -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    words = [
        "collect",
        "--timesteps",
        "300",
        "--seed",
        "1",
        *ENV,
        *KINDS["processes"],
        "--env-kwargs",
        "what=print",
    ]
    with running([*words, "--output", str(tmp_path / "out")], before=close) as run:
        assert 0 == run.end().code
    rollout("verify", tmp_path / "out")


def test_a_working_folder_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    """The run ends well, and names its dataset by the whole path."""
    (tmp_path / "here").mkdir()
    words = ("collect", "--episodes", "1", *ENV, "--env-kwargs", "what=rmdir", *KINDS["local"])
    ran = as_process(*words, "--output", tmp_path / "out", cwd=tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert f"next: rollout info {shlex.quote(str(tmp_path / 'out'))}" in ran.stderr


# -- signals -----------------------------------------------------------------------------------------------------------


def test_a_closed_terminal_ends_the_run_politely(rollout: Caller, tmp_path: Path) -> None:
    """It is acknowledged, the finished episodes are kept and counted, and no process is left."""
    output = tmp_path / "out"
    words = ["collect", "--timesteps", "1000000", *ENV, "--env-kwargs", "pace=0.001", *KINDS["local"]]
    with running([*words, "--output", str(output), "--flush-every", "0.02"]) as run:
        run.wait_until(lambda: has_commit(output))
        run.process.send_signal(signal.SIGHUP)
        ran = run.end()
    assert (143, "", ()) == (ran.code, ran.stdout, ran.left), ran.said
    assert "notice: SIGHUP: stopping the run" in ran.stderr
    (error,) = (line for line in ran.stderr.splitlines() if line.startswith("rollout: error: "))
    assert all(part in error for part in ("SIGHUP", f"{len(numbers_of(output)):,}", "[terminated]"))
    assert "interrupted" == info_of(output)["status"]
    rollout("verify", output)


def test_ctrl_c_while_the_environment_prints_what_nobody_reads(tmp_path: Path) -> None:
    """It ends the run, and is no failure of the environment that waits for the reader of stderr."""
    words = ["collect", "--episodes", "9", *ENV, "--env-kwargs", "what='print lines'", *KINDS["local"]]
    words += ["--output", str(tmp_path / "out")]
    with running(words, env={"PYTHONUNBUFFERED": ""}) as run:
        run.wait_until(lambda: is_filled(run.process.stderr) and is_asleep(run.process.pid))
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    said = [line for line in ran.stderr.splitlines() if not line.startswith("xxx")]
    assert 130 == ran.code, said
    assert "notice: SIGINT: stopping the run" in ran.stderr


def is_filled(pipe: IO[bytes] | None) -> bool:
    """Return whether a pipe holds more than half of what it may: no two lines need share one of its pages."""
    assert pipe is not None
    held = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, held)
    return held[0] > int(fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)) / 2


def is_asleep(pid: int) -> bool:
    """Return whether a process waits for something."""
    return bool(psutil.Process(pid).status() == psutil.STATUS_SLEEPING)


def test_a_signal_before_a_worker_has_started(tmp_path: Path) -> None:
    """No dataset is left."""
    kwargs = ("--env-kwargs", "what=hang", "--env-kwargs", "when=load", "--env-kwargs", f"signs='{tmp_path}'")
    words = [
        "collect",
        "--timesteps",
        "100",
        *ENV,
        *kwargs,
        *KINDS["processes"],
        "--output",
        str(tmp_path / "out"),
    ]
    with running(words) as run:
        run.wait_until((tmp_path / "hang-0").exists)
        run.process.send_signal(signal.SIGTERM)
        ran = run.end()
    assert 143 == ran.code, ran.said
    assert all(part in ran.stderr for part in ("SIGTERM", "[terminated]"))
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_signal_while_the_fork_server_imports_torch(tmp_path: Path) -> None:
    """That takes minutes on a slow disk: nobody waits for it, and nothing is left."""
    mark = tmp_path / "importing"
    (tmp_path / "torch.py").write_text(f"import time\nopen({str(mark)!r}, 'w').close()\ntime.sleep(1000)\n")
    (tmp_path / "net.ts").touch()
    words = ["collect", "--policy", f"torchscript:{tmp_path / 'net.ts'}", "--timesteps", "100"]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with running([*words, *KINDS["processes"], "--output", str(tmp_path / "out")], env=path) as run:
        run.wait_until(mark.exists)
        run.process.send_signal(signal.SIGTERM)
        ran = run.end()
    assert 143 == ran.code, ran.said
    assert all(part in ran.stderr for part in ("SIGTERM", "[terminated]"))
    assert not ran.left
    assert not (tmp_path / "out").exists()


# -- completion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rollout ver", ["verify"]),
        ("rollout collect --on", ["--on-env-error", "--on-worker-death"]),
        ("rollout collect --on-env-error ", ["fail", "retry", "skip"]),
        ("rollout collect --env MountainCar", ["MountainCar-v0", "MountainCarContinuous-v0"]),
        ("rollout policy ", ["pack"]),
    ],
)
def test_shell_completion(words: str, expected: list[str]) -> None:
    """Commands, flags and the words of a choice are completed."""
    asked = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_ROLLOUT_COMPLETE": "complete_bash",
    }
    ran = subprocess.run(command(), env=variables(**asked), capture_output=True, text=True, check=True)
    assert expected == ran.stdout.split()


def test_no_memory_is_left_for_an_error(tmp_path: Path) -> None:
    """What is kept for it is enough."""
    write_module(
        tmp_path,
        "eater",
        """
        import resource

        held = []


        def make():
            pages = int(open("/proc/self/statm").read().split()[0])
            size = pages * resource.getpagesize() + (32 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
            for power in range(22, 3, -1):
                try:
                    while True:
                        held.append(bytes(1 << power))
                except MemoryError:
                    pass
            raise MemoryError
        """,
    )
    words = ("collect", "--sampler", "local", "--env", "eater:make", "--episodes", "1", "--output", "out")
    ran = as_process(*words, cwd=tmp_path, code=4)
    assert "[process-out-of-memory]" in ran.stderr.splitlines()[0]


def test_verbose_shows_that_tidying_up_failed_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A note says so; the hint, which Python shows as a note, is not shown twice."""
    error = StorageError("the disk is full", hint="make room")
    error.add_note("hint: make room")
    error.add_note("out/.data.tmp cannot be removed")
    report(error, as_json=False, verbose=False)
    lines = ["rollout: error: the disk is full [storage]", "  hint: make room"]
    assert lines == capsys.readouterr().err.splitlines()
    report(error, as_json=False, verbose=True)
    said = capsys.readouterr().err
    assert (1, 1) == (said.count("make room"), said.count("out/.data.tmp cannot be removed"))


def test_the_tests_kill_a_run_whose_workers_end_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with their parent, between the look for them and the signal."""
    process = subprocess.Popen(["true"])
    ending = psutil.Process(process.pid)
    process.wait()
    monkeypatch.setattr(processes, "marked", lambda _: [ending])
    processes.Running(process).kill()
