"""`rollout tune`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rollout_cli.cli.check import DEFAULTS
from rollout_cli.cli.options import ConfigFlag, JsonFlag, shown
from rollout_cli.cli.output import print_json, print_table, print_text, showing_progress
from rollout_cli.cli.streams import user_output_on_stderr

_NAMES = ("workers", "envs per worker", "vectorization", "steps/s", "bare loops", "problem")
_Seconds = Annotated[
    float,
    shown(
        "--seconds",
        min=0.05,
        metavar="SECONDS",
        text="How long each choice is measured, once its workers are warm. (default: 3)",
    ),
]
_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print the lines of the fastest choice alone.")]


def tune(
    context: typer.Context,
    *,
    seconds: _Seconds = 3.0,
    config: ConfigFlag = None,
    quiet: _QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Measure numbers of workers and environments a worker; print the fastest as lines for --config.

    It takes the options of `collect`; `--workers` is the number to begin with.
    """
    from rollout_cli.option_sources import resolve  # noqa: PLC0415 - it loads pydantic

    asked = resolve("collect", flags=context.obj, environ=os.environ, file=config, defaults=DEFAULTS)
    from rollout_cli.run.tune import tune as run_tune  # noqa: PLC0415 - it loads numpy and gymnasium

    with showing_progress(wanted=False, quiet=quiet or json) as progress, user_output_on_stderr():
        document = run_tune(asked, seconds=seconds, progress=progress).document()
    if json:
        print_json(document)
        return
    if not quiet:
        rows = [
            [*row["options"].values(), f"{row['rate']:,.0f}", f"{row['ratio'] or 0:.2f}", row["problem"]]
            for row in document["rows"]
        ]
        print_table(_NAMES, rows)
        print_text("")
    import tomli_w  # noqa: PLC0415 - for this alone

    print_text(tomli_w.dumps(document["fastest"]).rstrip())
