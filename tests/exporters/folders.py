"""Reading the formats that are folders, by pyarrow, numpy, msgpack and Pillow alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.exporters.readers import Array, Leaves, Read, parts, shifted


def torchrl(path: Path) -> Iterator[Read]:
    now = _tensors(path)
    after = _tensors(path / "next")
    assert (after["done"] == (after["terminated"] | after["truncated"])).all()
    assert now.keys() == {name for name in now if name.split(".")[0] in {"observation", "action", "episode"}}
    for at, rows in enumerate(parts(after["done"][:, 0])):
        assert (now["episode"][rows] == at).all()
        ends = (after[name][rows.stop - 1, 0] for name in ("terminated", "truncated"))
        columns = {name: values[rows] for name, values in now.items()}
        following = {name: values[rows] for name, values in after.items()}
        yield Read(
            _below("observation", columns),
            _below("observation", following),
            _below("action", columns),
            following["reward"][:, 0],
            *ends,
        )


def _tensors(folder: Path, path: str = "") -> Leaves:
    """Read a TensorDict: `meta.json` names its tensors, and the folders of nested ones but `next`."""
    out: Leaves = {}
    for name, entry in json.loads((folder / "meta.json").read_text()).items():
        if name in {"shape", "device", "_type"} or (not path and name == "next"):
            continue
        if entry.get("type") == "TensorDict":
            out |= _tensors(folder / name, f"{path}{name}.")
        else:
            values = np.fromfile(folder / f"{name}.memmap", entry["dtype"].removeprefix("torch."))
            out[f"{path}{name}"] = values.reshape(entry["shape"])
    return out


def zarr(path: Path) -> Iterator[Read]:
    arrays = {file.parent.name: _zarr_array(file.parent) for file in path.glob("*/*/.zarray")}
    assert {"zarr_format": 2} == json.loads((path / "data" / ".zgroup").read_text())
    stops = arrays["episode_ends"]
    for at, (start, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True)):
        columns = {name: values[start:stop] for name, values in arrays.items()}
        last = {name: values[at : at + 1] for name, values in _below("last_obs", arrays).items()}
        seen = {name: np.concatenate([each, last[name]]) for name, each in _below("obs", columns).items()}
        ends = columns["terminated"][-1], columns["truncated"][-1]
        assert not columns["terminated"][:-1].any()
        yield Read(*shifted(seen), _below("action", columns), columns["reward"], *ends)


def _zarr_array(folder: Path) -> Array:
    about = json.loads((folder / ".zarray").read_text())
    shape, chunk = about["shape"], about["chunks"]
    assert chunk[1:] == shape[1:]
    tail = ["0"] * (len(shape) - 1)
    files = [folder / ".".join([str(at), *tail]) for at in range(-(-shape[0] // chunk[0]))]
    assert {file.name for file in files} | {".zarray"} == {file.name for file in folder.iterdir()}
    chunks = [np.fromfile(file, about["dtype"]).reshape(chunk) for file in files]
    values: Array = np.concatenate(chunks)[: shape[0]]
    return values


def imitation(path: Path) -> Iterator[Read]:
    (file,) = json.loads((path / "state.json").read_text())["_data_files"]
    with pa.OSFile(str(path / file["filename"])) as stream:
        table = pa.ipc.open_stream(stream).read_all()
    for row in range(table.num_rows):
        columns = {name: table[name][row] for name in table.column_names}
        assert columns["terminal"].as_py() is True
        ends = json.loads(columns["infos"].as_py()[-1])
        assert set(columns["infos"].as_py()[:-1]) <= {"{}"}
        seen, actions, rewards = (_array(columns[name].values) for name in ("obs", "acts", "rews"))
        yield Read(*shifted({"": seen}), {"": actions}, rewards, ends["terminated"], ends["truncated"])


def rllib(path: Path) -> Iterator[Read]:
    for item in pq.read_table(path)["item"].to_pylist():
        state = msgpack.unpackb(item, object_hook=msgpack_numpy.decode)
        seen, actions = (_named(state[name]["data"]) for name in ("observations", "actions"))
        rewards = state["rewards"]["data"]
        assert state["t"] == len(rewards) == len(state["infos"]["data"]) - 1
        yield Read(*shifted(seen), actions, rewards, state["is_terminated"], state["is_truncated"])


def _named(tree: Any, path: str = "") -> Leaves:
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {name: leaf for key, child in items for name, leaf in _named(child, f"{path}.{key}").items()}
    return {path.removeprefix("."): tree.astype(object) if tree.dtype.kind == "U" else tree}


def hf(path: Path) -> Iterator[Read]:
    steps, ends = (_columns(path / folder, "huggingface") for folder in ("data", "episodes"))
    assert steps["step"].tolist() == [step for length in ends["length"] for step in range(length)]
    for at, rows in enumerate(parts(np.diff(steps["episode_id"], append=-1) != 0)):
        columns = {name: values[rows] for name, values in steps.items()}
        last = {name: each[at : at + 1] for name, each in _below("last_observation", ends).items()}
        seen = {
            name: np.concatenate([each, last[name]]) for name, each in _below("observation", columns).items()
        }
        flags = columns["terminated"][-1], columns["truncated"][-1]
        assert flags == (ends["terminated"][at], ends["truncated"][at])
        assert ends["return"][at] == pytest.approx(columns["reward"].sum())
        yield Read(*shifted(seen), _below("action", columns), columns["reward"], *flags)


def lerobot(path: Path) -> Iterator[Read]:
    info = json.loads((path / "meta" / "info.json").read_text())
    steps, episodes = _columns(path / "data"), pq.read_table(path / "meta" / "episodes").to_pydict()
    assert steps.keys() == info["features"].keys()
    assert steps["index"].tolist() == list(range(info["total_frames"]))
    for at in range(info["total_episodes"]):
        rows = slice(episodes["dataset_from_index"][at], episodes["dataset_to_index"][at])
        columns = {name: values[rows] for name, values in steps.items()}
        assert (columns["episode_index"] == at).all()
        np.testing.assert_allclose(columns["timestamp"], columns["frame_index"] / info["fps"], rtol=1e-6)
        seen = {
            "" if name in {"state", "image"} else name: values
            for name, values in _below("observation", columns).items()
        }
        assert columns["next.done"].tolist() == [False] * (len(columns["next.done"]) - 1) + [True]
        flags = columns["next.terminated"][-1], columns["next.truncated"][-1]
        yield Read(seen, {}, _below("action", columns), columns["next.reward"], *flags)


def _columns(folder: Path, described_by: str = "") -> Leaves:
    table = pa.concat_tables(pq.read_table(file) for file in sorted(folder.rglob("*.parquet")))
    if described_by:
        features = json.loads(table.schema.metadata[described_by.encode()])["info"]["features"]
        assert list(features) == table.column_names
    return {name: _array(table[name].combine_chunks()) for name in table.column_names}


def _array(column: pa.Array) -> Array:
    if pa.types.is_string(column.type):
        return np.array([*column.to_pylist(), None], object)[:-1]
    if pa.types.is_struct(column.type):
        return np.array([np.asarray(Image.open(io.BytesIO(each["bytes"]))) for each in column.to_pylist()])
    shape = [len(column)]
    while pa.types.is_fixed_size_list(column.type):
        shape.append(column.type.list_size)
        column = column.flatten()
    return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(shape)


def _below(name: str, leaves: Leaves) -> Leaves:
    """Return the leaves of `name` and those of the paths below it, without that name."""
    return {
        key.removeprefix(name).removeprefix("."): values
        for key, values in leaves.items()
        if f"{key}.".startswith(f"{name}.")
    }


FOLDER_READERS: Mapping[str, Callable[[Path], Iterator[Read]]] = {
    each.__name__: each for each in (torchrl, zarr, imitation, rllib, hf, lerobot)
}
