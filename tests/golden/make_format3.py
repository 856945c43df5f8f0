"""The dataset of format 3 that must stay readable, and the hashes of its values.

It is made once. Only when the format changes on purpose, make it again:

    python -m tests.golden.make_format3
"""

from __future__ import annotations

import json
from pathlib import Path

from rollout_cli import load
from rollout_cli.cli.app import run
from tests.golden.values import value_hashes

FORMAT3 = Path(__file__).with_name("format3")
EPISODES = 48
COMMAND = ("collect", "--env", "CartPole-v1", "--seed", "7", "--workers", "1", "--output")


def main() -> None:
    """Write both."""
    run([*COMMAND, str(FORMAT3), "--episodes", str(EPISODES), "--overwrite"])
    hashes = value_hashes(load(FORMAT3).to_episode_batch())
    FORMAT3.with_suffix(".json").write_text(json.dumps(hashes, indent=2) + "\n")


if __name__ == "__main__":
    main()
