"""`rollout diff`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rollout_cli.cli.options import Folder, JsonFlag, folder_argument, shown
from rollout_cli.cli.output import show
from rollout_cli.errors import VerificationError

_Other = Annotated[Path, folder_argument("OTHER", "Another one's.")]
_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print a difference only.")]


def diff(folder: Folder, other: _Other, *, quiet: _QuietFlag = False, json: JsonFlag = False) -> None:
    """Compare the episodes of two datasets bit by bit; end with code 6 at the first difference."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.run.compare import diff as compare  # noqa: PLC0415 - as above

    first = load(folder)
    first_place = compare(first, load(other))
    paths = {"path": str(folder), "other": str(other), "identical": first_place is None}
    if first_place is not None:
        ours, theirs = first_place.difference.values
        raise VerificationError(
            f"{folder} and {other} differ first in {first_place.place}: {ours} and {theirs}",
            report={**paths, "episode": first_place.episode, "difference": asdict(first_place.difference)},
        )
    rows = {"dataset": folder, "other": other, "episodes": f"{len(first):,}", "compared": "identical"}
    show({**paths, "episodes": len(first)}, rows, as_json=json, quiet=quiet)
