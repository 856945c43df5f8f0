"""`rollout report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import show

_OutputFlag = Annotated[Path, flag("--output", "-o", metavar="FILE.html", text="The page to write.")]


def write_report(
    folder: Folder, *, output: _OutputFlag, quiet: QuietFlag = False, json: JsonFlag = False
) -> None:
    """Write a page about a dataset: its episodes, its columns, and how it was made."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.report.identity import sized  # noqa: PLC0415 - as above
    from rollout_cli.report.page import write_report as write  # noqa: PLC0415 - as above

    n_bytes = write(load(folder), output)
    document = {"dataset": str(folder), "path": str(output), "bytes": n_bytes}
    rows = {"dataset": folder, "report": output, "size": sized(n_bytes)}
    show(document, rows, as_json=json, quiet=quiet, path=output)
