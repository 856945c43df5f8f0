"""What a dataset's info.json records of the run that made it, beside what the writer knows itself."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from rollout_cli.config import CollectConfig, recorded_options
from rollout_cli.envs import EnvSource
from rollout_cli.policies import PolicySource
from rollout_cli.redaction import command_line_without_secrets, without_secrets
from rollout_cli.reproducing import unchecked

_PACKAGES = ("rollout-cli", "gymnasium", "numpy", "pyarrow", "cloudpickle")
_GIT_SECONDS = 5


def surroundings() -> dict[str, Any]:
    """Return what a run is made with: `versions` and `git`. It takes a while, and needs nothing of the run."""
    return {"versions": versions(), "git": _git_commit()}


def dataset_header(
    config: CollectConfig,
    facts: dict[str, Any],
    policy: PolicySource,
    env: EnvSource,
    surrounding: dict[str, Any],
    *,
    argv: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the header of the dataset that `config` makes, with what looks like a secret cut out of it.

    `redacted` lists the paths of what was cut, so that who reads the rest knows that it is not what was given.

    Args:
        config: The run's configuration.
        facts: What a worker told of its policy and environment.
        policy: Where the policy comes from.
        env: Where the environment comes from.
        surrounding: What `surroundings` told.
        argv: The words of the command line after the program's name; None for a call from Python.
    """
    source = env.describe()
    header = {
        # This part goes into every shard too, so it holds nothing that depends on where the run took place.
        "env": {**facts.get("env", {}), "kwargs": source["kwargs"], "sha256": source["sha256"]},
        "env_source": {"spec": source["spec"], "path": source["path"]},
        "policy": {**policy.describe(), "class": facts.get("policy_class")},
        "collector": recorded_options(config),
        "reproducible": unchecked(config, facts, "the check comes when all episodes are there"),
        **surrounding,
    }
    cut, redacted = without_secrets(header)
    words, redacted_words = _command_line(argv)
    cut["collector"]["argv"] = words
    return {**cut, "redacted": redacted + redacted_words}


def _command_line(argv: Sequence[str] | None) -> tuple[list[str] | None, list[str]]:
    """Return the words as they are recorded, and the paths of those that were cut."""
    if argv is None:
        return None, []
    words = command_line_without_secrets(argv)
    return words, [f"collector.argv[{index}]" for index, word in enumerate(words) if word != argv[index]]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that episodes and files depend on, and the platform."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages}


def _git_commit() -> str | None:
    """Return the commit that the working folder is at; None outside a repository, or without git."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        found = subprocess.run(  # noqa: S603  The words are ours.
            [git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
