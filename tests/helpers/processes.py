"""Running the command as its users do, in a process of its own, and finding the processes that it starts."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from unittest.mock import patch

import psutil

ROOT = Path(__file__).parents[2]

SECONDS = 100.0
"""After so long something hangs. No test asks for less."""

MARK = "ROLLOUT_TEST_MARK"
"""The environment variable that all processes of one run inherit."""


def command() -> list[str]:
    """Return the words that run `rollout`: `ROLLOUT_TEST_COMMAND`, or the script beside this Python, or its module."""
    if chosen := os.environ.get("ROLLOUT_TEST_COMMAND"):
        return shlex.split(chosen)
    script = Path(sys.executable).with_name("rollout")
    return [str(script)] if script.exists() else [sys.executable, "-m", "rollout_cli"]


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended.

    Attributes:
        code: Its exit code; minus the signal's number where one ended it.
        stdout: What it printed.
        stderr: What it said.
        left: Processes of it that outlived it by two seconds.
    """

    code: int
    stdout: str
    stderr: str
    left: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """Both streams, for the message of a failed assertion."""
        return f"exit code {self.code}\n{self.stdout}\n{self.stderr}"


@dataclass(slots=True)
class Running:
    """A command that runs.

    Attributes:
        process: The process.
        mark: What it and all that it starts have in their environment.
    """

    process: subprocess.Popen[bytes]
    mark: str = field(default="")

    def workers(self) -> list[psutil.Process]:
        """Return its worker processes, whatever started them for it."""
        return [one for one in marked(self.mark) if is_worker(one)]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; the command must live until then."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the moment did not come: {self.end().said}")
            time.sleep(0.005)

    def wait_to_say(self, expression: str) -> str:
        """Return what it says on stderr up to and with a match of the expression."""
        stderr = self.process.stderr
        assert stderr is not None
        said = ""
        while not re.search(expression, said):
            ready, _, _ = select.select([stderr], [], [], SECONDS)
            data = _text(os.read(stderr.fileno(), 65_536)) if ready else ""
            assert data, f"it did not say {expression!r}: {said}"
            said += data
        return said

    def end(self) -> Ran:
        """Wait for its end. A run that hangs fails the test, and says what it had printed."""
        try:
            stdout, stderr = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            hanging = "it hangs" if self.process.poll() is None else "it has ended, but not what it started"
            self.kill()
            stdout, stderr = self.process.communicate()
            raise AssertionError(f"{hanging}: {_text(stdout)}{_text(stderr)}") from None
        left = tuple(f"{one.pid} {one.name()}" for one in outlive(self.mark, seconds=2.0))
        return Ran(self.process.returncode, _text(stdout), _text(stderr), left)

    def kill(self) -> None:
        """Kill it and all that it started: whoever lives holds its streams open."""
        self.process.kill()
        for left in marked(self.mark):
            with contextlib.suppress(psutil.NoSuchProcess):  # Workers end with their parent by themselves.
                left.send_signal(signal.SIGKILL)


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "backslashreplace")


def variables(mark: str = "", **more: str) -> dict[str, str]:
    """Return the environment of a command: it finds the tests' modules, and bears the mark.

    A process that changes its title writes it over the environment that others see of it, unless SPT_NOENV is
    set.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "SPT_NOENV": "1", MARK: mark, **more}


@contextlib.contextmanager
def running(
    words: Sequence[str | bytes],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
    program: Sequence[str] | None = None,
    session: bool = False,
) -> Iterator[Running]:
    """Start `rollout` with these words; nothing of it outlives the block.

    Args:
        words: What follows the command's name.
        cwd: Its working folder.
        env: Variables beside the usual ones.
        before: Called in the new process before the program begins.
        program: Another program than `rollout`.
        session: Whether it leads a session, and so a group of its own.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [*(program or command()), *words],
        cwd=cwd,
        env=variables(mark, **(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=before,  # noqa: PLW1509  It calls next to nothing.
        start_new_session=session,
    )
    run = Running(process, mark)
    try:
        yield run
    finally:
        run.kill()
        process.communicate()


def rollout(
    *words: str | bytes | Path,
    cwd: Path | None = None,
    code: int | None = 0,
    env: Mapping[str, str] | None = None,
) -> Ran:
    """Run `rollout` to its end, which must have this exit code (None: any)."""
    with running([one if isinstance(one, bytes) else str(one) for one in words], cwd=cwd, env=env) as run:
        ran = run.end()
    assert code is None or code == ran.code, ran.said
    return ran


def called(
    *words: str | bytes | Path,
    cwd: Path | None = None,
    code: int | None = 0,
    env: Mapping[str, str] | None = None,
) -> Ran:
    """Do the same inside this process, which is a second faster: for what does not end it, or change its modules."""
    from rollout_cli.cli.app import run

    stdout, stderr = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True) for _ in range(2)
    )
    with (
        patch.dict(os.environ, env or {}),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # A process of its own would show them, and not fail.
        ended = run([os.fsdecode(word) for word in words])
    for stream in (stdout, stderr):
        stream.seek(0)
    ran = Ran(ended, stdout.read(), stderr.read())
    assert code is None or code == ran.code, ran.said
    return ran


def executed(program: str, folder: Path, *words: str) -> None:
    """Execute a program in a folder, inside this process: others take seconds to load torch."""
    with (
        contextlib.chdir(folder),
        patch.object(sys, "argv", ["program", *words]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        exec(dedent(program), {"__name__": "program"})


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that bear a mark."""
    found = []
    for candidate in psutil.process_iter():
        try:
            if candidate.environ().get(MARK) == mark and candidate.status() != psutil.STATUS_ZOMBIE:
                found.append(candidate)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def outlive(mark: str, seconds: float) -> list[psutil.Process]:
    """Return the processes of a run that still live after so long; none as soon as there is none."""
    deadline = time.monotonic() + seconds
    while left := marked(mark):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)
    return []


def is_worker(process: psutil.Process) -> bool:
    """Return whether a process bears a worker's title."""
    try:
        return re.match(r"(rollout-)?worker\W", " ".join(process.cmdline())) is not None
    except psutil.NoSuchProcess:  # It ended while we looked.
        return False
