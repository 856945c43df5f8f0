"""`rollout verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_cli.cli.options import SHOWING, JsonFlag, VerboseFlag
from rollout_cli.cli.output import print_json, print_problem, print_rows
from rollout_cli.errors import VerificationError
from rollout_cli.escaping import printable

if TYPE_CHECKING:
    from rollout_cli.dataset.verification.report import VerifyReport

MetadataFlag = Annotated[
    bool, typer.Option("--quick", help="Look at metadata and footers, but at no step.", show_default=False)
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print faults only.", rich_help_panel=SHOWING, show_default=False)
]


def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A dataset's folder.", show_default=False)],
    *,
    quick: MetadataFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,  # noqa: ARG001 - read where all commands end
    json: JsonFlag = False,
) -> None:
    """Check that a dataset holds all that it says: files, checksums, episodes, steps and totals."""
    from rollout_cli.dataset.verification.verify import verify as verify_dataset  # noqa: PLC0415 - it loads numpy and pyarrow

    report = verify_dataset(folder, quick=quick)
    if report.faults:
        raise failure(report)
    if json:
        print_json(report.document())
    elif not quiet:
        _show(report)


def failure(report: VerifyReport) -> VerificationError:
    """Return the error of a dataset with faults."""
    count = len(report.faults)
    return VerificationError(
        f"{report.path} does not hold what it says: {count:,} fault{'s' if count > 1 else ''}",
        hint=f"keep what is whole with: rollout repair {report.path}",
        details="\n".join(_lines([str(fault) for fault in report.faults])),
        report=report.document(),
    )


def _show(report: VerifyReport) -> None:
    print_rows(
        [
            ("dataset", str(report.path)),
            ("verified", "metadata and footers" if report.quick else "everything"),
            ("status", report.status),
            ("episodes", f"{report.episodes:,}"),
            ("steps", f"{report.steps:,}"),
            ("files", f"{report.files:,}"),
            ("notes", f"{len(report.notes):,}"),
        ]
    )
    for line in _lines(report.notes):
        print_problem(f"note: {printable(line)}")


def _lines(texts: list[str] | tuple[str, ...]) -> list[str]:
    from rollout_cli.dataset.verification.report import SHOWN  # noqa: PLC0415 - as above

    more = [f"and {len(texts) - SHOWN:,} more"] if len(texts) > SHOWN else []
    return [*texts[:SHOWN], *more]
