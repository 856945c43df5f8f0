"""Exports are killed at any time: the output is whole or absent, and the dataset is as it was."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from itertools import cycle, islice
from pathlib import Path

from tests.helpers.processes import called, command
from tests.helpers.writing import all_files

OUTPUTS = {
    "minari": "soak/pendulum-v0",
    "d3rlpy": "episodes.h5",
    "tianshou": "episodes.hdf5",
    "d4rl": "episodes.hdf5",
    "ogbench": "episodes.npz",
    "robomimic": "episodes.hdf5",
    "lerobot": "episodes",
    "rllib": "episodes",
    "imitation": "episodes",
    "torchrl": "episodes",
    "hf": "episodes",
    "zarr": "episodes.zarr",
}
"""What each format's output may be called."""


def kill_exports(folder: Path, count: int, rng: random.Random) -> str:
    """Kill `count` exports, the formats by turns, each at a time after it has begun to write; then export again."""
    source = folder / "source"
    called(
        "collect", "--env", "Pendulum-v1", "--episodes", "100", "--seed", "0", "--quiet", "--output", source
    )
    before = all_files(source)
    whole: dict[str, tuple[float, dict[str, int]]] = {}
    n_absent = 0
    for at, (name, output) in enumerate(islice(cycle(OUTPUTS.items()), count)):
        if name not in whole:
            place = folder / f"{name}-whole"
            seconds = _export(source, name, place / output, after=None)
            whole[name] = seconds, _sizes(place)
        seconds, sizes = whole[name]
        place = folder / f"{name}-{at}"
        _export(source, name, place / output, after=rng.uniform(0, seconds))
        what = f"{name}, killed export {at}"
        is_absent = not (place / output).exists()
        n_absent += is_absent
        if is_absent:
            called("export", source, "--to", name, "--output", place / output, "--quiet")
        else:  # It may have been killed after the output was moved, and before its folder was removed.
            part = (place / output).with_name(f".{Path(output).name}.part")
            assert _sizes(part) in ({}, {".lock": 0}), f"{what}: {_sizes(part)} is left in {part}"
            shutil.rmtree(part, ignore_errors=True)
        written = _sizes(place)
        assert sizes == written, f"{what}: {written} is there in place of {sizes}; absent before: {is_absent}"
        assert before == all_files(source), f"{what}: the dataset has changed"
        shutil.rmtree(place)
    return f"exports were killed {count} times: the output was absent {n_absent} times, and whole otherwise"


def _export(source: Path, name: str, output: Path, *, after: float | None) -> float:
    """Export in a process; kill it so many seconds after it has begun to write. Return how long it wrote."""
    words = ["export", source, "--to", name, "--output", output, "--quiet"]
    with subprocess.Popen(
        [*command(), *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _wait(process, output, is_writing=True)
        began = time.monotonic()
        if after is None:
            _wait(process, output, is_writing=False)
            seconds = time.monotonic() - began
            assert process.wait() == 0, f"{name} failed"
            return seconds
        time.sleep(after)
        process.kill()
    return after


def _wait(process: subprocess.Popen[bytes], output: Path, *, is_writing: bool) -> None:
    """Wait until there is the folder in which the output grows, or is not any more, or the process has ended."""
    while process.poll() is None and is_writing != any(output.parent.glob(".*.part")):
        time.sleep(0.002)


def _sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of all files below a folder, hidden ones too, by their paths in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
