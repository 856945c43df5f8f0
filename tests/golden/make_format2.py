"""The dataset of format 2 that must stay readable, and the hashes of its values.

It is made once. Only when the format changes on purpose, make it again:

    python -m tests.golden.make_format2
"""

from __future__ import annotations

import json
from pathlib import Path

from rollout_cli import load
from rollout_cli.cli.app import run
from tests.golden.values import value_hashes

FORMAT2 = Path(__file__).with_name("format2")
EPISODES = 48
COMMAND = ("collect", "--env", "CartPole-v1", "--seed", "7", "--workers", "1", "--output")


def main() -> None:
    """Write both."""
    run([*COMMAND, str(FORMAT2), "--episodes", str(EPISODES), "--overwrite"])
    hashes = value_hashes(load(FORMAT2).to_episode_batch())
    FORMAT2.with_suffix(".json").write_text(json.dumps(hashes, indent=2) + "\n")


if __name__ == "__main__":
    main()
