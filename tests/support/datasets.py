"""Writing synthetic datasets, comparing them, and a disk that fails."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.dataset import DatasetSummary, DatasetWriter
from rollout_cli.dataset.files import FileStore
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.spaces import tree_leaves
from tests.support.chunks import BOX_SPEC


def write_dataset(
    path: Path, chunks: Sequence[Chunk], *, spec: EnvSpec = BOX_SPEC, lanes: Sequence[int] = (), **options: Any
) -> DatasetSummary:
    """Write `chunks` in turn, each to its lane, and close the dataset as complete."""
    with DatasetWriter(path, env_spec=spec, root_seed=0, **options) as writer:
        for at, chunk in enumerate(chunks):
            writer.write(chunk, lane=lanes[at] if lanes else 0)
        return writer.close(status="complete")


def data_files(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files of `data/`, by name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted((path / "data").rglob("*.parquet"))}


def has_commit(path: Path) -> bool:
    """Return whether anything is committed."""
    return any((path / "meta" / "episodes").rglob("file-*.parquet"))


def leftovers(path: Path) -> list[str]:
    """Return the names of hidden files: what a writer should not leave behind."""
    return sorted(str(file.relative_to(path)) for file in path.rglob(".*"))


def assert_same_batches(expected: EpisodeBatch, actual: EpisodeBatch) -> None:
    """Check that two batches hold the same values of the same types, infos apart."""
    for name in ("lengths", "terminated", "truncated", "numbers", "seeds", "rewards", "step_types"):
        _assert_same_arrays(name, getattr(expected, name), getattr(actual, name))
    for name in ("observations", "last_observations", "actions"):
        left, right = getattr(expected, name), getattr(actual, name)
        assert _structure(left) == _structure(right), name
        for one, other in zip(tree_leaves(left), tree_leaves(right), strict=True):
            _assert_same_arrays(name, one, other)


def _assert_same_arrays(name: str, expected: Any, actual: Any) -> None:
    assert expected.dtype == actual.dtype, name
    np.testing.assert_array_equal(expected, actual, err_msg=name)


def _structure(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _structure(child) for key, child in tree.items()}
    return tuple(_structure(child) for child in tree) if isinstance(tree, tuple) else None


class FailingFiles(FileStore):
    """A disk on which the operation number `fail_at` fails, or that one and all after it."""

    def __init__(self, fail_at: int | None = None, *, for_good: bool = False) -> None:
        self.operations: list[tuple[str, Path]] = []
        self._fail_at = fail_at
        self._for_good = for_good

    def before(self, operation: str, path: Path) -> None:
        at = len(self.operations)
        self.operations.append((operation, path))
        if self._fail_at is not None and (at == self._fail_at or (self._for_good and at > self._fail_at)):
            raise OSError(errno.ENOSPC, "No space left on device")
