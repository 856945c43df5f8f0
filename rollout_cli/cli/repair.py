"""`rollout repair`."""

from __future__ import annotations

from typing import Annotated

from rollout_cli.cli.options import Folder, JsonFlag, shown
from rollout_cli.cli.output import counted, show

_DryRunFlag = Annotated[bool, shown("--dry-run", text="Report what would be done, and do nothing.")]


def repair(
    folder: Folder,
    *,
    dry_run: _DryRunFlag = False,
    json: JsonFlag = False,
) -> None:
    """Keep the valid part of a dataset, and move the rest aside; nothing is deleted."""
    from rollout_cli.dataset.repair import repair_dataset  # noqa: PLC0415 - it loads pyarrow

    report = repair_dataset(folder, dry_run=dry_run)
    rows = {
        "dataset": report.path,
        "repair": "nothing to do" if not report.changed else "not done (--dry-run)" if dry_run else "done",
        "status": report.status,
        "episodes": f"{report.episodes:,} stay, {report.dropped_episodes:,} do not",
        "steps": f"{report.steps:,}",
    }
    if report.aside is not None:
        rows["moved"] = f"{counted(len(report.moved), 'file')} to {report.aside}"
    show(report.document() | {"dry_run": dry_run}, rows, as_json=json)
