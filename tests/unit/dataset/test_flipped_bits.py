"""One bit flipped anywhere: verify reports it, or what the file holds is unchanged.

Not covered is what nothing else repeats or sums up: the keys of info.json that tell how the dataset was made (times,
versions, options), and README.md.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset.verification.verify import verify
from rollout_cli.errors import StorageError
from tests.support.chunks import episode
from tests.support.damage import DATA, EPISODES, STATS, flip, page_bytes
from tests.support.datasets import write_dataset


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one file each."""
    path = tmp_path_factory.mktemp("flipped") / "out"
    episodes = [episode(n, 5 + n, env_info=lambda n, s: {"x": s, **({"odd": [n]} if s % 2 else {})}) for n in range(6)]
    write_dataset(path, episodes)
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def contents(path: Path) -> Any:
    """Return all that a reader gets from a file: rows, types and the footer's keys."""
    file = pq.ParquetFile(path)
    footer = {key: value for key, value in file.metadata.metadata.items() if key != b"ARROW:schema"}
    table = file.read()
    return table.to_pydict(), table.schema, table.schema.metadata, footer


def is_reported(root: Path) -> bool:
    """Return whether verify finds a fault, or no dataset."""
    try:
        return bool(verify(root).faults)
    except StorageError:
        return True


@pytest.mark.parametrize("file", [DATA, EPISODES])
@pytest.mark.parametrize("part", ["all", "footer"])
def test_any_bit(folder: Path, file: str, part: str) -> None:
    """At seeded places of the file, and of its footer alone, which has no checksum."""
    path, rng = folder / file, random.Random(f"{file} {part}")
    good, expected = path.read_bytes(), contents(path)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    reported = 0
    for _ in range(60):
        at = rng.randrange(footer if part == "footer" else 0, len(good))
        flip(path, at, rng.randrange(8))
        if is_reported(folder):
            reported += 1
        else:
            assert expected == contents(path), f"byte {at} of {file}"
        path.write_bytes(good)
    assert reported > 10


@pytest.mark.parametrize("file", [DATA, EPISODES])
def test_any_bit_of_a_page(folder: Path, file: str) -> None:
    """The checksum finds each, in every column, and the file and its episodes are named."""
    path, rng = folder / file, random.Random(0)
    good, n_episodes = path.read_bytes(), 6
    for name in pq.ParquetFile(path).schema_arrow.names:
        pages = page_bytes(path, name)
        flip(path, pages[-1 - rng.randrange(min(4, len(pages)))], rng.randrange(8))
        faults = [fault for fault in verify(folder).faults if fault.file == file]
        assert faults, f"column {name}"
        assert "CRC" in faults[0].problem or "cannot be read" in faults[0].problem or "broken" in faults[0].problem
        if file == DATA:
            assert n_episodes == faults[0].n_episodes
        path.write_bytes(good)


def test_any_bit_of_the_statistics(folder: Path) -> None:
    """Each digit is held against the steps."""
    path, rng = folder / STATS, random.Random(0)
    good = path.read_bytes()
    digits = [at for at, byte in enumerate(good) if chr(byte) in "123456789"]
    reported = 0
    for at in rng.sample(digits, 30):
        flip(path, at)
        reported += is_reported(folder)
        path.write_bytes(good)
    # The last digits of means are below the tolerance for another machine's order of adding up.
    assert reported > 10
