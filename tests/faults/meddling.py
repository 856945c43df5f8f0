"""What is done to a run from outside, before it and while it runs."""

from __future__ import annotations

import fcntl
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.helpers.datasets import has_commit, info_of
from tests.helpers.processes import SECONDS, Running, called
from tests.helpers.processes import variables as command_variables

Meddle = Callable[[Running, Path], None]


def begun(folder: Path) -> bool:
    """Return whether the dataset is begun, which it is when the first worker has its environment."""
    return bool(info_of(folder / "out"))


def committed(folder: Path) -> bool:
    """Return whether anything is committed."""
    return has_commit(folder / "out")


# -- while it runs -----------------------------------------------------------------------------------------------------


def after_commit(act: Callable[[Running, Path], object]) -> Meddle:
    """Do something once episodes are committed, and those of the first steps are not written anew any more."""

    def meddle(run: Running, folder: Path) -> None:
        run.wait_until(lambda: committed(folder) and info_of(folder / "out").get("info_columns") == "decided")
        act(run, folder)

    return meddle


def send(number: signal.Signals) -> Meddle:
    """Send a signal to the parent alone once episodes are committed."""
    return after_commit(lambda run, _: run.process.send_signal(number))


def send_to_group(number: signal.Signals) -> Meddle:
    """Send a signal to all processes of the run, as timeout(1) and a closed terminal do."""
    return after_commit(lambda run, _: os.killpg(run.process.pid, number))


def interrupt_and_terminate(run: Running, folder: Path) -> None:
    """Send a signal, and another one when the first is answered: of two at once, either may come first."""
    run.wait_until(lambda: committed(folder) and bool(run.workers()))
    stopped = run.workers()
    for worker in stopped:
        worker.suspend()  # So that the first signal alone cannot end the run.
    run.process.send_signal(signal.SIGINT)
    run.wait_to_say("SIGINT: stopping the run")
    run.process.send_signal(signal.SIGTERM)
    for worker in stopped:
        worker.resume()


def all_met(run: Running, folder: Path) -> None:
    """Return once both workers have begun an episode; in rows with `MEETING` they wait there for a third."""
    run.wait_until(lambda: len(list((folder / "signs").glob("met-*"))) == 2)


def kill_worker(run: Running, folder: Path) -> None:
    """Kill one of two workers in its first episode; the one that replaces it is the third that they wait for."""
    all_met(run, folder)
    run.workers()[0].kill()


def stop_and_continue(run: Running, folder: Path) -> None:
    """Stop the parent while its workers run episodes, and let it go on."""
    all_met(run, folder)
    run.process.send_signal(signal.SIGSTOP)
    (folder / "signs" / "met-other").touch()
    time.sleep(0.3)
    run.process.send_signal(signal.SIGCONT)


def stop_worker(run: Running, folder: Path) -> None:
    """Stop one of two workers while the other runs episodes, and let it go on."""
    all_met(run, folder)
    worker = run.workers()[0]
    worker.suspend()
    (folder / "signs" / "met-other").touch()
    time.sleep(0.3)
    worker.resume()


def close_stdout(run: Running, folder: Path) -> None:
    """Close the reading end of its stdout, as a pager does that was left."""
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.process.stdout = None


def little_room(run: Running, folder: Path) -> None:
    """Let no file of the run grow beyond a few kilobytes, which fails as a full disk does."""
    run.wait_until(lambda: begun(folder))
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))


def remove_output(run: Running, folder: Path) -> None:
    # At once, so that the run never sees a part of it; a commit that happens now may make a folder again.
    while (folder / "out").exists():
        (folder / "out").rename(folder / "removed")
        while (folder / "removed").exists():  # The run tidies up in it, too.
            shutil.rmtree(folder / "removed", ignore_errors=True)


def rename_output(run: Running, folder: Path) -> None:
    (folder / "out").rename(folder / "elsewhere")


def remove_data(run: Running, folder: Path) -> None:
    while (folder / "out" / "data").exists():
        shutil.rmtree(folder / "out" / "data", ignore_errors=True)


def hang_up(run: Running, folder: Path) -> None:
    """Close the terminal when many episodes have run, and none needs to be on the disk yet."""
    run.wait_until((folder / "signs" / "info late-299").exists)
    os.killpg(run.process.pid, signal.SIGHUP)


def terminate_unread(run: Running, folder: Path) -> None:
    """Ask a run to end whose stderr is full and read by nobody."""
    run.wait_until(lambda: any((folder / "signs").iterdir()))
    run.process.terminate()
    run.process.wait(timeout=SECONDS)


def interrupt_blocked(run: Running, folder: Path) -> None:
    """Send Ctrl-C while a step blocks; when something is said, send it again."""
    run.wait_until(lambda: any((folder / "signs").iterdir()))
    run.process.send_signal(signal.SIGINT)
    run.wait_to_say("SIGINT|Ctrl-C|interrupt")
    run.process.send_signal(signal.SIGINT)


def interrupt_begun(run: Running, folder: Path) -> None:
    """Send Ctrl-C once the dataset is begun, and before its columns can be decided."""
    run.wait_until(lambda: begun(folder))
    run.process.send_signal(signal.SIGINT)


