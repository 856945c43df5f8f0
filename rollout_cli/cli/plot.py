"""`rollout plot`."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import print_json, print_text, show
from rollout_cli.loading import printable

_WhatArgument = Annotated[
    str,
    typer.Argument(
        metavar="[returns|lengths|over-time|actions|observations]", help="What to plot.", show_default=False
    ),
]
_OutputFlag = Annotated[
    Path | None, flag("--output", "-o", metavar="FILE", text="Write a PNG or SVG file instead.")
]


def plot(
    folder: Folder,
    what: _WhatArgument = "returns",
    *,
    output: _OutputFlag = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Plot the episodes of a dataset in the terminal, or to a picture with --output."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.report.charts import charts_of  # noqa: PLC0415 - as above
    from rollout_cli.report.figure import write_figure  # noqa: PLC0415 - as above
    from rollout_cli.report.text import lines  # noqa: PLC0415 - as above

    charts = charts_of(load(folder), what)
    document = {"path": str(folder), "plot": what, "charts": [asdict(chart) for chart in charts]}
    if output is not None:
        write_figure(charts, output)
        rows = {"dataset": folder, "plot": what, "picture": output}
        show(document | {"output": str(output)}, rows, as_json=json, quiet=quiet, path=output)
    elif json:
        print_json(document)
    else:
        width = min(shutil.get_terminal_size().columns, 120)
        print_text("\n".join(printable(line) for chart in charts for line in lines(chart, width)))
