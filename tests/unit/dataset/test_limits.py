"""A broken or hostile dataset ends in an error, with bounded memory: what files claim is checked before it is made."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.dataset import limits, load
from rollout_cli.dataset.limits import check_group, open_parquet
from rollout_cli.dataset.pages import page_headers
from rollout_cli.errors import DatasetFormatError, StorageError
from tests.support.chunks import episode
from tests.support.damage import DATA, EPISODES, INFO, set_json, set_values
from tests.support.datasets import write_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "out", [episode(number, 5) for number in range(4)])
    return tmp_path / "out"


def read_all(root: Path) -> Any:
    """Read a dataset as a user does."""
    return load(root).to_episode_batch()


def written(tmp_path: Path, table: pa.Table, **options: Any) -> Path:
    """Return a Parquet file of a table."""
    path = tmp_path / "file.parquet"
    pq.write_table(table, path, **options)
    return path


def checked(path: Path) -> bool:
    """Check the first row group of a file."""
    return check_group(path, open_parquet(path.parent, path), 0)


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"write_page_checksum": True, "version": "1.0"}])
@pytest.mark.parametrize("page_rows", [7, 10_000])
def test_pages_of_any_file_are_understood(tmp_path: Path, options: dict[str, Any], page_rows: int) -> None:
    """Dictionaries, statistics, nulls, lists, many pages: the headers' sizes add up to the footer's."""
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "number": rng.standard_normal(1000),
            "text": pa.array([None if n % 3 else f"text {n % 5}" for n in range(1000)]),
            "list": pa.array([[1.0, 2.0]] * 1000, pa.list_(pa.float32(), 2)),
            "flag": rng.random(1000) < 0.5,
        }
    )
    path = written(tmp_path, table, max_rows_per_page=page_rows, **options)
    assert ("write_page_checksum" in options) == checked(path)


def test_pages_of_the_second_version(tmp_path: Path) -> None:
    """Other writers make them; their headers are understood too."""
    path = written(tmp_path, pa.table({"a": list(range(1000))}), data_page_version="2.0", use_dictionary=False)
    assert not checked(path)


def test_a_bomb_of_texts(tmp_path: Path) -> None:
    """A dictionary makes one long text many, and deltas of texts even more: both are refused before they are read."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), pa.array(["x" * 500_000]))
    path = written(tmp_path, pa.table({"a": texts}), store_schema=False)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DatasetFormatError, match="bytes of memory"):
        checked(path)
    path = written(
        tmp_path, pa.table({"a": ["x"] * 10}), use_dictionary=False, column_encoding={"a": "DELTA_BYTE_ARRAY"}
    )
    with pytest.raises(DatasetFormatError, match="encoding 7"):
        checked(path)


def test_a_row_group_over_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is read."""
    monkeypatch.setattr(limits, "MAX_GROUP_BYTES", 100)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DatasetFormatError, match="over the limit of 100"):
        read_all(folder)


def test_a_page_that_claims_more_than_the_footer(tmp_path: Path) -> None:
    """Its header gives its size once it is decompressed, which a reader would set aside."""
    path = written(tmp_path, pa.table({"a": np.arange(100)}), use_dictionary=False, compression="zstd")
    data = bytearray(path.read_bytes())
    # After the magic: the page's type, then its size once it is decompressed, 807 bytes, as a number of two bytes.
    assert b"\x15\x00\x15\xce\x0c\x15" == data[4:10]
    data[8] |= 0x40
    path.write_bytes(bytes(data))
    with pytest.raises(DatasetFormatError, match="pages"):
        checked(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x15\x00",
        b"\x15" + b"\xff" * 20,
        b"\x1c" * 100,
        b"\x1f\x00",
        b"\x18\xff\xff\x03",
        b"\x15\x00\x15\x01\x15\x01\x00",
    ],
)
def test_page_headers_that_are_none(data: bytes) -> None:
    """They end in an error, without end or depth."""
    with pytest.raises(ValueError, match=r"page|header"):
        list(page_headers(io.BytesIO(data), 0, max(1, len(data))))


def test_rows_that_a_file_cannot_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each episode has bytes of its own."""
    monkeypatch.setattr(limits, "MAX_EPISODES_PER_BYTE", 0)
    with pytest.raises(DatasetFormatError, match="claims 4 rows"):
        load(folder)


@pytest.mark.parametrize(
    "text", ["[" * 10**6, '{"format": "rollout", "deep": ' + "[" * 300 + "]" * 300 + "}", "9" * 10**5]
)
def test_an_info_of_any_depth(folder: Path, text: str) -> None:
    """It is not followed to its end."""
    (folder / INFO).write_text(text)
    with pytest.raises(DatasetFormatError, match="not valid JSON"):
        load(folder)


def test_an_endless_info(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the limit is read."""
    monkeypatch.setattr(limits, "MAX_JSON_BYTES", 100)
    with pytest.raises(DatasetFormatError, match="more than 100 bytes"):
        load(folder)


@pytest.mark.parametrize("shape", [[10**12], [10**5, 10**5], [-1], ["a"]])
def test_spaces_of_any_size(folder: Path, shape: list[Any]) -> None:
    """Their bounds would be arrays."""
    spaces = json.loads((folder / INFO).read_text())["spaces"]
    spaces["observation"] |= {"shape": shape, "low": 0.0, "high": 1.0}
    set_json(folder / INFO, spaces=spaces)
    with pytest.raises(DatasetFormatError, match="space of the shape"):
        load(folder)


@pytest.mark.parametrize("file", [DATA, EPISODES, INFO])
def test_links_that_lead_out(folder: Path, tmp_path: Path, file: str) -> None:
    """They are not followed; those within the dataset are."""
    shutil.move(folder / file, folder / "inside")
    (folder / file).symlink_to(folder / "inside")
    assert 4 == len(read_all(folder).lengths)
    (folder / file).unlink()
    shutil.move(folder / "inside", tmp_path / "outside")
    (folder / file).symlink_to(tmp_path / "outside")
    with pytest.raises(DatasetFormatError, match="leads out of the dataset"):
        read_all(folder)


@pytest.mark.parametrize("file", [DATA, EPISODES, INFO])
def test_links_that_lead_round_in_a_circle(folder: Path, file: str) -> None:
    """They can be read as little as a file that is not there."""
    (folder / file).unlink()
    (folder / file).symlink_to(folder / file)
    with pytest.raises(StorageError, match=r"cannot read .*: .*symbolic links"):
        read_all(folder)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("length", 0, "states rows"),
        ("length", -3, "states rows"),
        ("data_row_index", -1, "states rows"),
        ("data_chunk_index", -1, "is missing"),
        ("length", None, "without a value"),
    ],
)
def test_episodes_that_name_impossible_rows(folder: Path, column: str, value: Any, message: str) -> None:
    """They are refused, not taken for others."""
    set_values(folder / EPISODES, column, 2, [value])
    with pytest.raises(DatasetFormatError, match=message):
        load(folder)[2].batch  # noqa: B018


def test_a_deep_info_of_a_step(folder: Path) -> None:
    """JSON is read with an end."""
    set_values(folder / DATA, "env_info_extra", 3, ["[" * 10**5])
    with pytest.raises(DatasetFormatError, match="does not hold what it says"):
        read_all(folder)
