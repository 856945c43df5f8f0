"""Three fixed runs, and the hashes of their values.

When seeds or records change on purpose, take the hashes again:

    python -m tests.golden.runs
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli import CollectConfig, collect, load
from tests.golden.values import value_hashes

HASHES = Path(__file__).with_name("runs.json")


class DrawingPolicy:
    """A policy with a generator of its own, and an info."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        drawn = float(self._rng.random())
        return int(drawn < 0.6), {"drawn": drawn}


RUNS: dict[str, dict[str, Any]] = {
    "random": {"env": "CartPole-v1", "episodes": 12},
    "generator": {"env": "CartPole-v1", "policy": "tests.golden.runs:DrawingPolicy", "timesteps": 200},
    "vector": {"env": "CartPole-v1", "envs_per_worker": 4, "episodes": 12},
}


def run_hashes(name: str, folder: Path) -> dict[str, str]:
    """Return the hashes of the values of one run, made in `folder`."""
    collect(CollectConfig(**RUNS[name], seed=7, workers=1, sampler="local", output=folder / name))
    return value_hashes(load(folder / name).to_episode_batch())


def main() -> None:
    """Write the hashes of all runs."""
    with tempfile.TemporaryDirectory() as folder:
        hashes = {name: run_hashes(name, Path(folder)) for name in RUNS}
    HASHES.write_text(json.dumps(hashes, indent=2) + "\n")


if __name__ == "__main__":
    main()
