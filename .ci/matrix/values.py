"""What a check compares with: the values that `rollout_cli.load` gives, in a file beside the dataset.

A target's environment has no `rollout` in it, since its pins may clash. Needs numpy alone.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def episodes(dataset: Path) -> list[SimpleNamespace]:
    """Return the episodes: `observations` (T + 1 rows), `actions`, `rewards`, `terminated`, `truncated`, `length`.

    Those of Dict and Tuple spaces are dictionaries of arrays by the leaf's dotted path, such as `arm` or `0`.
    Where the exporter made them vectors, they are what `gymnasium.spaces.flatten` makes of each sample.
    """
    with np.load(f"{dataset}.npz") as stored:
        count = 1 + max(int(name.split("/")[0]) for name in stored.files)
        out: list[dict[str, Any]] = [{} for _ in range(count)]
        for name in stored.files:
            at, field, *path = name.split("/")
            if path:
                out[int(at)].setdefault(field, {})[path[0]] = stored[name]
            else:
                out[int(at)][field] = stored[name]
    return [SimpleNamespace(**fields, length=len(fields["rewards"])) for fields in out]


def action_start(dataset: Path) -> int:
    """Return the least action of a Discrete space, 0 for all other spaces."""
    info = dataset / "meta" / "info.json"
    return json.loads(info.read_text())["spaces"]["action"].get("start", 0) if info.exists() else 0


class UnequalError(Exception):
    """Values that are not those of the dataset."""


def same(what: str, expected: Any, actual: Any) -> None:
    """Raise UnequalError unless shape and values are equal; the caller has cast `expected` as the loader does."""
    expected, actual = np.asarray(expected), np.asarray(actual)
    if expected.shape != actual.shape:
        raise UnequalError(f"{what}: shape {expected.shape} in the dataset, {actual.shape} in the export")
    unequal = np.argwhere(expected != actual)
    if len(unequal):
        at = tuple(unequal[0])
        raise UnequalError(
            f"{what}{list(map(int, at))}: {expected[at]!r} in the dataset, {actual[at]!r} in the export"
        )


def leaves(values: Any) -> dict[str, Any]:
    """Return the arrays of observations or actions by the leaf's path, which is empty where the space is a leaf."""
    return values if isinstance(values, dict) else {"": values}


def run(check: Callable[[Path, Path], str], *packages: str, **others: str) -> None:
    """Run a check of the command line's DATASET and EXPORTED, and print a JSON result.

    The check returns the cast that its target's loader makes, in a few words, empty for none. `others` are the
    versions of packages that are not Python's.
    """
    dataset, exported = map(Path, sys.argv[1:])
    result: dict[str, Any] = {"versions": {name: version(name) for name in packages} | others}
    try:
        result |= {"equal": True, "cast": check(dataset, exported)}
    except Exception as error:
        traceback.print_exc()
        result |= {"equal": False, "difference": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), file=sys.__stdout__)
