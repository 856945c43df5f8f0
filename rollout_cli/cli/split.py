"""`rollout split`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from rollout_cli.cli.edits import DryRunFlag, OutputFlag, OverwriteFlag, title_of
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import counted, show, showing_progress
from rollout_cli.errors import UsageError

_PartsFlag = Annotated[
    str,
    flag(
        "--parts",
        "-p",
        metavar="NAME=SHARE,…",
        text="The parts, which are folders in that of --output, and their shares, "
        "such as train=0.9,test=0.1.",
    ),
]
_SeedFlag = Annotated[
    int, flag("--seed", metavar="N", text="Decides which episode is in which part.", show_default=True)
]


def split(
    folder: Folder,
    *,
    parts: _PartsFlag,
    seed: _SeedFlag = 0,
    output: OutputFlag,
    overwrite: OverwriteFlag = False,
    dry_run: DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write each episode of a dataset to one of several new ones, drawn by a seed."""
    from rollout_cli.dataset.operations import split_dataset  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - as above

    pairs = [part.partition("=") for part in parts.split(",")]
    try:
        shares = {name.strip(): float(share) for name, _, share in pairs}
    except ValueError as error:
        raise UsageError(
            f"--parts must be names and shares, got {parts!r}", hint="for example: train=0.9,test=0.1"
        ) from error
    with showing_progress(quiet=quiet or json) as progress:
        edited = split_dataset(
            load(folder),
            output,
            shares,
            seed=seed,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )
    rows = {
        f"{name}, {title_of(part)}": f"{counted(part.episodes, 'episode')}, {counted(part.steps, 'step')}"
        for name, part in edited.items()
    }
    document = {"path": str(output), "parts": {name: asdict(part) for name, part in edited.items()}}
    show(document, {"datasets": output, **rows}, as_json=json, quiet=quiet, path=output)
