"""The versions of the packages that make a dataset, and the git commit of the working folder."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from functools import cache

from rollout_cli._version import __version__
from rollout_cli.keywords import Record

_PACKAGES = ("gymnasium", "numpy", "pyarrow", "cloudpickle")
"""Packages that every run imports, in the parent or in its workers."""
_GIT_SECONDS = 5


def surroundings() -> Record:
    """Return the `versions` and `git` facts of the machine and working folder; this takes a while.

    `versions` has Python, the platform, this package and the packages that every run uses. `git` has the
    commit of the working folder and whether it is dirty, or is None outside a repository.
    """
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "rollout-collect": __version__,
        **{name: version(name) for name in _PACKAGES},
    }
    commit = _git("rev-parse", "HEAD")
    git = None
    if commit:
        changes = _git("status", "--porcelain", "--untracked-files=no")
        git = {"commit": commit, "dirty": None if changes is None else bool(changes)}
    distributions()  # Fill the cache for `run_record`.
    return {"versions": versions, "git": git}


# Cached, because they read files of all installed distributions.
distributions = cache(importlib.metadata.packages_distributions)
version = cache(importlib.metadata.version)


def _git(*arguments: str) -> str | None:
    try:
        ran = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # For example, git is not installed.
    return ran.stdout.decode(errors="replace").strip() if ran.returncode == 0 else None
