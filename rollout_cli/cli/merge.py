"""`rollout merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rollout_cli.cli.edits import DryRunFlag, OutputFlag, OverwriteFlag, show_edited
from rollout_cli.cli.options import JsonFlag, QuietFlag, flag, folder_argument
from rollout_cli.cli.output import showing_progress

_Parts = Annotated[list[Path], folder_argument("DIR", "The datasets, in any order.")]
_AcceptFlag = Annotated[
    bool,
    flag("--accept-changes", text="Merge parts of another policy or environment too, and record that."),
]


def merge(
    parts: _Parts,
    *,
    output: OutputFlag,
    overwrite: OverwriteFlag = False,
    accept_changes: _AcceptFlag = False,
    dry_run: DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Join the parts of one run into the dataset that a single run makes, or datasets of different runs."""
    from rollout_cli.run.merge import merge as run_merge  # noqa: PLC0415 - it loads numpy and pyarrow

    with showing_progress(quiet=quiet or json) as progress:
        edited = run_merge(
            parts,
            output,
            overwrite=overwrite,
            dry_run=dry_run,
            accept_changes=accept_changes,
            progress=progress,
        )
    show_edited(edited, as_json=json, quiet=quiet)
