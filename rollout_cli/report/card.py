"""Writing a dataset's card again, with what nobody but its owner knows, and a picture."""

from __future__ import annotations

import re
from pathlib import Path

from rollout_cli.dataset.folder import FolderLock
from rollout_cli.dataset.layout import plot_path, read_info
from rollout_cli.dataset.metadata import write_info
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.record import CardRecord
from rollout_cli.dataset.store import file_store
from rollout_cli.errors import UsageError
from rollout_cli.report.charts import chart_of
from rollout_cli.report.figure import drawn
from rollout_cli.sources.remote import folder_of

_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")


def write_card(
    path: Path | str,
    *,
    license: str | None = None,  # noqa: A002 - the word of the card
    plot: bool | None = None,
) -> Path:
    """Write README.md of a dataset again, and return its path; info.json remembers the licence.

    Args:
        path: The dataset's folder, a path or a URI.
        license: The licence as Hugging Face names it, such as `mit` or `cc-by-4.0`; None leaves the one
            that there is.
        plot: Whether the card shows the returns, in a picture that is drawn now; None leaves the one that
            there is.

    Raises:
        DatasetLockedError: If a run is writing the dataset.
        UsageError: If the licence is no identifier, there is no episode to plot, or matplotlib is missing.
    """
    if license is not None and not _LICENSE.fullmatch(license):
        raise UsageError(
            f"{license!r} names no licence", code="card-license", hint='write it as in {license="cc-by-4.0"}'
        )
    root = folder_of(path)
    read_info(root)  # Without one there is nothing to lock.
    files = file_store(root)
    with FolderLock(files, root):
        info = read_info(root)
        card: CardRecord = {**info.get("card", {})}
        if license is not None:
            card["license"] = license
        if plot is not None:
            card["plot"] = plot
        if plot:
            picture = plot_path(root)
            files.replace(picture, drawn(chart_of(load(root), "returns"), picture.suffix))
        info["card"] = card
        write_info(files, root, info)
    return root / "README.md"
