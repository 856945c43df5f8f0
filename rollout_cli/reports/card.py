"""Updates of the card of a dataset or suite: license, title, reference scores, and a picture of the returns."""

from __future__ import annotations

import math
import re
from pathlib import Path

from rollout_cli.dataset.folder import FolderLock
from rollout_cli.dataset.layout import plot_path, read_info
from rollout_cli.dataset.metadata import write_info
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.record import CardRecord, ReferencesRecord
from rollout_cli.dataset.store import file_store
from rollout_cli.errors import UsageError
from rollout_cli.reports.charts import chart_of
from rollout_cli.reports.figure import drawn
from rollout_cli.reports.suite import check_suite, mean_return, members_of, write_suite_card
from rollout_cli.sources.remote import folder_of

_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")


def write_card(
    path: Path | str,
    *,
    license: str | None = None,  # noqa: A002 - the word of the card
    plot: bool | None = None,
    title: str | None = None,
    references: tuple[float | str, float | str] | None = None,
) -> Path:
    """Rewrite README.md of a dataset, and return its path; info.json stores the arguments.

    The card of a suite (a folder of datasets) has a table row and a Hugging Face configuration per dataset.
    A suite has no info.json: pass its license and title each time.

    Args:
        path: The folder of the dataset or suite, a path or a URI.
        license: The license in Hugging Face's notation, such as `mit` or `cc-by-4.0`; None keeps the
            current one.
        plot: True to draw a picture of the returns for the card, False to remove it; None keeps the current
            one.
        title: The title, in one line; None keeps the current one.
        references: The mean returns with the normalized scores 0 and 100, such as those of a random and an
            expert policy; an export to Minari has them too. For a suite, they are stored in all its
            datasets, and a string names a dataset whose mean return is used. None keeps the current ones.

    Raises:
        DatasetExistsError: If a suite has a README.md that `rollout card` did not write.
        DatasetLockedError: If a run is writing the dataset.
        UsageError: If the license is not an identifier, the title is not one line, the second reference is not
            higher than the first, a reference is not a dataset of the suite, a suite has `plot`, the dataset has no
            episodes to plot or describe, or matplotlib is missing.

    Example:
        >>> rollout_cli.card("data", license="mit").read_text().splitlines()[1]
        'license: "mit"'
    """
    _check(license, title)
    root = folder_of(path)
    members = members_of(root)
    scale = None if references is None else _scale(root, references)
    if members:
        if plot is not None:
            raise UsageError(
                f"{root} is a suite, but a plot shows one dataset",
                code="card-of-a-folder",
                hint="pass {plot} with each dataset's folder",
            )
        check_suite(root)
        if scale is not None:
            for member in members:
                _update(member, {"references": scale})
        return write_suite_card(root, title=title, license=license)
    changes: CardRecord = {}
    if license is not None:
        changes["license"] = license
    if plot is not None:
        changes["plot"] = plot
    if title is not None:
        changes["title"] = title
    if scale is not None:
        changes["references"] = scale
    _update(root, changes)
    return root / "README.md"


def _scale(root: Path, references: tuple[float | str, float | str]) -> ReferencesRecord:
    """Return references as mean returns; raise UsageError if they are unknown or in the wrong order."""
    low, high = [mean_return(root, reference) for reference in references]
    if not -math.inf < low < high < math.inf:
        raise UsageError(
            f"the references are {low:.6g} and {high:.6g}, expected two finite mean returns, the higher one second",
            code="reference-order",
            hint="pass the mean return of the weaker policy first",
        )
    return {"low": low, "high": high}


def _check(license_id: str | None, title: str | None) -> None:
    """Raise UsageError for an invalid license or title."""
    if license_id is not None and not _LICENSE.fullmatch(license_id):
        raise UsageError(
            f"{license_id!r} is not a license identifier",
            code="card-license",
            hint='write e.g. {license="cc-by-4.0"}',
        )
    if title is not None and (not title.strip() or len(title.splitlines()) > 1):
        raise UsageError(
            f"the title is {title!r}, expected a string of one line",
            code="card-title",
            hint="pass a title without line breaks",
        )


def _update(root: Path, changes: CardRecord) -> None:
    """Record changes of a dataset's card, and write it; with `plot`, draw the picture."""
    read_info(root)  # Fails early: without a dataset, no lock is needed.
    files = file_store(root)
    with FolderLock(files, root):
        info = read_info(root)
        if changes.get("plot"):
            picture = plot_path(root)
            files.replace(picture, drawn(chart_of(load(root), "returns"), picture.suffix))
        info["card"] = {**info.get("card", {}), **changes}
        write_info(files, root, info)
