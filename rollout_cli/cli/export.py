"""`rollout export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import print_message, show
from rollout_cli.errors import ConfigError
from rollout_cli.keywords import keyword
from rollout_cli.remote import folder_of

FORMAT_NAMES = (
    *("d3rlpy", "d4rl", "hf", "imitation", "lerobot", "minari"),
    *("ogbench", "rllib", "robomimic", "tianshou", "torchrl", "zarr"),
)
"""The formats of this package, for the help page: their own modules load numpy."""

_ToFlag = Annotated[
    str,
    flag(
        "--to",
        metavar="FORMAT",
        text=f"The format: {', '.join(FORMAT_NAMES)}, or one that another package adds.",
        autocompletion=lambda: list(FORMAT_NAMES),
    ),
]
_OutputFlag = Annotated[
    Path, flag("--output", "-o", metavar="PATH", text="The file or folder to write.", parser=folder_of)
]
_SetFlag = Annotated[
    list[str] | None,
    flag(
        "--set",
        metavar="KEY=VALUE",
        text="An option of the format, the value a TOML literal or else text; may be given again. "
        "All formats take flatten=true, which makes Dict, Tuple and Text spaces vectors.",
    ),
]


def export(
    folder: Folder,
    *,
    to: _ToFlag,
    output: _OutputFlag,
    set: _SetFlag = None,  # noqa: A002 - the option's name
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write a dataset in the format of another tool."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.exporters.export import export as write_export  # noqa: PLC0415 - as above

    try:
        options: dict[str, Any] = dict(keyword(text, "--set") for text in set or ())
    except ConfigError as error:
        raise error.with_hint("for example: {set=flatten=true}") from None
    summary = write_export(load(folder), to, output, **options)
    rows = {"exported": summary.path, "format": summary.format}
    counts = {"episodes": f"{summary.episodes:,}", "steps": f"{summary.steps:,}"}
    show(asdict(summary), rows | counts, as_json=json, quiet=quiet, path=summary.path)
    for loss in () if json or quiet else summary.losses:
        print_message(f"not in {summary.format}: {loss}")
