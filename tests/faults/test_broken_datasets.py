"""Datasets that are broken, and `repair` and `--overwrite` that are killed: nothing is lost, and nothing is hidden."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.breaks import BREAKS, SMALL, contents, killed
from tests.helpers.datasets import data_hashes, info_of, numbers_of, source_of
from tests.helpers.processes import called
from tests.helpers.thorough import usually

EPISODES = 200
FIXED = ("--env", "tests.helpers.envs:FaultyEnv", "--workers", "1", "--sampler", "local", "--quiet", *SMALL)
AMOUNT = ("collect", "--episodes", str(EPISODES))
UNSEEN = "a byte of the second data file is flipped"
"""`--resume` reads the last segment alone; `verify` reads all of them."""
LAST = ("the last segment is missing", "the last episodes file is missing", "the last data file is cut short")
RESUMED = (*LAST, "stats.json is a FIFO", UNSEEN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several segments."""
    output = tmp_path_factory.mktemp("whole") / "out"
    called(*AMOUNT, *FIXED, "--seed", "5", "--output", output)
    assert len(data_hashes(output)) >= 3
    return output


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))


def check_prefix(path: Path) -> None:
    """Whatever is left verifies, is a prefix, and claims no more than it has."""
    numbers = numbers_of(path)
    assert list(range(len(numbers))) == numbers
    assert len(numbers) == info_of(path)["episodes"]
    assert len(numbers) == EPISODES or info_of(path)["status"] == "interrupted"
    called("verify", path)


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_is_reported_and_repaired(copy: Path, name: str) -> None:
    """`verify` fails, no command hangs or is at fault itself, and `repair` keeps or moves every file that there is."""
    BREAKS[name](copy)
    existing = contents(copy.parent)
    assert called("verify", copy, code=None).code in (5, 6)
    assert called("info", copy, code=None).code in (0, 5, 6)
    assert called("repair", copy, "--dry-run", code=None).code in (0, 5, 6)
    repaired = called("repair", copy, code=None)
    assert repaired.code in (0, 5, 6), repaired.said
    assert not existing - contents(copy.parent), "repair has deleted files"
    if repaired.code == 0:
        check_prefix(copy)


@pytest.mark.parametrize("name", BREAKS)
def test_a_resumed_run_completes_it_or_refuses(copy: Path, whole: Path, name: str) -> None:
    """`--resume` ends with the bytes of the whole dataset, or exit code 5; what it does not read stays as it is."""
    BREAKS[name](copy)
    existing = contents(copy.parent)
    ran = called("collect", "--resume", "--output", copy, "--episodes", str(EPISODES), code=None)
    assert not existing - contents(copy.parent), "resume has deleted files"
    assert ran.code == (0 if name in RESUMED else 5), ran.said
    if ran.code == 0:
        assert (name != UNSEEN) == (data_hashes(whole) == data_hashes(copy))


@pytest.mark.parametrize("change", usually([2, 5, 9, 14], lambda change: change == 5))
def test_a_repair_that_is_killed_is_repaired(copy: Path, change: int) -> None:
    """Whenever it was killed, a second repair ends as the first would have."""
    BREAKS[UNSEEN](copy)
    existing = contents(copy.parent)
    assert killed(copy.parent / "note", change, "repair", copy)
    called("repair", copy)
    check_prefix(copy)
    assert not existing - contents(copy.parent)


@pytest.mark.parametrize("change", usually([2, 5, 9, 14], lambda change: change == 9))
def test_an_overwrite_that_is_killed_loses_nothing(copy: Path, change: int) -> None:
    """The old dataset exists until the new one has a commit; done again, it ends as if it had not been killed."""
    existing = contents(copy)
    again: list[str | Path] = [*AMOUNT, *FIXED, "--seed", "6", "--overwrite", "--output", copy]
    assert killed(copy.parent / "note", change, *again)
    assert not existing - contents(copy.parent), "the old dataset is gone"
    called(*again)
    called("verify", copy)
    assert (EPISODES, 6) == (info_of(copy)["episodes"], source_of(copy)["root_seed"])
    assert not existing & contents(copy.parent), "the old dataset was kept for ever"
