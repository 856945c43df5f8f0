"""A script without a `__main__` guard, which workers import: one clear error, and no process is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.processes import Ran, running
from tests.helpers.projects import write_module
from tests.helpers.thorough import usually

POLICY = """
import gymnasium
import rollout_cli

class Left:
    def get_action(self, observation):
        return 0, {}

def env():
    return gymnasium.make("CartPole-v1")

"""
COLLECT = (
    "rollout_cli.collect(rollout_cli.CollectConfig(%s, episodes=2, workers=2, output='out', sampler='%s'))"
)
SAMPLE = "rollout_cli.%s(%s, seed=0, n_workers=2%s).obtain_samples(0, 10, None)"
NAMED = {
    "collect": COLLECT % ("policy='script:Left'", "multiprocessing"),
    "collect, local": COLLECT % ("policy='script:Left'", "local"),
    "collect, environment": COLLECT % ("env='script:env'", "multiprocessing"),
    "processes": SAMPLE % ("MultiprocessingSampler", "'script:Left', env", ""),
    "processes, spawn": SAMPLE % ("MultiprocessingSampler", "'script:Left', env", ", start_method='spawn'"),
    "local": SAMPLE % ("LocalSampler", "'script:Left', env", ""),
}
"""Calls whose workers import the script, since a SPEC names it."""
OBJECTS = {
    "forkserver": SAMPLE % ("MultiprocessingSampler", "Left(), env", ""),
    "spawn": SAMPLE % ("MultiprocessingSampler", "Left(), env", ", start_method='spawn'"),
    "local": SAMPLE % ("LocalSampler", "Left(), env", ""),
}
"""Calls whose workers get objects of the script, which are pickled by value."""


def ran(folder: Path, call: str) -> Ran:
    """Run a script that ends in this call, without a guard."""
    write_module(folder, "script", POLICY + call)
    with running(["script.py"], program=[sys.executable], cwd=folder) as run:
        return run.end()


@pytest.mark.parametrize("call", usually(NAMED, "collect".__eq__))
def test_a_script_that_its_workers_import_needs_a_guard(call: str, tmp_path: Path) -> None:
    """The error names the line and the guard; the same call under the guard runs."""
    without = ran(tmp_path, NAMED[call])
    assert (1, ()) == (without.code, without.left), without.said
    assert "rollout_cli.errors.UserCodeError: " in without.stderr  # Python's own traceback has no code.
    assert all(part in without.stderr for part in ("script.py, line 12", "`if __name__ == '__main__':`"))
    assert not (tmp_path / "out").exists()
    guarded = ran(tmp_path, f"if __name__ == '__main__':\n    {NAMED[call]}")
    assert (0, ()) == (guarded.code, guarded.left), guarded.said


@pytest.mark.parametrize("call", OBJECTS)
def test_a_script_that_passes_objects_needs_no_guard(call: str, tmp_path: Path) -> None:
    """With every start method: workers do not import the script."""
    unguarded = ran(tmp_path, OBJECTS[call])
    assert (0, ()) == (unguarded.code, unguarded.left), unguarded.said
