"""The product's command line, as the cases run it, and what this version of it offers."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

from benchmarks.sides import USUAL, Guess, Side
from benchmarks.usage import run

WORKERS = 2
"""Workers of every case that does not say otherwise; the bare loop gets as many processes."""


_BARE = Guess(start=0.4)


def executable() -> str:
    """Return the installed `rollout` of this interpreter."""
    return str(Path(sys.executable).with_name("rollout"))


def collect(
    *options: str, name: str = "rollout", granule: int = 1, workers: int = WORKERS, guess: Guess = USUAL
) -> Side:
    """Return a side that collects with these options: everything that a user gets, progress lines included."""

    def command(steps: int, output: Path) -> list[str]:
        amount = ["--timesteps", str(steps), "--output", str(output), "--workers", str(workers)]
        return [executable(), "collect", *amount, "--seed", "0", "--json", "--progress", *options]

    return Side(name, command, granule, guess)


def bare(env: str, policy: str, *, seeds: str, guess: Guess = _BARE) -> Side:
    """Return the bare loop; `seeds` is `plain` or `seeded`."""
    arguments = [env, policy, seeds, str(WORKERS)]

    def command(steps: int, _: object) -> list[str]:
        return [*module("bare"), *arguments, str(steps)]

    return Side(f"bare x{WORKERS}, {seeds}", command, WORKERS, guess)


def module(name: str) -> list[str]:
    """Return the command that runs a module of this package."""
    return [sys.executable, "-m", f"benchmarks.{name}"]


@functools.cache
def _help_page() -> str:
    return run([executable(), "collect", "--help"], environment={"COLUMNS": "200", "NO_COLOR": "1"}).output


def missing(options: tuple[str, ...] = (), modules: tuple[str, ...] = ()) -> str | None:
    """Return what this version of the product, or this environment, lacks of what a case needs; None if nothing."""
    lacking = [option for option in options if f"{option} " not in _help_page()]
    if lacking:
        return f"not supported by this version: rollout collect has no {', '.join(lacking)}"
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(absent)}, which is not installed here" if absent else None
