"""Whether a dataset holds what it says: everything that its files claim, held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollout_cli.dataset.layout import info_path, read_info
from rollout_cli.dataset.limits import check_inside, read_json
from rollout_cli.dataset.verification.claims import Claims, read_claims
from rollout_cli.dataset.verification.files_check import FilesCheck
from rollout_cli.dataset.verification.folder import Folder, survey
from rollout_cli.dataset.verification.report import Findings, VerifyReport
from rollout_cli.dataset.verification.stats_check import check_stats
from rollout_cli.dataset.verification.totals import Counts, check_totals


def verify(path: Path | str, *, quick: bool = False) -> VerifyReport:
    """Check all that the dataset in the folder `path` says of itself; at most a row group is in memory at a time.

    Args:
        path: The dataset's folder.
        quick: Look at info.json, the episodes files and the footers of data files, but at no step.

    Raises:
        DatasetFormatError: If there is no dataset of this format.
        StorageError: If it cannot be read.
    """
    root = Path(path)
    findings = Findings(root)
    info = readable_info(root, findings)
    claims = None if info is None else read_claims(root, info, findings)
    folder = survey(root)
    counts = Counts()
    if claims is not None:
        counts = check_content(root, claims, folder, findings, quick=quick)
    note_strays(root, folder, findings)
    return VerifyReport(
        path=root,
        status="unknown" if claims is None else claims.status,
        episodes=counts.episodes,
        steps=counts.steps,
        files=len(folder.data) + len(folder.episodes),
        quick=quick,
        faults=tuple(findings.faults),
        notes=tuple(findings.notes),
    )


def readable_info(root: Path, findings: Findings) -> dict[str, Any] | None:
    """Return the info.json; None, and a fault, where there is one that is no JSON: then the dataset is damaged.

    Raises:
        DatasetFormatError: If there is none, or one of another format.
        StorageError: If it cannot be read.
    """
    path = info_path(root)
    try:
        check_inside(root, path)
        read_json(path)
    except ValueError as error:
        findings.fault(path, f"it is not valid JSON: {error}")
        return None
    except OSError:
        pass  # Told in full by what follows.
    return read_info(root)


def check_content(root: Path, claims: Claims, folder: Folder, findings: Findings, *, quick: bool = False) -> Counts:
    """Hold all files against `claims`, and return what they hold."""
    check = FilesCheck(root, claims, folder, findings, quick=quick)
    check.run()
    check_totals(root, claims, check.counts, findings)
    if not quick:
        check_stats(root, claims, check.stats(), findings, is_whole=check.is_counted and check.counts.is_whole)
    return check.counts


def note_strays(root: Path, folder: Folder, findings: Findings) -> None:
    """Note what does not belong to the dataset."""
    for path in folder.strays:
        findings.note(f"{findings.name(path)} does not belong to the dataset")
    for name in folder.foreign:
        findings.note(f"{name} does not belong to the dataset")
    if not (root / "README.md").is_file():
        findings.note("README.md, the dataset's card, is missing")
