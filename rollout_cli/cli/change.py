"""The commands that derive datasets: `rollout merge`, `split`, `filter`, `convert` and `relabel`."""

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
"""A function that takes the parameters shared by all edits, and writes one dataset or several by name."""


def _edits(command: Callable[..., Operation]) -> Callable[..., None]:
    """Decorate a function that returns an operation: make a command that runs it and prints the result.

    The command has the function's parameters and the parameters that all edits share.
    """

    def edit(
        *,
        output: Annotated[
            Path,
            flag("--output", "-o", metavar="DIR", help="Folder of the new dataset.", parser=folder_of),
        ],
        overwrite: Annotated[bool, flag("--overwrite", help="Replace an existing dataset.")] = False,
        verify: VerifyFlag = True,
        dry_run: Annotated[bool, shown("--dry-run", help="Check everything without writing files.")] = False,
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
    """Return the name of the operation, and whether it was a dry run."""
    return edited.operation if edited.written else f"{edited.operation}, not done (--dry-run)"


@_edits
def merge(
    parts: Annotated[list[Path], folder_argument("DIR", "Datasets to merge, in any order.")],
    *,
    accept_changes: Annotated[
        bool,
        flag("--accept-changes", help="Accept changes of policy or environment, and record them."),
    ] = False,
) -> Operation:
    """Merge the shards of one run, or datasets of different runs."""
    from rollout_cli.run.merge import merge as run_merge  # noqa: PLC0415 - imports numpy and pyarrow

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
            help="Folders and shares, e.g. train=0.9,test=0.1.",
        ),
    ],
    seed: Annotated[
        int, flag("--seed", metavar="N", help="Seed of the random assignment.", show_default=True)
    ] = 0,
) -> Operation:
    """Split a dataset at random into several new ones."""
    pairs = [part.partition("=") for part in parts.split(",")]
    shares: dict[str, float] = {}
    with suppress(ValueError):
        shares = {name.strip(): float(share) for name, _, share in pairs}
    if len(shares) < len(pairs):
        raise UsageError(
            f"--parts must be distinct names with numbers as shares, got {parts!r}",
            code="parts-option",
            hint="pass, for example, train=0.9,test=0.1",
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
            help="Keep only episodes that match, e.g. 'return >= 400'.",
        ),
    ],
) -> Operation:
    """Write the episodes that match an expression to a new dataset."""
    return partial(rollout_cli.filter_dataset, rollout_cli.load(folder), keep=keep)


@_edits
def convert(
    folder: Folder,
    *,
    next_observation: Annotated[
        bool | None,
        flag("--next-observation/--no-next-observation", help="Add or drop this column."),
    ] = None,
    drop_info: Annotated[
        list[str] | None,
        flag("--drop-info", metavar="KEY", help="Drop this info or glob; repeatable."),
    ] = None,
    segment_bytes: Annotated[
        int | None, flag("--segment-bytes", metavar="N", help="Maximum bytes of a data file.")
    ] = None,
    segment_rows: Annotated[
        int | None, flag("--segment-rows", metavar="N", help="Maximum rows of a data file.")
    ] = None,
    group_rows: Annotated[
        int | None, flag("--group-rows", metavar="N", help="Maximum rows of a row group.")
    ] = None,
) -> Operation:
    """Rewrite a dataset with other file sizes or columns."""
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
            help="Function that returns an episode's rewards, an array (n_steps,).",
        ),
    ],
) -> Operation:
    """Rewrite a dataset with rewards that a function computes for each episode."""
    return partial(rollout_cli.relabel_dataset, rollout_cli.load(folder), reward=reward)
