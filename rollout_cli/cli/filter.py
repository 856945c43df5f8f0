"""`rollout filter`."""

from __future__ import annotations

from typing import Annotated

from rollout_cli.cli.edits import DryRunFlag, OutputFlag, OverwriteFlag, show_edited
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import showing_progress

_KeepFlag = Annotated[
    str,
    flag(
        "--keep",
        "-k",
        metavar="EXPRESSION",
        text="Keep the episodes of which this is true, such as 'return >= 400 and length < 200'.",
    ),
]


def filter(  # noqa: A001 - the command's name
    folder: Folder,
    *,
    keep: _KeepFlag,
    output: OutputFlag,
    overwrite: OverwriteFlag = False,
    dry_run: DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write some episodes of a dataset to a new one: those of which an expression is true."""
    from rollout_cli.dataset.operations import filter_dataset  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - as above

    with showing_progress(quiet=quiet or json) as progress:
        edited = filter_dataset(
            load(folder), output, keep, overwrite=overwrite, dry_run=dry_run, progress=progress
        )
    show_edited(edited, as_json=json, quiet=quiet)
