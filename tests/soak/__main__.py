"""`python -m tests.soak`: the long tests, with full counts; `--tenth` for a tenth of them."""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from tests.helpers.processes import ROOT
from tests.soak.cycles import run_cycles
from tests.soak.disk import fail_everywhere, kill_edits, kill_everywhere
from tests.soak.exports import kill_exports
from tests.soak.kills import SETTINGS, kill_all
from tests.soak.recorders import kill_recorders

KILLS, EXPORT_KILLS, CYCLES, EXAMPLES = 200, 120, 1_000, 2_000
PROPERTIES = ["tests/sampling/test_machines.py"]
"""The property tests that get new examples."""


def main() -> int:
    """Run everything; return 0 where all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--tenth", action="store_true", help="a tenth of everything")
    parser.add_argument(
        "--seed", type=int, help="decides who is killed when, and the examples (default: drawn)"
    )
    given = parser.parse_args()
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    share = 10 if given.tenth else 1
    with tempfile.TemporaryDirectory(prefix="rollout-soak-") as work, ThreadPoolExecutor(2) as threads:
        # Two at a time: a run that starts, is waited for or compared leaves most of the machine idle.
        running = [threads.submit(part) for part in _parts(Path(work), share, seed)]
        for done in as_completed(running):
            if error := done.exception():  # The other parts go on.
                traceback.print_exception(error)
            else:
                print(done.result(), flush=True)
    if any(done.exception() for done in running):
        return 1
    print("nothing was lost")
    return 0


def _parts(work: Path, share: int, seed: int) -> Iterator[Callable[[], str]]:
    for at, setting in enumerate(SETTINGS):
        count, rng = KILLS // share // len(SETTINGS), random.Random(f"{seed} {at}")
        yield partial(kill_all, setting, work / str(at), count, rng)
    yield partial(apart, f"cycles({CYCLES // share})")
    yield partial(apart, f"disk({share})")
    yield partial(apart, f"overwrites({share})")
    yield partial(apart, f"edits({3 * share})")
    yield partial(apart, f"exports({EXPORT_KILLS // share}, {seed})")
    yield partial(kill_recorders, work / "recorders", KILLS // share, random.Random(f"{seed} recorders"))
    yield partial(properties, EXAMPLES // share, seed)


def apart(call: str) -> str:
    """Run a part in a process of its own: it looks at its process, patches it, or redirects its streams."""
    return _run([sys.executable, "-c", f"from tests.soak.__main__ import *; {call}"])


def cycles(count: int) -> None:
    """Start and stop samplers."""
    print(f"{count} samplers started and stopped: {run_cycles(count)}")


def disk(every: int) -> None:
    """Let the disk fail."""
    _in_folder(partial(fail_everywhere, every=every))


def overwrites(every: int) -> None:
    """Kill `repair` and `collect --overwrite`."""
    _in_folder(partial(kill_everywhere, every=every))


def edits(every: int) -> None:
    """Kill what edits datasets."""
    _in_folder(partial(kill_edits, every=every))


def exports(count: int, seed: int) -> None:
    """Kill exports."""
    _in_folder(partial(kill_exports, count=count, rng=random.Random(f"{seed} exports")))


def _in_folder(part: Callable[[Path], str]) -> None:
    with tempfile.TemporaryDirectory(prefix="rollout-soak-") as work:
        print(part(Path(work) / "work"))


def properties(examples: int, seed: int) -> str:
    """Run the property tests with examples that no run had before."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        f"--hypothesis-seed={seed}",
    ]
    variables = {"ROLLOUT_TEST_PROFILE": "nightly", "ROLLOUT_TEST_EXAMPLES": str(examples)}
    return _run([*words, "--timeout", "0", *PROPERTIES], **variables).splitlines()[-1]


def _run(words: list[str], **variables: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"{words} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
