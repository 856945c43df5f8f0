"""`rollout check`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rollout_cli.cli.options import ConfigFlag, JsonFlag, shown
from rollout_cli.cli.output import print_json, print_rows, print_text, showing_progress
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import UserCodeError
from rollout_cli.loading import printable

DEFAULTS = {"timesteps": 1_000_000}
"""What is asked about where a command line says no amount."""

_Seconds = Annotated[
    float,
    shown(
        "--seconds",
        min=0.1,
        metavar="SECONDS",
        text="How long each of its processes may take, three where all is well; "
        "what is not ready by then has failed. (default: 20)",
    ),
]
_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print only what is not well.")]


def check(
    context: typer.Context,
    *,
    seconds: _Seconds = 20.0,
    config: ConfigFlag = None,
    quiet: _QuietFlag = False,
    json: JsonFlag = False,
) -> int:
    """Try for some seconds what `rollout collect` would run, and say what may go wrong; leave no dataset.

    It takes the options of `collect`. The exit code is 3 if any check fails, else 0.
    """
    from rollout_cli.option_sources import resolve  # noqa: PLC0415 - it loads pydantic

    asked = resolve("collect", flags=context.obj, environ=os.environ, file=config, defaults=DEFAULTS)
    from rollout_cli.run.check import check as run_check  # noqa: PLC0415 - it loads numpy and gymnasium

    with showing_progress(wanted=False, quiet=quiet or json) as progress, user_output_on_stderr():
        report = run_check(asked, seconds=seconds, progress=progress)
    document, rows = report.document(), report.rows()
    if json:
        print_json(document)
    else:
        width = max(len(entry["check"]) for entry in document["checks"])
        for entry in document["checks"]:
            lines = [f"{entry['status']:<4}  {entry['check']:<{width}}  {entry['what']}".rstrip()]
            lines += [f"{'':<{width + 6}}  change: {entry['change']}"] if entry["change"] else []
            if entry["status"] != "ok" or not quiet:
                print_text("\n".join(map(printable, lines)))
        if rows and not quiet:
            print_text("")
            print_rows(rows)
    return UserCodeError.exit_code if report.has_failed else 0
