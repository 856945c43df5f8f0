"""No file of a dataset holds a pickle, whatever policies and environments give."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import pickle
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.projects import project, write_module
from tests.support.runs import run

__all__ = ["project"]

OBJECTS = """
    import fractions
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    class Mine:
        pass

    THINGS = {"object": Mine(), "class": Mine, "function": lambda: 1, "fraction": fractions.Fraction(1, 3), "set": {1},
              "bytes": b"abc", "complex": 1j, "nested": {"object": Mine()}, "list": [Mine()]}

    class Giving(CartPoleEnv):
        def reset(self, **options):
            return super().reset(**options)[0], dict(THINGS)
        def step(self, action):
            return *super().step(action)[:4], dict(THINGS)

    class Policy:
        def get_action(self, observation):
            return 0, dict(THINGS)
"""
BEGINNING = re.compile(rb"\x80[\x02-\x05]")


def is_pickle(data: bytes) -> bool:
    try:
        return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(data))
    except ValueError:
        return False


def holds_pickle(value: bytes | str) -> bool:
    """Return whether a pickle begins somewhere in the value, or is the value itself in base64."""
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    decoded = b""
    with contextlib.suppress(binascii.Error):
        decoded = base64.b64decode(data, validate=True)
    return any(is_pickle(text[at.start() :]) for text in (data, decoded) for at in BEGINNING.finditer(text))


def texts(value: Any) -> Iterator[bytes | str]:
    """Yield all texts and bytes in nested plain values."""
    if isinstance(value, bytes | str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def texts_of_file(path: Path) -> Iterator[bytes | str]:
    """Yield what may hold a pickle in one file of a dataset: numbers cannot."""
    if path.suffix != ".parquet":
        yield path.read_bytes()
        yield from texts(json.loads(path.read_text()) if path.suffix == ".json" else [])
        return
    table = pq.read_table(path)
    for key, value in (table.schema.metadata or {}).items():
        yield from (key, value)
        yield from texts(json.loads(value) if value.startswith(b"{") else [])
    for column in table.columns:
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
            yield from (value for value in column.unique().to_pylist() if value is not None)


def pickles_in(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert files
    return [path for path in files if any(map(holds_pickle, texts_of_file(path)))]


@pytest.mark.parametrize("policy", ["giving:Policy", "policy.pkl"])
def test_a_dataset_holds_no_pickle(project: Path, policy: str) -> None:
    """Objects among the infos are left out or written as text, and the policy's bytes stay where they are."""
    write_module(project, "giving", OBJECTS)
    (project / "policy.pkl").write_bytes(cloudpickle.dumps(lambda observation: 1))
    dataset = run(project / "out", env="giving:Giving", policy=policy, episodes=None, timesteps=50, sampler="local")
    assert dataset.info["dropped_infos"]
    assert [] == pickles_in(project / "out")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_the_search_finds_pickles(tmp_path: Path, protocol: int) -> None:
    """In a column, in a footer and in JSON, as bytes and as base64."""
    data = pickle.dumps(gymnasium.spaces.Box(0, 1, (2,), np.float32), protocol)
    text = base64.b64encode(data).decode()
    table = pa.table({"a": pa.array([b"x" + data])})
    pq.write_table(table, tmp_path / "column.parquet")
    pq.write_table(pa.table({"a": [text]}), tmp_path / "text.parquet")
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"spec": data}), tmp_path / "footer.parquet")
    (tmp_path / "info.json").write_text(json.dumps({"a": [{"b": text}]}))
    (tmp_path / "README.md").write_bytes(b"# Title\n" + data)
    pq.write_table(pa.table({"a": ["no", "N."]}), tmp_path / "none.parquet")
    found = {path.name for path in pickles_in(tmp_path)}
    assert {"column.parquet", "text.parquet", "footer.parquet", "info.json", "README.md"} == found
