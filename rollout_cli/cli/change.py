"""The commands that make datasets of others: `rollout merge`, `split`, `filter`, `convert` and `relabel`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rollout_cli
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, VerifyFlag, flag, folder_argument, shown
from rollout_cli.cli.output import counted, show, showing_progress
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import UsageError
from rollout_cli.sources.remote import folder_of

if TYPE_CHECKING:
    from rollout_cli.dataset.rewrite import Edited

Operation = Callable[..., "Edited | dict[str, Edited]"]
"""What makes one dataset, or several by name, given the parameters that all commands share."""


def _edits(command: Callable[..., Operation]) -> Callable[..., None]:
    """Turn a function that returns an operation into a command that runs it and shows what it made.

    The command has the parameters of the function, and those that all edits share.
    """

    def edit(
        *,
        output: Annotated[
            Path,
            flag("--output", "-o", metavar="DIR", help="The folder of the new dataset.", parser=folder_of),
        ],
        overwrite: Annotated[
            bool, flag("--overwrite", help="Replace the dataset that the folder holds.")
        ] = False,
        verify: VerifyFlag = True,
        dry_run: Annotated[
            bool, shown("--dry-run", help="Check everything, say what would be written, and write nothing.")
        ] = False,
        quiet: QuietFlag = False,
        json: JsonFlag = False,
        **arguments: Any,
    ) -> None:
        operation = command(**arguments)
        with showing_progress(quiet=quiet or json) as progress, user_output_on_stderr():
            edited = operation(
                output=output, verify=verify, overwrite=overwrite, dry_run=dry_run, progress=progress
            )
        rows: dict[str, object]
        if isinstance(edited, dict):
            path = output
            document = {"path": str(path), "parts": {name: asdict(part) for name, part in edited.items()}}
            rows = {"datasets": path}
            for name, part in edited.items():
                counts = f"{counted(part.episodes, 'episode')}, {counted(part.steps, 'step')}"
                rows[f"{name}, {_title(part)}"] = counts
        else:
            path = edited.path
            document = asdict(edited)
            rows = {"dataset": path, "operation": _title(edited)}
            for name in ("episodes", "steps", "sources"):
                rows[name] = f"{document[name]:,}"
        show(document, rows, as_json=json, quiet=quiet, path=path)

    parameters = {
        **inspect.signature(command, eval_str=True).parameters,
        **inspect.signature(edit, eval_str=True).parameters,
    }
    del parameters["arguments"]
    edit.__doc__ = command.__doc__
    edit.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    return edit


def _title(edited: Edited) -> str:
    """Return what was done, or would be."""
    return edited.operation if edited.written else f"{edited.operation}, not done (--dry-run)"


@_edits
def merge(
    parts: Annotated[list[Path], folder_argument("DIR", "The datasets, in any order.")],
    *,
    accept_changes: Annotated[
        bool,
        flag("--accept-changes", help="Merge parts of another policy or environment too, and record that."),
    ] = False,
) -> Operation:
    """Join the parts of one run into the dataset that a single run makes, or datasets of different runs."""
    from rollout_cli.run.merge import merge as run_merge  # noqa: PLC0415 - it loads numpy and pyarrow

    return partial(run_merge, parts, accept_changes=accept_changes)


@_edits
def split(
    folder: Folder,
    *,
    parts: Annotated[
        str,
        flag(
            "--parts",
            "-p",
            metavar="NAME=SHARE,…",
            help="The parts, which are folders in that of --output, and their shares, "
            "such as train=0.9,test=0.1.",
        ),
    ],
    seed: Annotated[
        int, flag("--seed", metavar="N", help="Decides which episode is in which part.", show_default=True)
    ] = 0,
) -> Operation:
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
    return partial(rollout_cli.split_dataset, rollout_cli.load(folder), parts=shares, seed=seed)


@_edits
def filter(  # noqa: A001 - the command's name
    folder: Folder,
    *,
    keep: Annotated[
        str,
        flag(
            "--keep",
            "-k",
            metavar="EXPRESSION",
            help="Keep the episodes of which this is true, such as 'return >= 400 and length < 200'.",
        ),
    ],
) -> Operation:
    """Write some episodes of a dataset to a new one: those of which an expression is true."""
    return partial(rollout_cli.filter_dataset, rollout_cli.load(folder), keep=keep)


@_edits
def convert(
    folder: Folder,
    *,
    next_observation: Annotated[
        bool | None,
        flag(
            "--next-observation/--no-next-observation",
            help="Store each step's next observation too, or no longer.",
        ),
    ] = None,
    drop_info: Annotated[
        list[str] | None,
        flag(
            "--drop-info",
            metavar="KEY",
            help="Leave out an info, given by its dotted path, such as episode.t, or a glob of it; "
            "may be given again.",
        ),
    ] = None,
    segment_bytes: Annotated[
        int | None, flag("--segment-bytes", metavar="N", help="The bytes of a data file before encoding.")
    ] = None,
    segment_rows: Annotated[
        int | None, flag("--segment-rows", metavar="N", help="The rows of a data file at most.")
    ] = None,
    group_rows: Annotated[
        int | None, flag("--group-rows", metavar="N", help="The rows of a row group at most.")
    ] = None,
) -> Operation:
    """Write a dataset in another form: other sizes of files, columns added or left out."""
    return partial(
        rollout_cli.convert_dataset,
        rollout_cli.load(folder),
        next_observation=next_observation,
        drop_info=drop_info or (),
        segment_bytes=segment_bytes,
        segment_rows=segment_rows,
        group_rows=group_rows,
    )


@_edits
def relabel(
    folder: Folder,
    *,
    reward: Annotated[
        str,
        flag(
            "--reward",
            "-r",
            metavar="MODULE:FUNCTION",
            help="A function that returns the rewards of an episode, an array of one number a step.",
        ),
    ],
) -> Operation:
    """Write a dataset with other rewards, which a function of your own gives, an episode at a time."""
    return partial(rollout_cli.relabel_dataset, rollout_cli.load(folder), reward=reward)
