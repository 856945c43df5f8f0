"""`rollout convert`."""

from __future__ import annotations

from typing import Annotated

from rollout_cli.cli.edits import DryRunFlag, OutputFlag, OverwriteFlag, show_edited
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import showing_progress

_NextFlag = Annotated[
    bool | None,
    flag(
        "--next-observation/--no-next-observation",
        text="Store each step's next observation too, or no longer.",
    ),
]
_DropFlag = Annotated[
    list[str] | None,
    flag(
        "--drop-info",
        metavar="KEY",
        text="Leave out an info, given by its dotted path, such as episode.t, or a glob of it; "
        "may be given again.",
    ),
]
_BytesFlag = Annotated[
    int | None, flag("--segment-bytes", metavar="N", text="The bytes of a data file before encoding.")
]
_RowsFlag = Annotated[
    int | None, flag("--segment-rows", metavar="N", text="The rows of a data file at most.")
]
_GroupFlag = Annotated[int | None, flag("--group-rows", metavar="N", text="The rows of a row group at most.")]


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
