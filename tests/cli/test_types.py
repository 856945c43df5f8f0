"""The package's types, as a user's type checker sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import variables

PROGRAM = """
import rollout_cli

dataset = rollout_cli.load("data")
reveal_type(dataset)
reveal_type(dataset[0].rewards)
reveal_type(rollout_cli.collect(rollout_cli.CollectConfig(timesteps=1)))
"""


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_users_mypy_sees_the_types(tmp_path: Path) -> None:
    """The package is installed with `py.typed`, so that its types are not Any in a strict check of the user's code."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "program.py"]
    ran = subprocess.run(words, cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    dataset, rewards, result = (line for line in ran.stdout.splitlines() if "Revealed type" in line)
    assert 'is "rollout_cli.dataset.reader.Dataset"' in dataset
    assert 'is "numpy.ndarray[' in rewards
    assert 'is "rollout_cli.run.tally.CollectResult"' in result
