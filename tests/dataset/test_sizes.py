"""Claims of size in a stranger's dataset are refused before they take memory; ROLLOUT_MEMORY_LIMIT raises the limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.reader import load
from rollout_cli.errors import DatasetFormatError
from tests.helpers.damage import data
from tests.helpers.datasets import info_of
from tests.helpers.errors import raises
from tests.helpers.processes import called
from tests.helpers.thorough import usually

MOST_MB = 700
"""What a command may take: without such a dataset it is some 200."""
TEXT, ROWS = "x" * 2_000_000, 1_000

PEAK = """
import sys
from rollout_cli.cli.app import run
code = run(sys.argv[1:])
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(code, int(lines["VmHWM"].split()[0]) // 1000)
"""


def a_space(folder: Path) -> None:
    """A Box of a billion numbers, in the bounds of two."""
    info = info_of(folder)
    info["spaces"]["observation"] |= {"shape": [1_000_000_000], "low": 0.0, "high": 1.0}
    (folder / "meta" / "info.json").write_text(json.dumps(info))


def many_spaces(folder: Path) -> None:
    """Each is small enough."""
    info = info_of(folder)
    box = info["spaces"]["observation"] | {"shape": [1_000_000], "low": 0.0, "high": 1.0}
    info["spaces"]["observation"] = {"type": "Dict", "spaces": [[f"a{n}", box] for n in range(1_000)]}
    (folder / "meta" / "info.json").write_text(json.dumps(info))


def a_text_of_many_rows(folder: Path) -> None:
    """One string of 2 MB that a thousand rows repeat by its index."""
    path = folder / data(0)
    table = pq.ParquetFile(path).read()
    table = pa.concat_tables([table] * (ROWS // len(table) + 1)).slice(0, ROWS)
    texts = pa.DictionaryArray.from_arrays(np.zeros(ROWS, np.int8), [TEXT])
    table = table.append_column("env_info.note", texts)
    pq.write_table(table, path, compression="zstd", store_schema=False)


BOMBS: dict[str, Callable[[Path], None]] = {
    function.__name__: function for function in (a_space, many_spaces, a_text_of_many_rows)
}


@pytest.mark.parametrize("bomb", usually(BOMBS, lambda bomb: bomb == "a_space"))
def test_commands_refuse_what_is_too_large(tmp_path: Path, bomb: str) -> None:
    """In a line that names the file, and with little memory."""
    folder = tmp_path / "out"
    called("collect", "--episodes", "2", "--seed", "1", "--sampler", "local", "--quiet", "-o", folder)
    BOMBS[bomb](folder)
    export = ("export", folder, "--to", "hf", "-o", tmp_path / "copy")
    for words in (("head", folder, "--steps"), ("verify", folder), ("stats", folder), export):
        ran = subprocess.run(
            [sys.executable, "-c", PEAK, *map(str, words)], capture_output=True, text=True, check=True
        )
        code, peak_mb = map(int, ran.stdout.splitlines()[-1].split())
        # The statistics of a small dataset are read from stats.json, and no step is.
        is_refused = code == 6 or (code == 5 and f"{1 << 30:,}" in ran.stderr)
        assert is_refused or (words[0], bomb) == ("stats", "a_text_of_many_rows"), ran.stderr
        assert peak_mb < MOST_MB
    assert not (tmp_path / "copy").exists()


def test_load_refuses_a_space(tmp_path: Path) -> None:
    called(
        "collect", "--episodes", "1", "--seed", "1", "--sampler", "local", "--quiet", "-o", tmp_path / "out"
    )
    a_space(tmp_path / "out")
    with raises(DatasetFormatError, "unpacked-size", "info.json") as refused:
        load(tmp_path / "out")
    assert "ROLLOUT_MEMORY_LIMIT=64000000000" in refused.value.marked_hint


@pytest.mark.parametrize("limit", ["", "5000000000"])
def test_run_lengths_count_as_what_they_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A column of equal numbers takes some bytes in a file, and eight a row in memory."""
    monkeypatch.setenv("ROLLOUT_MEMORY_LIMIT", limit)
    path, rows = tmp_path / "a.parquet", 1 << 27
    with pq.ParquetWriter(path, pa.schema({"a": pa.int64()}), store_schema=False) as writer:
        for _ in range(16):
            writer.write_table(pa.table({"a": np.zeros(rows // 16, np.int64)}))
    assert path.stat().st_size < 1 << 20
    if limit:
        with open_parquet(path) as file:
            assert rows == file.metadata.num_rows
        return
    with raises(DatasetFormatError, "unpacked-size"), reading(path), open_parquet(path):
        pass


@pytest.mark.thorough
def test_a_large_file_may_be_large_in_memory(tmp_path: Path) -> None:
    """The limit is for files that unpack to over a hundred times their size: as an episode of images does."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.zeros(1 << 27, np.int64)}), path, use_dictionary=False, compression=None)
    with open_parquet(path) as file:
        assert 1 << 27 == file.metadata.num_rows
