"""stats.json against the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_cli.dataset.limits import check_inside, read_json
from rollout_cli.dataset.stats import TableStats
from rollout_cli.dataset.verification.claims import Claims
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.errors import DatasetFormatError, StorageError

_TOLERANCE = 1e-9
"""Another machine may add up numbers in another order."""


def stats_path(root: Path) -> Path:
    """Return where stats.json lives."""
    return root / "meta" / "stats.json"


def joined_stats(lanes: Sequence[TableStats]) -> dict[str, Any]:
    """Return the statistics of all lanes together, as the writer joins them."""
    stats = TableStats()
    for lane in lanes:
        stats.merge(lane)
    return stats.document()


def check_stats(root: Path, claims: Claims, expected: dict[str, Any], findings: Findings, *, is_whole: bool) -> None:
    """Check that stats.json is that of the steps. It is written when a run ends, so before it may be missing or old.

    Args:
        root: The dataset's folder.
        claims: What the dataset says.
        expected: The statistics of the steps.
        findings: Where faults go.
        is_whole: Whether all steps could be read; where not, which has been told, stats.json has only to be readable.
    """
    path = stats_path(root)
    if not path.exists() and claims.status != "complete":
        return
    problem = _problem(root, path, expected if is_whole else None)
    if problem is None:
        return
    if claims.status == "complete":
        findings.fault(path, problem)
    else:
        findings.note(f"meta/stats.json: {problem}")


def _problem(root: Path, path: Path, expected: dict[str, Any] | None) -> str | None:
    try:
        check_inside(root, path)
        stated = read_json(path)
    except FileNotFoundError:
        return "it is missing"
    except DatasetFormatError as error:
        return error.message
    except ValueError as error:
        return f"it is not valid JSON: {error}"
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    if not isinstance(stated, dict):
        return "it is no JSON object"
    if expected is None:
        return None
    wrong = [name for name in {**expected, **stated} if not _same(expected.get(name), stated.get(name), name)]
    return f"it is not that of the steps in {', '.join(sorted(wrong)[:10])}" if wrong else None


def _same(expected: Any, stated: Any, name: str) -> bool:
    if isinstance(expected, dict) and isinstance(stated, dict):
        return expected.keys() == stated.keys() and all(_same(expected[key], stated[key], key) for key in expected)
    if isinstance(expected, list) and isinstance(stated, list):
        return len(expected) == len(stated) and all(
            _same(one, other, name) for one, other in zip(expected, stated, strict=True)
        )
    if name in ("mean", "std") and isinstance(expected, float | int) and isinstance(stated, float | int):
        return math.isclose(expected, stated, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(expected == stated)
