"""Arrow arrays from numpy's memory and from texts are what pyarrow's own conversions give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollout_cli.dataset import arrays
from rollout_cli.dataset.arrays import number_array, numbers_of, present, text_array
from rollout_cli.errors import UnsupportedSpaceError

TYPES = ["bool", "int8", "uint8", "int16", "int32", ">i4", "uint64", "int64", "float16", "float32", "float64", ">f8"]
columns = st.sampled_from(TYPES).flatmap(lambda kind: hnp.arrays(kind, st.integers(0, 40)))


@given(columns, st.integers(0, 40), st.integers(1, 3))
def test_numbers(values: np.ndarray[tuple[int], np.dtype[np.generic]], start: int, stride: int) -> None:
    """Of every type, in either order of bytes, from memory with gaps, in slices that do not begin with a byte."""
    values = values[::stride]
    native = values.astype(values.dtype.newbyteorder("="))
    column = number_array(values)
    column.validate(full=True)
    assert pa.array(native).type == column.type
    sliced = column.slice(start)
    assert native[start:].dtype == numbers_of(sliced).dtype
    assert native[start:].tobytes() == numbers_of(sliced).tobytes()


@given(columns, st.data())
def test_numbers_that_are_missing(values: np.ndarray[tuple[int], np.dtype[np.generic]], data: st.DataObject) -> None:
    """They are null, and the others are what they were."""
    missing = data.draw(hnp.arrays(bool, len(values)))
    native = values.astype(values.dtype.newbyteorder("="))
    column = number_array(values, missing)
    column.validate(full=True)
    assert int(missing.sum()) == column.null_count
    assert native[~missing].tobytes() == numbers_of(column.drop_null()).tobytes()
    start = data.draw(st.integers(0, len(values)))
    assert missing[start:].tolist() == (~present(column.slice(start))).tolist()


@given(st.lists(st.none() | st.text(max_size=5)))
def test_texts(texts: list[str | None]) -> None:
    """Of letters of one byte and of more, with and without nulls, empty ones too."""
    column = text_array(texts)
    column.validate(full=True)
    assert pa.array(texts, pa.string()) == column


def test_texts_that_no_column_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets would wrap around; the error says so instead."""
    monkeypatch.setattr(arrays, "_MOST_TEXT_BYTES", 5)
    assert ["ab", "çd"] == text_array(["ab", "çd"]).to_pylist()
    with pytest.raises(UnsupportedSpaceError, match="come to 6 bytes"):
        text_array(["ab", "çd", "e"])


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from gymnasium import spaces
from rollout_cli.dataset import DatasetWriter
from rollout_cli.episode_batch import EnvSpec
from tests.support.chunks import episode

observation = {"x": spaces.Box(-1, 1, (2, 3)), "t": spaces.Text(4), "bits": spaces.MultiBinary(3)}
spec = EnvSpec(spaces.Dict(observation), spaces.Discrete(3))
infos = [{"v": np.ones(3), "flag": True, "text": "a", "list": [1]}, {"n": 1}, {}]
with DatasetWriter(Path(sys.argv[1]), env_spec=spec, root_seed=0) as writer:
    for number in range(200):
        writer.write(episode(number, 9, spec=spec, env_info=lambda n, s: infos[(n + s) % 3]))
    writer.close(status="complete")
print(*({"pandas", "pyarrow.compute"} & set(sys.modules)))
"""


def test_writing_imports_no_pandas(tmp_path: Path) -> None:
    """Nor pyarrow.compute: either takes longer than a short run's whole dataset."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "\n" == done.stdout
