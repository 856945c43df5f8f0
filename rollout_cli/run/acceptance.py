"""Acceptance: how many of the episodes that a run ran `keep` has kept, as info.json records it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollout_cli.errors import UsageError


def acceptance_of(next_number: int, kept: int, skipped: Iterable[int]) -> dict[str, Any]:
    """Return what became of the episodes below `next_number`, without those `skipped`, which did not end."""
    n_run = next_number - sum(number < next_number for number in skipped)
    rate = kept / n_run if n_run else 0.0
    return {"next_number": next_number, "run": n_run, "kept": kept, "rejected": n_run - kept, "rate": rate}


def nothing_kept(keep: str, n_run: int, *, is_cut: bool) -> UsageError:
    """Return the error of a run that kept no episode; where it `is_cut`, time has ended it."""
    option = "--max-time" if is_cut else "--keep-cap"
    return UsageError(
        f"none of {n_run:,} episodes was kept by --keep {keep!r}, and {option} allows no more",
        hint="collect some episodes without {keep}, and look at them: rollout info",
    )
