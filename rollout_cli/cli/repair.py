"""`rollout repair`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_cli.cli.options import SHOWING, JsonFlag, VerboseFlag
from rollout_cli.cli.output import counted, print_json, print_rows

if TYPE_CHECKING:
    from rollout_cli.dataset.verification.repair import RepairReport

DryRunFlag = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Tell what would be done, and do nothing.", rich_help_panel=SHOWING, show_default=False
    ),
]


def repair(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A dataset's folder.", show_default=False)],
    *,
    dry_run: DryRunFlag = False,
    verbose: VerboseFlag = False,  # noqa: ARG001 - read where all commands end
    json: JsonFlag = False,
) -> None:
    """Keep the part of a dataset that is whole, and move aside what is not; nothing is deleted."""
    from rollout_cli.dataset.verification.repair import repair as repair_dataset  # noqa: PLC0415 - it loads numpy and pyarrow

    report = repair_dataset(folder, dry_run=dry_run)
    if json:
        print_json(report.document() | {"dry_run": dry_run})
    else:
        print_rows(_rows(report, dry_run=dry_run))


def _rows(report: RepairReport, *, dry_run: bool) -> list[tuple[str, str]]:
    done = "nothing to do" if not report.changed else "not done (--dry-run)" if dry_run else "done"
    rows = [
        ("dataset", str(report.path)),
        ("repair", done),
        ("status", report.status),
        ("episodes", f"{report.episodes:,} stay, {report.dropped_episodes:,} do not"),
        ("steps", f"{report.steps:,}"),
    ]
    if report.rebuilt_info:
        rows.append(("info.json", "made anew from the files; what only it told of the run is lost"))
    if report.aside is not None:
        rows.append(("moved", f"{counted(len(report.moved), 'file')} to {report.aside}"))
    return rows + [("cut", f"{name} after {counted(count, 'episode')}") for name, count in report.cut.items()]
