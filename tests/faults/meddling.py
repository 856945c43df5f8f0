"""What is done to a run from outside, and to its folder before it."""

from __future__ import annotations

import fcntl
import pickle
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.support.datasets import has_commit
from tests.support.marked import ROLLOUT, workers_below

WAIT_SECONDS = 30

_ROOM_BYTES = 20_000
"""Less than a data file of the runs that meet it, and more than their other files."""


def wait_for(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    """Return once the condition holds; the run must live until then."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline or running.poll() is not None:
            stdout, stderr = running.communicate(timeout=10)
            raise AssertionError(f"the moment did not come: {stdout}{stderr}")
        time.sleep(0.01)


def is_collecting(folder: Path) -> bool:
    """Return whether the dataset is begun, which it is when the first worker has its environment."""
    return (folder / "out" / "meta" / "info.json").exists()


def has_files(folder: Path) -> bool:
    """Return whether anything is committed."""
    return has_commit(folder / "out")


def workers(running: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the worker processes of a run."""
    return workers_below(psutil.Process(running.pid))


def interrupt(running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: has_files(folder), running)
    running.send_signal(signal.SIGINT)


def interrupt_and_terminate(running: subprocess.Popen[str], folder: Path) -> None:
    """Send two signals at once; of one signal that comes twice, the second may be lost while the first waits."""
    wait_for(lambda: has_files(folder), running)
    stopped = workers(running)
    for worker in stopped:
        worker.suspend()  # So that the first signal alone cannot end the run.
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGTERM)
    for worker in stopped:
        worker.resume()


def terminate(running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: has_files(folder), running)
    running.terminate()


def kill_parent(running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: has_files(folder), running)
    running.kill()


def kill_worker(running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: is_collecting(folder) and bool(workers(running)), running)
    workers(running)[0].kill()


def stop_and_continue(running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: is_collecting(folder), running)
    running.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    running.send_signal(signal.SIGCONT)


def stop_worker(running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: is_collecting(folder) and bool(workers(running)), running)
    worker = workers(running)[0]
    worker.suspend()
    time.sleep(0.5)
    worker.resume()


def close_stdout(running: subprocess.Popen[str], folder: Path) -> None:
    """Close the reading end of its stdout, as a pager does that was left."""
    del folder
    assert running.stdout is not None
    running.stdout.close()
    running.stdout = None


def little_room(running: subprocess.Popen[str], folder: Path) -> None:
    """Let no file of the run grow beyond a few kilobytes, which fails as a full disk does."""
    wait_for(lambda: is_collecting(folder), running)
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (_ROOM_BYTES, _ROOM_BYTES))


def remove_output(running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: has_files(folder), running)
    shutil.rmtree(folder / "out", ignore_errors=True)


def foreign_folder(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").write_text("irreplaceable")


def truncated_pickle(folder: Path) -> None:
    (folder / "half.pkl").write_bytes(pickle.dumps(list(range(100)))[:50])


_HELD: list[object] = []
"""Locks that are held until this process ends."""


def locked(folder: Path) -> None:
    """Make a dataset whose lock somebody holds."""
    words = [ROLLOUT, "collect", "--episodes", "2", "--workers", "1", "--quiet", "--output", str(folder / "out")]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    lock = (folder / "out" / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    _HELD.append(lock)
