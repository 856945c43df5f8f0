"""`rollout convert`."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_cli.cli.edits import DryRunFlag, OutputFlag, OverwriteFlag, show_edited
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag
from rollout_cli.cli.output import showing_progress

_NEXT = "Store each step's next observation too, or no longer."
_NextFlag = Annotated[
    bool | None, typer.Option("--next-observation/--no-next-observation", help=_NEXT, show_default=False)
]
_DROP = "Leave out an info, given by its dotted path, such as episode.t, or a glob of it; may be given again."
_DropFlag = Annotated[list[str] | None, typer.Option("--drop-info", metavar="KEY", help=_DROP)]
_BytesFlag = Annotated[
    int | None, typer.Option("--segment-bytes", metavar="N", help="The bytes of a data file before encoding.")
]
_RowsFlag = Annotated[
    int | None, typer.Option("--segment-rows", metavar="N", help="The rows of a data file at most.")
]
_GroupFlag = Annotated[
    int | None, typer.Option("--group-rows", metavar="N", help="The rows of a row group at most.")
]


def convert(
    folder: Folder,
    *,
    next_observation: _NextFlag = None,
    drop_info: _DropFlag = None,
    segment_bytes: _BytesFlag = None,
    segment_rows: _RowsFlag = None,
    group_rows: _GroupFlag = None,
    output: OutputFlag,
    overwrite: OverwriteFlag = False,
    dry_run: DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write a dataset in another form: other sizes of files, columns added or left out."""
    from rollout_cli.dataset.operations import convert_dataset  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - as above

    with showing_progress(quiet=quiet or json) as progress:
        edited = convert_dataset(
            load(folder),
            output,
            next_observation=next_observation,
            drop_info=drop_info or (),
            segment_bytes=segment_bytes,
            segment_rows=segment_rows,
            group_rows=group_rows,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )
    show_edited(edited, as_json=json, quiet=quiet)
