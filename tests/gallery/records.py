"""What the record of a policy's files is good for: one check for files of any library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.processes import called, rollout


def check_record(words: tuple[str | Path, ...], folder: Path, change: Callable[[], object]) -> None:
    """Check that a command gives the same bytes with one and three workers, resumed, and replayed elsewhere.

    Args:
        words: `collect` with its policy, environment and seed, and no amount.
        folder: An empty folder.
        change: Changes the policy's files; then they are refused.
    """
    rollout(*words, "--quiet", "--episodes", "6", "--workers", "3", "--output", folder / "three")
    verdict = source_of(folder / "three")["reproducible"]
    assert "yes" == verdict["status"], verdict
    local = ("--quiet", "--sampler", "local", "--episodes")
    called(*words, *local, "6", "--output", folder / "one")
    digest = source_of(folder / "one")["policy"]["sha256"]
    called(*words, *local, "4", "--output", folder / "resumed")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    resume = ("collect", "--resume", *local, "6", "--output", folder / "resumed")
    called(*resume, cwd=elsewhere)
    for name in ("one", "resumed"):
        assert_same_data(folder / "three", folder / name)
    ran = called("replay", "--trust", folder / "three", "--episodes", "0:2", "--json", cwd=elsewhere)
    assert 2 == json.loads(ran.stdout)["identical"]
    change()
    assert "[policy-hash]" in called("replay", "--trust", folder / "three", "--all", code=3).stderr
    ran = called(*words, *local, "4", "--policy-sha256", digest, "--output", folder / "other", code=3)
    assert all(part in ran.stderr for part in (digest, "[policy-hash]"))
    assert "[resume-differs]" in called(*resume[:-3], "8", *resume[-2:], code=2).stderr
