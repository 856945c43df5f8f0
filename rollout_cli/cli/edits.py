"""What the commands that make datasets of others have in common: their options, and how they end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rollout_cli.cli.options import flag, shown
from rollout_cli.cli.output import show
from rollout_cli.remote import folder_of

if TYPE_CHECKING:
    from rollout_cli.dataset.rewrite import Edited

OutputFlag = Annotated[
    Path, flag("--output", "-o", metavar="DIR", text="The folder of the new dataset.", parser=folder_of)
]
OverwriteFlag = Annotated[bool, flag("--overwrite", text="Replace the dataset that the folder holds.")]
DryRunFlag = Annotated[
    bool, shown("--dry-run", text="Check everything, say what would be written, and write nothing.")
]


def show_edited(edited: Edited, *, as_json: bool, quiet: bool) -> None:
    """Write what a command has made, or would make."""
    counts = {name: f"{getattr(edited, name):,}" for name in ("episodes", "steps", "sources")}
    rows = {"dataset": edited.path, "operation": title_of(edited), **counts}
    show(asdict(edited), rows, as_json=as_json, quiet=quiet, path=edited.path)


def title_of(edited: Edited) -> str:
    """Return what was done, or would be."""
    return edited.operation if edited.written else f"{edited.operation}, not done (--dry-run)"
