"""`rollout verify`."""

from __future__ import annotations

import shlex
from typing import Annotated

from rollout_cli.cli.options import Folder, JsonFlag, shown
from rollout_cli.cli.output import counted, first_of, print_message, show
from rollout_cli.errors import VerificationError
from rollout_cli.loading import printable

_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print faults only.")]
_QuickFlag = Annotated[bool, shown("--quick", text="Read metadata and footers, but no step.")]


def verify(
    folder: Folder,
    *,
    quick: _QuickFlag = False,
    quiet: _QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Check that a dataset holds all that it states: files, checksums, episodes, steps and totals."""
    from rollout_cli.dataset.verify import verify_dataset  # noqa: PLC0415 - it loads pyarrow

    report = verify_dataset(folder, quick=quick)
    if report.faults:
        raise VerificationError(
            f"{report.path} does not hold what it states: {counted(len(report.faults), 'fault')}",
            hint=f"keep the valid part with: rollout repair {shlex.quote(str(report.path))}",
            details="\n".join(first_of(report.faults)),
            report=report.document(),
        )
    facts = report.document()
    part = "metadata and footers" if report.quick else "everything"
    # A run that is collecting goes on, or was killed.
    verified = f"{part} so far" if facts["status"] == "collecting" else part
    counts = {name: f"{facts[name]:,}" for name in ("episodes", "steps", "files")}
    rows = {"dataset": report.path, "verified": verified, "status": facts["status"], **counts}
    show(facts, {**rows, "notes": f"{facts['n_notes']:,}"}, as_json=json, quiet=quiet)
    for line in () if json or quiet else first_of(report.notes):
        print_message(f"note: {printable(line)}")
