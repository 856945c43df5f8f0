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


def test_a_run_does_not_load_pandas(tmp_path: Path) -> None:
    """Many conversions of pyarrow do, where it is installed; that takes longer than a short run."""
    code = (
        "import sys, rollout_cli as r\n"
        f"r.collect(r.CollectConfig(episodes=3, sampler='local', seed=0, output={str(tmp_path / 'out')!r}))\n"
        "assert 'pandas' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=variables(), capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, ran.stderr