def interrupt_closing(run: Running, folder: Path) -> None:
    """Send Ctrl-C each time the run says that it waits for an environment to close: its own, and that of the check."""
    for _ in range(2):
        run.wait_to_say(r"close\(\)")
        run.process.send_signal(signal.SIGINT)


def change_module(run: Running, folder: Path) -> None:
    """Edit the environment's module, and kill a worker, so that the next one loads it as it is now."""
    all_met(run, folder)
    path = folder / "mine.py"
    path.write_text(path.read_text().replace("GAIN = 1.0", "GAIN = 2.0"))
    kill_worker(run, folder)


# -- before it ---------------------------------------------------------------------------------------------------------


def foreign_folder(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").write_text("irreplaceable")


def truncated_pickle(folder: Path) -> None:
    (folder / "half.pkl").write_bytes(pickle.dumps(list(range(100)))[:50])


def deep_json(folder: Path) -> None:
    (folder / "deep.json").write_text("[" * 100_000)


def own_module(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from tests.helpers.envs import FaultyEnv\n\nGAIN = 1.0\n\n\nclass Mine(FaultyEnv):\n"
        "    def step(self, action):\n        seen, reward, *rest = super().step(action)\n"
        "        return seen, GAIN * reward, *rest\n"
    )


_HELD: list[object] = []
"""Locks that are held until this process ends."""


def locked(folder: Path) -> None:
    """Make a dataset whose lock somebody holds."""
    called(
        "collect",
        "--episodes",
        "2",
        "--workers",
        "1",
        "--sampler",
        "local",
        "--quiet",
        "--output",
        folder / "out",
    )
    lock = (folder / "out" / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    _HELD.append(lock)


SHADOWS = ("random", "types", "queue", "select", "logging", "signal", "numpy", "gymnasium", "pyarrow")


def shadows(folder: Path) -> None:
    """Put modules into the working folder that bear the names of others, and leave a sign when they are imported."""
    for name in SHADOWS:
        sign = str(folder / "shadowed")
        (folder / f"{name}.py").write_text(
            f"open({sign!r}, 'a').write({name!r})\nraise ImportError('not this one')\n"
        )


def no_shadow_was_imported(folder: Path) -> None:
    assert not (folder / "shadowed").exists(), (folder / "shadowed").read_text()
    subprocess.run(
        [sys.executable, "-c", "import random"], cwd=folder, capture_output=True, check=False, timeout=SECONDS
    )
    assert (folder / "shadowed").exists(), "these modules would not have been found anyway"


def limit(what: int, amount: int) -> Callable[[], None]:
    """Return what gives the run's process, and all below it, a limit."""
    return lambda: resource.setrlimit(what, (amount, amount))


def block_sigchld() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])


def lose_working_folder() -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()


def long_tmpdir(folder: Path) -> Mapping[str, str]:
    path = folder / ("t" * 100)
    path.mkdir()
    return {"TMPDIR": str(path)}


LITTLE_MEMORY = """
import resource, sys

def refuse(event, values):
    if event == "import" and values[0] == "pyarrow.lib":
        pages = int(open("/proc/self/statm").read().split()[0])
        bytes_allowed = pages * resource.getpagesize() + (16 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (bytes_allowed, bytes_allowed))

sys.addaudithook(refuse)
"""
"""Run as each Python process starts: Arrow's libraries do not fit in what memory is left when they are loaded.

A limit for the whole run would meet another library on each machine: what NumPy takes depends on the processors,
and the OpenBLAS in it waits for ever where a limit meets that.
"""


def little_memory(folder: Path) -> Mapping[str, str]:
    (folder / "little").mkdir()
    (folder / "little" / "sitecustomize.py").write_text(LITTLE_MEMORY)
    return {"PYTHONPATH": os.pathsep.join([str(folder / "little"), command_variables()["PYTHONPATH"]])}


# -- after it ----------------------------------------------------------------------------------------------------------


def all_commands_work(folder: Path) -> None:
    """Every command reads the dataset, whatever its name is; what is stored comes out again."""
    output = "out"
    for words in (["info"], ["verify"], ["repair"], ["replay", "--trust", "--all"]):
        called(words[0], output, *words[1:], cwd=folder)
    called("collect", "--resume", "--output", output, cwd=folder)


def slices_are_right(folder: Path) -> None:
    """The Python reader gives of each episode what a reader of the file as a whole sees."""
    code = (
        "import numpy as np, rollout_cli\n"
        "d = rollout_cli.load('out'); whole = d.to_episode_batch()\n"
        "ends = np.cumsum(whole.lengths); expected = whole.next_observations[ends - 1]\n"
        "assert all(np.array_equal(d[i].last_observation, expected[i]) for i in range(len(d)))\n"
        "part = d[2:7].to_episode_batch().next_observations\n"
        "assert np.array_equal(part, whole.next_observations[ends[1]:ends[6]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert 0 == done.returncode, done.stderr


def dropped_are_counted_once(folder: Path) -> None:
    """Only infos of episodes that were kept count."""
    info = info_of(folder / "out")
    assert {"env_info.steps": info["steps"]} == info["dropped_infos"]


def nothing_is_begun_again(folder: Path) -> None:
    """No folder claims episodes that are not in it."""
    assert not info_of(folder / "out").get("episodes"), (
        "a folder was made again, whose info.json claims episodes"
    )
