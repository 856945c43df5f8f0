"""The commands that make datasets of others: `rollout merge`, `split`, `filter`, `convert` and `relabel`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rollout_cli
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, VerifyFlag, flag, folder_argument, shown
from rollout_cli.cli.output import counted, show, showing_progress
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import UsageError
from rollout_cli.remote import folder_of

if TYPE_CHECKING:
    from rollout_cli.dataset.rewrite import Edited

_OutputFlag = Annotated[
    Path, flag("--output", "-o", metavar="DIR", text="The folder of the new dataset.", parser=folder_of)
]
_OverwriteFlag = Annotated[bool, flag("--overwrite", text="Replace the dataset that the folder holds.")]
_DryRunFlag = Annotated[
    bool, shown("--dry-run", text="Check everything, say what would be written, and write nothing.")
]


def merge(
    parts: Annotated[list[Path], folder_argument("DIR", "The datasets, in any order.")],
    *,
    output: _OutputFlag,
    overwrite: _OverwriteFlag = False,
    verify: VerifyFlag = True,
    accept_changes: Annotated[
        bool,
        flag("--accept-changes", text="Merge parts of another policy or environment too, and record that."),
    ] = False,
    dry_run: _DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Join the parts of one run into the dataset that a single run makes, or datasets of different runs."""
    from rollout_cli.run.merge import merge as run_merge  # noqa: PLC0415 - it loads numpy and pyarrow

    _edit(
        run_merge,
        parts,
        output,
        verify=verify,
        overwrite=overwrite,
        dry_run=dry_run,
        accept_changes=accept_changes,
        quiet=quiet,
        json=json,
    )


def split(
    folder: Folder,
    *,
    parts: Annotated[
        str,
        flag(
            "--parts",
            "-p",
            metavar="NAME=SHARE,…",
            text="The parts, which are folders in that of --output, and their shares, "
            "such as train=0.9,test=0.1.",
        ),
    ],
    seed: Annotated[
        int, flag("--seed", metavar="N", text="Decides which episode is in which part.", show_default=True)
    ] = 0,
    output: _OutputFlag,
    overwrite: _OverwriteFlag = False,
    verify: VerifyFlag = True,
    dry_run: _DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write each episode of a dataset to one of several new ones, drawn by a seed."""
    pairs = [part.partition("=") for part in parts.split(",")]
    shares: dict[str, float] = {}
    with suppress(ValueError):
        shares = {name.strip(): float(share) for name, _, share in pairs}
    if len(shares) < len(pairs):
        raise UsageError(
            f"--parts must be different names and their shares, got {parts!r}",
            code="parts-option",
            hint="for example: train=0.9,test=0.1",
        )
    with showing_progress(quiet=quiet or json) as progress:
        edited = rollout_cli.split_dataset(
            rollout_cli.load(folder),
            output,
            shares,
            seed=seed,
            verify=verify,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )
    rows = {
        f"{name}, {_title(part)}": f"{counted(part.episodes, 'episode')}, {counted(part.steps, 'step')}"
        for name, part in edited.items()
    }
    document = {"path": str(output), "parts": {name: asdict(part) for name, part in edited.items()}}
    show(document, {"datasets": output, **rows}, as_json=json, quiet=quiet, path=output)


def filter(  # noqa: A001 - the command's name
    folder: Folder,
    *,
    keep: Annotated[
        str,
        flag(
            "--keep",
            "-k",
            metavar="EXPRESSION",
            text="Keep the episodes of which this is true, such as 'return >= 400 and length < 200'.",
        ),
    ],
    output: _OutputFlag,
    overwrite: _OverwriteFlag = False,
    verify: VerifyFlag = True,
    dry_run: _DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write some episodes of a dataset to a new one: those of which an expression is true."""
    _edit(
        rollout_cli.filter_dataset,
        rollout_cli.load(folder),
        output,
        keep,
        verify=verify,
        overwrite=overwrite,
        dry_run=dry_run,
        quiet=quiet,
        json=json,
    )


def convert(
    folder: Folder,
    *,
    next_observation: Annotated[
        bool | None,
        flag(
            "--next-observation/--no-next-observation",
            text="Store each step's next observation too, or no longer.",
        ),
    ] = None,
    drop_info: Annotated[
        list[str] | None,
        flag(
            "--drop-info",
            metavar="KEY",
            text="Leave out an info, given by its dotted path, such as episode.t, or a glob of it; "
            "may be given again.",
        ),
    ] = None,
    segment_bytes: Annotated[
        int | None, flag("--segment-bytes", metavar="N", text="The bytes of a data file before encoding.")
    ] = None,
    segment_rows: Annotated[
        int | None, flag("--segment-rows", metavar="N", text="The rows of a data file at most.")
    ] = None,
    group_rows: Annotated[
        int | None, flag("--group-rows", metavar="N", text="The rows of a row group at most.")
    ] = None,
    output: _OutputFlag,
    overwrite: _OverwriteFlag = False,
    verify: VerifyFlag = True,
    dry_run: _DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write a dataset in another form: other sizes of files, columns added or left out."""
    _edit(
        rollout_cli.convert_dataset,
        rollout_cli.load(folder),
        output,
        next_observation=next_observation,
        drop_info=drop_info or (),
        segment_bytes=segment_bytes,
        segment_rows=segment_rows,
        group_rows=group_rows,
        verify=verify,
        overwrite=overwrite,
        dry_run=dry_run,
        quiet=quiet,
        json=json,
    )


def relabel(
    folder: Folder,
    *,
    reward: Annotated[
        str,
        flag(
            "--reward",
            "-r",
            metavar="MODULE:FUNCTION",
            text="A function that returns the rewards of an episode, an array of one number a step.",
        ),
    ],
    output: _OutputFlag,
    overwrite: _OverwriteFlag = False,
    verify: VerifyFlag = True,
    dry_run: _DryRunFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write a dataset with other rewards, which a function of your own gives, an episode at a time."""
    _edit(
        rollout_cli.relabel_dataset,
        rollout_cli.load(folder),
        output,
        reward,
        verify=verify,
        overwrite=overwrite,
        dry_run=dry_run,
        quiet=quiet,
        json=json,
    )


def _edit(make: Callable[..., Edited], *arguments: Any, quiet: bool, json: bool, **options: Any) -> None:
    """Make a dataset, show the progress meanwhile, and then what was made, or would be."""
    with showing_progress(quiet=quiet or json) as progress, user_output_on_stderr():
        edited = make(*arguments, progress=progress, **options)
    counts = {name: f"{getattr(edited, name):,}" for name in ("episodes", "steps", "sources")}
    show(
        asdict(edited),
        {"dataset": edited.path, "operation": _title(edited), **counts},
        as_json=json,
        quiet=quiet,
        path=edited.path,
    )


def _title(edited: Edited) -> str:
    """Return what was done, or would be."""
    return edited.operation if edited.written else f"{edited.operation}, not done (--dry-run)"
