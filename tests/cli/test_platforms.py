"""Other operating systems: the package needs nothing that macOS or Windows lacks, as far as Linux can show it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.datasets import data_hashes
from tests.helpers.processes import ROOT, variables
from tests.helpers.thorough import usually


def in_lane(lane: str, *words: str, folder: Path, code: int = 0) -> str:
    """Run a command in a lane; return its stderr."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.helpers.lanes", lane, *words],
        cwd=folder,
        env={**variables(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert code == ran.returncode, ran.stdout + ran.stderr
    return ran.stderr


COMMANDS = (
    "collect --episodes 5 --seed 1 -o a",
    "info a",
    "head a --steps",
    "stats a",
    "list .",
    "plot a",
    "verify a",
    "repair a --dry-run",
    "report a -o a.html",
    "filter a -k length>3 -o b",
    "split a -p x=0.5,y=0.5 -o s",
    "merge s/x s/y -o m",
    "convert a --next-observation -o c",
    "export a --to hf -o e",
    "diff a a",
    "card a",
    "replay a --all --trust",
    "check --env CartPole-v1 -n 200 --seconds 1",
    "collect --policy-process --episodes 3 --seed 1 -o w",
    "collect --resume --episodes 7 -o a",
)


def test_windows(tmp_path: Path) -> None:
    """Every command that looks, edits or exports, and collecting in this process, with the same bytes."""
    in_lane("windows", *" --then ".join(COMMANDS).split(), folder=tmp_path)
    in_lane("macos", *["collect", "--episodes", "7", "--seed", "1", "-o", "whole"], folder=tmp_path)
    assert data_hashes(tmp_path / "whole") == data_hashes(tmp_path / "a")


def test_windows_has_no_worker_processes(tmp_path: Path) -> None:
    words = ["collect", "--sampler", "multiprocessing", "--episodes", "1", "-o", "a"]
    assert "[no-fork]" in in_lane("windows", *words, folder=tmp_path, code=2)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("method", usually(["forkserver", "spawn"], "forkserver".__eq__))
def test_macos_has_worker_processes(tmp_path: Path, method: str) -> None:
    """With either start method."""
    words = f"collect --episodes 6 --workers 2 --seed 1 --start-method {method} -o a --then verify a".split()
    in_lane("macos", *words, folder=tmp_path)
