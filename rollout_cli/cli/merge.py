"""`rollout merge`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rollout_cli.cli.options import JsonFlag, QuietFlag
from rollout_cli.cli.output import show, showing_progress
from rollout_cli.remote import folder_of

_Parts = Annotated[
    list[Path],
    typer.Argument(metavar="DIR", help="The shards, in any order.", show_default=False, parser=folder_of),
]
_OutputFlag = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="The folder of the whole dataset.",
        show_default=False,
        parser=folder_of,
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
    json: JsonFlag = False,
) -> None:
    """Join the shards of one run into the dataset that a single run makes, byte for byte."""
    from rollout_cli.run.merge import merge as run_merge  # noqa: PLC0415 - it loads numpy and pyarrow

    with showing_progress(quiet=quiet or json) as progress:
        summary = run_merge(
            parts, output, overwrite=overwrite, accept_changes=accept_changes, progress=progress
        )
    rows = {"dataset": summary.path, "status": "complete", "merged": f"{len(parts)} shards"}
    counts = {"episodes": f"{summary.episodes:,}", "steps": f"{summary.steps:,}"}
    show(asdict(summary), rows | counts, as_json=json, quiet=quiet, path=summary.path)
