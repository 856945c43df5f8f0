"""Updates of a dataset's card: license, title, reference scores, and a picture of the returns."""

from __future__ import annotations

import math
import re
from pathlib import Path

from rollout_cli.dataset.folder import FolderLock
from rollout_cli.dataset.layout import plot_path, read_info
from rollout_cli.dataset.metadata import write_info
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.record import CardRecord
from rollout_cli.dataset.store import file_store
from rollout_cli.errors import UsageError
from rollout_cli.reports.charts import chart_of
from rollout_cli.reports.figure import drawn
from rollout_cli.sources.remote import folder_of

_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")


def write_card(
    path: Path | str,
    *,
    license: str | None = None,  # noqa: A002 - the word of the card
    plot: bool | None = None,
    title: str | None = None,
    references: tuple[float, float] | None = None,
) -> Path:
    """Rewrite README.md of a dataset, and return its path; info.json stores the arguments.

    Args:
        path: The dataset's folder, a path or a URI.
        license: The license in Hugging Face's notation, such as `mit` or `cc-by-4.0`; None keeps the
            current one.
        plot: True to draw a picture of the returns for the card, False to remove it; None keeps the current
            one.
        title: The title, in one line; None keeps the current one.
        references: The mean returns with the normalized scores 0 and 100, such as those of a random and an
            expert policy; an export to Minari has them too. None keeps the current ones.

    Raises:
        DatasetLockedError: If a run is writing the dataset.
        UsageError: If the license is not an identifier, the title is not one line, the second reference is not
            higher than the first, the dataset has no episodes to plot, or
            matplotlib is missing.

    Example:
        >>> rollout_cli.card("data", license="mit").read_text().splitlines()[1]
        'license: "mit"'
    """
    if license is not None and not _LICENSE.fullmatch(license):
        raise UsageError(
            f"{license!r} is not a license identifier",
            code="card-license",
            hint='write e.g. {license="cc-by-4.0"}',
        )
    if title is not None and (not title.strip() or len(title.splitlines()) > 1):
        raise UsageError(
            f"the title is {title!r}, expected a string of one line", code="card-title", hint="pass one line"
        )
    if references is not None and not -math.inf < references[0] < references[1] < math.inf:
        raise UsageError(
            f"the references are {references[0]:.6g} and {references[1]:.6g}, expected two finite mean returns, "
            "the higher one second",
            code="reference-order",
            hint="pass the mean return of the weaker policy first",
        )
    root = folder_of(path)
    read_info(root)  # Fails early: without a dataset, no lock is needed.
    files = file_store(root)
    with FolderLock(files, root):
        info = read_info(root)
        card: CardRecord = {**info.get("card", {})}
        if license is not None:
            card["license"] = license
        if plot is not None:
            card["plot"] = plot
        if title is not None:
            card["title"] = title
        if references is not None:
            card["references"] = {"low": references[0], "high": references[1]}
        if plot:
            picture = plot_path(root)
            files.replace(picture, drawn(chart_of(load(root), "returns"), picture.suffix))
        info["card"] = card
        write_info(files, root, info)
    return root / "README.md"
