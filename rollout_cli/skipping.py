"""What a run tells of faults that it got over, and of the episodes that it left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rollout_cli.errors import RolloutError, UserCodeError
from rollout_cli.progress import Progress

_NOTE = (
    "these episodes are missing in the data: where what goes on in an episode decides whether it fails, those that are "
    "there are no fair sample"
)

_UNTOLD = "the run that left it out was killed before it could tell why"


def tell_fault(progress: Progress, text: str) -> None:
    """Tell of a fault that was got over, with the traceback that belongs to it."""
    for line in filter(None, text.splitlines()):
        progress.warn(line)
    progress.update(episodes=0, steps=0, return_sum=0.0, failures=1)


def told_of_skipped(skipped: Mapping[int, str]) -> dict[str, Any]:
    """Return what info.json has of episodes that were left out; nothing where there were none.

    Args:
        skipped: By number, why an episode was left out.
    """
    if not skipped:
        return {}
    episodes = [{"episode_number": number, "reason": reason} for number, reason in sorted(skipped.items())]
    return {"skipped": {"count": len(episodes), "note": _NOTE, "episodes": episodes}}


def skipped_before(info: Mapping[str, Any], missing: Iterable[int]) -> dict[int, str]:
    """Return, by number, why an earlier run left episodes out.

    Args:
        info: Its info.json, which lists them where the run came to its end.
        missing: The numbers that its files say are left out.
    """
    told = info.get("skipped", {}).get("episodes", [])
    known = {int(episode["episode_number"]): str(episode["reason"]) for episode in told}
    return dict.fromkeys(missing, _UNTOLD) | known


def nothing_but_skipped(skipped: Mapping[int, str], *, has_episodes: bool) -> RolloutError | None:
    """Return the error of a run that left out all of its episodes; None where one is there, or none was left out."""
    if has_episodes or not skipped:
        return None
    number = min(skipped)
    return UserCodeError(
        f"all episodes were skipped, {len(skipped):,} of them; episode {number}: {skipped[number]}",
        hint="without an option that skips them, the first error ends the run and is shown in full",
    )
