"""Imports point down the layers, as the contracts in pyproject.toml have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import ROOT, variables


def test_the_layers_hold() -> None:
    """import-linter finds no import that points up, and no heavy library where worker processes run."""
    program = Path(sys.executable).with_name("lint-imports")
    words = [str(program), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    ran = subprocess.run(words, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, ran.stdout + ran.stderr
