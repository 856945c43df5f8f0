"""`rollout card`."""

from __future__ import annotations

from typing import Annotated

from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import show

_LicenseFlag = Annotated[
    str | None, flag("--license", metavar="ID", text="The licence, such as mit or cc-by-4.0.")
]
_PlotFlag = Annotated[bool, flag("--plot", text="Show the returns in a picture.")]


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
