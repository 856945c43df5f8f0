"""Every change of a run on disk fails in turn, or is the last one before a kill; what is left is resumed."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rollout_cli import CollectConfig, collect, load
from rollout_cli.dataset.reader import Episode
from rollout_cli.dataset.store import FileStore
from rollout_cli.errors import StorageError
from rollout_cli.run.compare import diff
from tests.helpers.breaks import BREAKS, SMALL, contents, killed
from tests.helpers.datasets import data_hashes, has_commit, info_of, numbers_of
from tests.helpers.processes import called


def _config(output: Path, *, resume: bool = False) -> CollectConfig:
    """Return a run of a few files, each of which is flushed a few times."""
    return CollectConfig(
        timesteps=4000,
        seed=3,
        workers=1,
        sampler="local",
        output=output,
        segment_bytes=60_000,
        flush_every=0.01,
        resume=resume,
    )


@contextmanager
def _failing(change: int, *, for_good: bool) -> Iterator[list[str]]:
    """Let change number `change` fail, and all after it where that is `for_good`; give what was about to be done."""
    changes: list[str] = []

    def before(store: FileStore, operation: str, path: Path) -> None:
        changes.append(f"{operation} {path}")
        if len(changes) == change or (for_good and len(changes) > change > 0):
            raise OSError(errno.EIO, "Input/output error")

    with patch.object(FileStore, "before", before):
        yield changes


def fail_everywhere(folder: Path, *, every: int = 1) -> str:
    """Let every change of a run fail, or one in `every`; what a failed run left is a prefix, and can be resumed."""
    collect(_config(folder / "whole"))
    with _failing(0, for_good=False) as changes:
        collect(_config(folder / "counted"))
    whole, failed, kept = data_hashes(folder / "whole"), 0, 0
    for for_good in (False, True):
        for change in range(1, len(changes) + 1, every):
            output = folder / "failed"
            shutil.rmtree(output, ignore_errors=True)
            has_error, done = _fail(output, change, for_good=for_good)
            failed += has_error
            # Changes fall elsewhere in each run, since a timer makes some of them.
            what = f"change {change} ({done[change - 1 : change]}) failed, for good: {for_good}"
            kept += _check_prefix(output, what) > 0
            collect(_config(output, resume=True))
            assert whole == data_hashes(output), f"{what}: the resumed run has other data"
            _check_prefix(output, f"{what}, resumed")
    assert 0 < kept
    assert 0 < failed
    return f"the disk failed at {len(changes)} changes: {failed} runs said so, {kept} had episodes"


def _fail(output: Path, change: int, *, for_good: bool) -> tuple[bool, list[str]]:
    """Return whether the run ended with an error, for others got over it, and its changes."""
    with _failing(change, for_good=for_good) as changes:
        try:
            collect(_config(output))
        except StorageError:
            return True, changes
    return False, changes


def _check_prefix(output: Path, what: str) -> int:
    """Check what is left; return how many episodes there are."""
    if not has_commit(output):
        return 0
    numbers = numbers_of(output)
    assert list(range(len(numbers))) == numbers, what
    ran = called("verify", output, code=None)
    assert 0 == ran.code, f"{what}: {ran.said}"
    return len(numbers)


def kill_everywhere(folder: Path, *, every: int = 1) -> str:
    """Kill `repair` and `collect --overwrite` before each change on disk, or one in `every`, and run them again."""
    folder.mkdir()
    whole, copy, note = folder / "whole", folder / "copy" / "out", folder / "note"
    base = ("collect", "--episodes", "200", "--sampler", "local", "--workers", "1", "--quiet", *SMALL)
    called(*base, "--seed", "5", "--output", whole)
    kills = 0
    for again in (("repair", copy), (*base, "--seed", "6", "--overwrite", "--output", copy)):
        change = 1
        while True:
            shutil.rmtree(copy.parent, ignore_errors=True)
            shutil.copytree(whole, copy)
            if again[0] == "repair":
                BREAKS["a byte of the second data file is flipped"](copy)
            existing = contents(copy)
            if not killed(note, change, *again):
                break
            kills += 1
            assert has_commit(copy) or not existing - contents(copy.parent), (
                f"{again[0]}, killed at {note.read_text()}"
            )
            called(*again)
            called("verify", copy)
            numbers = numbers_of(copy)
            assert list(range(len(numbers))) == numbers
            expected = "complete" if again[0] == "collect" else "interrupted"
            assert expected == info_of(copy)["status"], f"{again[0]}, killed at {note.read_text()}"
            change += every
        assert change > 1, f"{again[0]} was never killed"
    return f"repair and overwrite were killed {kills} times"


EDITS: dict[str, tuple[str, ...]] = {
    "filter": ("--keep", "length >= 5"),
    "split": ("--parts", "train=0.7,test=0.3"),
    "convert": ("--next-observation", "--segment-bytes", "15000"),
    "relabel": ("--reward", "tests.soak.disk:reward"),
}


def reward(episode: Episode) -> Any:
    """Return other rewards."""
    return -episode.rewards


def kill_edits(folder: Path, *, every: int = 1) -> str:
    """Kill each command that edits before each change on disk, or one in `every`, and run it again."""
    folder.mkdir()
    base = ("collect", "--episodes", "120", "--sampler", "local", "--workers", "1", "--quiet", *SMALL)
    for seed in (5, 6):
        called(*base, "--seed", str(seed), "--output", folder / str(seed))
    source, kills, states = folder / "5", 0, Counter[str]()
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    edits: list[tuple[str | Path, ...]]
    edits = [(name, source, *more) for name, more in EDITS.items()]
    for edit in (*edits, ("merge", source, folder / "6")):
        whole, output, note = folder / f"{edit[0]}-whole", folder / edit[0], folder / "note"
        called(*edit, "--output", whole)
        parts = ("train", "test") if edit[0] == "split" else ("",)
        change = 1
        while killed(note, change, *edit, "--output", output):
            kills += 1
            for part in parts:
                states[status := info_of(output / part).get("status", "absent")] += 1
                what = f"{edit[0]}, killed at {note.read_text()}"
                assert status != "complete" or _same(whole / part, output / part), what
                assert status == "absent" or 0 == called("verify", output / part, code=None).code, what
            assert before == {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}, what
            called(*edit, "--output", output, "--overwrite")
            for part in parts:
                assert _same(whole / part, output / part), what
                called("verify", output / part)
            shutil.rmtree(output)
            change += every
        assert change > 1, f"{edit[0]} was never killed"
    return f"commands that edit were killed {kills} times: the outputs were {dict(states)}"


def _same(first: Path, second: Path) -> bool:
    return diff(load(first), load(second)) is None
