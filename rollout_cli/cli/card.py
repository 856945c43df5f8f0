"""`rollout card`."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag
from rollout_cli.cli.output import show

_LicenseFlag = Annotated[
    str | None,
    typer.Option(
        "--license", metavar="ID", help="The licence, such as mit or cc-by-4.0.", show_default=False
    ),
]
_PlotFlag = Annotated[bool, typer.Option("--plot", help="Show the returns in a picture.", show_default=False)]


def card(
    folder: Folder,
    *,
    license: _LicenseFlag = None,  # noqa: A002 - the name of the option
    plot: _PlotFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write the card of a dataset (README.md) again, for sharing it on Hugging Face."""
    from rollout_cli.report.card import write_card  # noqa: PLC0415 - it loads numpy and pyarrow

    path = write_card(folder, license=license, plot=plot)
    rows = {"dataset": folder, "card": path}
    show({"dataset": str(folder), "path": str(path)}, rows, as_json=json, quiet=quiet, path=path)
