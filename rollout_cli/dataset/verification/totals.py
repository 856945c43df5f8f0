"""The totals of info.json against what the files hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollout_cli.dataset.layout import info_path
from rollout_cli.dataset.verification.claims import TOTALS, Claims
from rollout_cli.dataset.verification.report import Findings


@dataclass(slots=True)
class Counts:
    """What the files hold.

    Attributes:
        episodes: Episodes that the episodes files state.
        steps: Their steps.
        bytes: Bytes of both files of each shard.
        shards: Data files with an episodes file.
        surplus: Rows of data files that no episodes file states.
        is_whole: Whether every episodes file could be read.
    """

    episodes: int = 0
    steps: int = 0
    bytes: int = 0
    shards: int = 0
    surplus: int = 0
    is_whole: bool = True


def check_totals(root: Path, claims: Claims, counts: Counts, findings: Findings) -> None:
    """Check the totals, unless a file could not be read, which has been told.

    Unless a dataset is complete, info.json may be behind the files, never ahead of them: a run may be killed, or the
    disk fail, between the one and the other.
    """
    if not counts.is_whole:
        return
    for name in TOTALS:
        stated, held = claims.info[name], getattr(counts, name)
        if stated == held:
            continue
        told = f"it says {stated:,} {name}, and the files hold {held:,}"
        if claims.status != "complete" and (stated < held or name == "bytes"):
            findings.note(f"meta/info.json: {told}")
        else:
            findings.fault(info_path(root), told)
