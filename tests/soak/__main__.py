"""`python -m tests.soak`: the long tests, with full counts; `--tenth` for a tenth of them."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.soak.cycles import run_cycles
from tests.soak.disk import fail_everywhere
from tests.soak.kills import kill_parents, kill_workers
from tests.soak.runs import SETTINGS, Setting, refer

_KILLS = 200
_CYCLES = 1_000


def main() -> int:
    """Run everything; return 0 where all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--tenth", action="store_true", help="a tenth of everything")
    parser.add_argument("--seed", type=int, default=0, help="decides who is killed when (default: 0)")
    given = parser.parse_args()
    share = 10 if given.tenth else 1
    print(f"{_CYCLES // share} samplers started and stopped: {run_cycles(_CYCLES // share)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rollout-soak-") as work:
        failures = fail_everywhere(Path(work) / "disk", every=share)
        print(
            f"the disk failed in {failures.runs} runs: {failures.told} said so, {failures.kept} had episodes",
            flush=True,
        )
        # Two at a time: a run that starts, is waited for or compared leaves most of the machine idle.
        with ThreadPoolExecutor(2) as threads:
            told = [
                threads.submit(
                    kill_all, setting, Path(work) / str(at), _KILLS // share // len(SETTINGS), f"{given.seed} {at}"
                )
                for at, setting in enumerate(SETTINGS)
            ]
            for text in as_completed(told):
                print(text.result(), flush=True)
    print("nothing was lost")
    return 0


def kill_all(setting: Setting, folder: Path, count: int, seed: str) -> str:
    """Kill workers and parents of runs of one setting, `count` of each; return how it went."""
    began = time.monotonic()
    folder.mkdir()
    reference = refer(setting, folder)
    workers = kill_workers(setting, reference, folder, count, random.Random(f"workers {seed}"))
    parents = kill_parents(setting, reference, folder, count, random.Random(f"parents {seed}"))
    parents.check()
    return (
        f"{setting.name}: {len(reference.data)} data files, {reference.changes} changes on disk\n"
        f"  {workers.kills} workers killed, {workers.after_commit} of them after a commit\n"
        f"  {parents.kills} parents killed, {parents.after_commit} of them after a commit, "
        f"{parents.in_commit} inside one; {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
