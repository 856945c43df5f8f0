"""`rollout relabel`."""

from __future__ import annotations

from typing import Annotated

from rollout_cli.cli.edits import DryRunFlag, OutputFlag, OverwriteFlag, show_edited
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import showing_progress
from rollout_cli.cli.streams import user_output_on_stderr

_RewardFlag = Annotated[
    str,
    flag(
        "--reward",
        "-r",
        metavar="MODULE:FUNCTION",
        text="A function that returns the rewards of an episode, an array of one number a step.",
    ),
]


def relabel(
    folder: Folder,
    *,
    reward: _RewardFlag,
    output: OutputFlag,
    overwrite: OverwriteFlag = False,
    dry_run: DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write a dataset with other rewards, which a function of your own gives, an episode at a time."""
    from rollout_cli.dataset.operations import relabel_dataset  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - as above

    with showing_progress(quiet=quiet or json) as progress, user_output_on_stderr():
        edited = relabel_dataset(
            load(folder), output, reward, overwrite=overwrite, dry_run=dry_run, progress=progress
        )
    show_edited(edited, as_json=json, quiet=quiet)
