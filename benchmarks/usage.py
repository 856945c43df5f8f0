"""Runs one command and tells what it cost: wall time, CPU time and peak memory, of itself and of all that it started.

Figures are the kernel's own, from `wait4`, so nothing is sampled while the command runs. `rollout`'s workers are
children of a fork server that `rollout` itself never waits for; this process asks to inherit such orphans, and so is
told of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
"""Where commands run, so that `benchmarks` can be imported by all of them."""

ORPHAN_SECONDS = 10.0
"""How long what a command left behind may go on before it is killed."""

_LINES = 6
"""How many of the last lines tell why a command failed."""

_PR_SET_CHILD_SUBREAPER = 36
_ONE_THREAD_EACH = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class CommandError(Exception):
    """A timed command failed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run of a command cost.

    Attributes:
        wall: Seconds from its start to the end of its first process.
        cpu_main: CPU seconds, user and system, of its first process and the children that this waited for.
        cpu_others: CPU seconds of all other processes that it started.
        peak_main: Peak resident bytes of the first process (or of a child that it waited for, if that is more).
        peak_others: Peak resident bytes of the largest other process.
        output: What it wrote to stdout.
    """

    wall: float
    cpu_main: float
    cpu_others: float
    peak_main: int
    peak_others: int
    output: str


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 3600) -> Usage:
    """Run a command to its end, with one thread for linear algebra in every process.

    It waits for all children of this process, which must have none of its own beside the command.

    Raises:
        CommandError: If it cannot be started, fails, or takes longer than `timeout` seconds.
    """
    _inherit_orphans()
    variables = {**os.environ, **_ONE_THREAD_EACH, **(environment or {})}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=ROOT, env=variables
            )
        except OSError as error:
            raise CommandError(f"cannot start {command[0]}: {error}") from error
        with _killed_after(timeout, process.pid):
            _, status, main = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        others = _reap_orphans()
        if process.returncode != 0:
            raise CommandError(_failure(command, process.returncode, _text(errors), _text(output)))
        return Usage(
            wall=wall,
            cpu_main=_cpu(main),
            cpu_others=sum(map(_cpu, others)),
            peak_main=main.ru_maxrss * 1024,
            peak_others=max((other.ru_maxrss for other in others), default=0) * 1024,
            output=_text(output),
        )


def _cpu(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _failure(command: Sequence[str], code: int, errors: str, output: str) -> str:
    return "\n".join([f"exit code {code} of: {' '.join(command)}", *_reason(errors, output)])


def _reason(errors: str, output: str) -> list[str]:
    """Return what a failed command said: the product's error document, else the last lines."""
    try:
        return [str(json.loads(output)["error"]["message"])]
    except (ValueError, TypeError, KeyError):
        return [line.strip() for line in (errors.strip() or output.strip()).splitlines()[-_LINES:]]


def _inherit_orphans() -> None:
    if not hasattr(os, "wait4") or not Path("/proc/self/task").exists():
        raise CommandError("the processes of a run can only be followed to their end on Linux")
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise CommandError(f"this process cannot inherit orphans: {os.strerror(ctypes.get_errno())}")


def _reap_orphans() -> list[resource.struct_rusage]:
    """Wait for all that the command left behind; what does not end is killed."""
    reaped: list[resource.struct_rusage] = []
    deadline = time.perf_counter() + ORPHAN_SECONDS
    while True:
        try:
            pid, _, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid:
            reaped.append(used)
        elif time.perf_counter() < deadline:
            time.sleep(0.005)
        else:
            for child in _children():
                os.kill(child, signal.SIGKILL)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()]


class _killed_after:  # noqa: N801  It reads as what it does.
    """Kill a process that is still running after some seconds."""

    def __init__(self, seconds: float, pid: int) -> None:
        self._timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
