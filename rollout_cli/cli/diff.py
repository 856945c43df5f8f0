"""`rollout diff`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rollout_cli.cli.options import Folder, JsonFlag, shown
from rollout_cli.cli.output import show
from rollout_cli.errors import VerificationError
from rollout_cli.remote import folder_of

_Other = Annotated[
    Path, typer.Argument(metavar="OTHER", help="Another one's.", show_default=False, parser=folder_of)
]
_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print a difference only.")]


def diff(folder: Folder, other: _Other, *, quiet: _QuietFlag = False, json: JsonFlag = False) -> None:
    """Compare the episodes of two datasets bit by bit; end with code 6 at the first difference."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.run.diff import diff as compare  # noqa: PLC0415 - as above

    first = load(folder)
    found = compare(first, load(other))
    paths = {"path": str(folder), "other": str(other), "identical": found is None}
    if found is not None:
        ours, theirs = found.difference.values
        raise VerificationError(
            f"{folder} and {other} differ first in {found.place}: {ours} and {theirs}",
            report={**paths, "episode": found.episode, "difference": asdict(found.difference)},
        )
    rows = {"dataset": folder, "other": other, "episodes": f"{len(first):,}", "compared": "identical"}
    show({**paths, "episodes": len(first)}, rows, as_json=json, quiet=quiet)
