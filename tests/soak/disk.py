"""A disk that fails at every single change of a run in turn, once or for good; the run goes on from what is left."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from rollout_cli.collect import collect
from rollout_cli.config import CollectConfig
from rollout_cli.dataset import load
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.verification.verify import verify
from rollout_cli.errors import DatasetFormatError, StorageError
from tests.soak.errors import SoakError
from tests.support.runs import data_hashes


@dataclass(slots=True)
class Failures:
    """How it went.

    Attributes:
        runs: Runs that met the failure.
        told: Those that ended with an error of it; the others got over it.
        kept: Those that left episodes behind.
    """

    runs: int = 0
    told: int = 0
    kept: int = 0


def _config(output: Path, *, resume: bool = False) -> CollectConfig:
    """Return a run of a few files, each of which is flushed a few times; it takes a twentieth of a second."""
    return CollectConfig(
        timesteps=4000,
        seed=3,
        workers=1,
        sampler="local",
        output=output,
        shard_bytes=60_000,
        flush_every=1e-6,
        resume=resume,
    )


@contextmanager
def _failing(change: int, *, for_good: bool) -> Iterator[list[str]]:
    """Let change number `change` fail, and all after it where that is `for_good`; give what was about to be done."""
    changes: list[str] = []

    def before(store: FileStore, operation: str, path: Path) -> None:
        del store
        changes.append(f"{operation} {path}")
        if len(changes) == change or (for_good and len(changes) > change > 0):
            raise OSError(errno.EIO, "Input/output error")

    with patch.object(FileStore, "before", before):
        yield changes


def fail_everywhere(folder: Path, *, every: int = 1) -> Failures:
    """Let every change of a run fail, or one in `every`.

    Raises:
        SoakError: If what a failed run left is damaged, no prefix, or cannot be gone on with.
    """
    collect(_config(folder / "whole"))
    with _failing(0, for_good=False) as changes:
        collect(_config(folder / "counted"))
    whole = data_hashes(folder / "whole")
    failures = Failures()
    for for_good in (False, True):
        for change in range(1, len(changes) + 1, every):
            _fail_once(folder / "failed", change, whole, failures, for_good=for_good)
    return failures


def _fail_once(output: Path, change: int, whole: dict[str, str], failures: Failures, *, for_good: bool) -> None:
    shutil.rmtree(output, ignore_errors=True)
    with _failing(change, for_good=for_good) as changes:
        try:
            collect(_config(output))
        except StorageError:
            failures.told += 1
    if len(changes) < change:
        return  # A run of fewer changes: how often it flushes depends on the time.
    failures.runs += 1
    what = f"change {change} ({changes[change - 1]}) failed{' for good' if for_good else ''}"
    failures.kept += _check_prefix(output, what) > 0
    collect(_config(output, resume=True))
    if data_hashes(output) != whole:
        raise SoakError(f"{what}: what went on from there has other data")
    _check_prefix(output, f"{what}, and the run went on")


def _check_prefix(output: Path, what: str) -> int:
    """Check what is left; return how many episodes there are."""
    try:
        numbers = load(output).episodes["episode_number"].to_pylist()
    except DatasetFormatError:
        if any(output.rglob("file-*.parquet")):
            raise SoakError(f"{what}: there are files, but no dataset") from None
        return 0
    faults = [str(fault) for fault in verify(output).faults]
    if faults or numbers != list(range(len(numbers))):
        status = json.loads((output / "meta" / "info.json").read_bytes())["status"]
        raise SoakError(f"{what}: the {status} dataset does not verify: {faults[:3]}, {numbers[:5]}…")
    return len(numbers)
