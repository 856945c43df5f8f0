"""`rollout merge`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from rollout_cli.cli.options import JsonFlag, QuietFlag, VerboseFlag
from rollout_cli.cli.output import print_json, print_rows, print_text
from rollout_cli.cli.streams import MessageStream
from rollout_cli.loading import printable
from rollout_cli.remote import folder_of

_Parts = Annotated[
    list[Path],
    typer.Argument(metavar="DIR", help="The shards, in any order.", show_default=False, parser=folder_of),
]
_OutputFlag = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="DIR", help="The folder of the whole dataset.", show_default=False, parser=folder_of
    ),
]
_OVERWRITE = "Replace the dataset that the folder holds."
_OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help=_OVERWRITE, show_default=False)]

_ACCEPT = "Merge shards of another policy or environment too, and record that."
_AcceptFlag = Annotated[bool, typer.Option("--accept-changes", help=_ACCEPT, show_default=False)]


def merge(
    parts: _Parts,
    *,
    output: _OutputFlag,
    overwrite: _OverwriteFlag = False,
    accept_changes: _AcceptFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,  # noqa: ARG001 - read where all commands end
    json: JsonFlag = False,
) -> None:
    """Join the shards of one run into the dataset that a single run makes, byte for byte."""
    from rollout_cli.run.merge import merge as run_merge  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.run.progress import choose_progress  # noqa: PLC0415 - as above

    stream = cast("TextIO", MessageStream(sys.stderr))
    progress = choose_progress(stream, wanted=None, quiet=quiet or json, environ=os.environ)
    try:
        summary = run_merge(parts, output, overwrite=overwrite, accept_changes=accept_changes, progress=progress)
    finally:
        progress.finish()
    if json:
        print_json(asdict(summary))
    elif quiet:
        print_text(printable(str(summary.path)))
    else:
        print_rows(
            {
                "dataset": summary.path,
                "status": "complete",
                "merged": f"{len(parts)} shards",
                "episodes": f"{summary.episodes:,}",
                "steps": f"{summary.steps:,}",
            }
        )
