"""What is special about the formats that are folders: several files, images, names, and what they refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import map_tree, space_leaves
from rollout_cli.errors import UnsupportedSpaceError, UsageError
from rollout_cli.exporters import format, parquet, rllib, zarr  # noqa: A004 - the module
from rollout_cli.exporters.export import export
from rollout_cli.exporters.parquet import is_image
from tests.exporters.cases import BOX, CHOICE, SPECS, MemoryDataset, batch_of, export_to
from tests.exporters.folders import FOLDER_READERS
from tests.helpers.errors import raises

DICT = EnvSpec(spaces.Dict({"camera": spaces.Box(0, 255, (4, 5, 3), np.uint8), "arm": BOX}), CHOICE)


def image_space(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize("name", FOLDER_READERS)
def test_many_pieces(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, files and chunks of one episode or a few rows hold what large ones do."""
    dataset = MemoryDataset(batch_of(SPECS["float64"], [4, 1, 6, 3, 9]))
    whole = list(FOLDER_READERS[name](export_to(tmp_path / "whole", dataset, name).path))
    monkeypatch.setattr(format, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(parquet, "_MOST_BYTES", 1)
    monkeypatch.setattr(rllib, "_ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(zarr, "_CHUNK_BYTES", 100)
    path = export_to(tmp_path / "pieces", dataset, name).path
    counts = {
        "hf": ("data/*.parquet", 5),
        "lerobot": ("data/*/*.parquet", 5),
        "rllib": ("*.parquet", 5),
        "zarr": ("data/obs/*.0", 6),
    }
    if name in counts:
        pattern, count = counts[name]
        assert len([file for file in path.glob(pattern) if not file.name.startswith(".")]) == count
    for expected, actual in zip(whole, FOLDER_READERS[name](path), strict=True):
        for field in ("observations", "next_observations", "actions", "rewards", "terminated", "truncated"):
            np.testing.assert_equal(getattr(actual, field), getattr(expected, field))


def test_lerobot_files_of_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of episodes names the file of each."""
    monkeypatch.setattr(format, "_BLOCK_BYTES", 5 * 64)
    monkeypatch.setattr(parquet, "_MOST_BYTES", 1)
    dataset = MemoryDataset(batch_of(SPECS["box"], [4, 1, 6, 3]))
    path = export_to(tmp_path, dataset, "lerobot").path
    episodes = pq.read_table(path / "meta" / "episodes").to_pydict()
    assert episodes["data/file_index"] == [0, 0, 1, 2]
    for episode, file in enumerate(episodes["data/file_index"]):
        steps = pq.read_table(path / "data" / "chunk-000" / f"file-{file:03}.parquet")
        assert episode in steps["episode_index"].to_pylist()


def test_lerobot_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of all steps, however these were cut; of images for each channel, from 0 to 1."""
    monkeypatch.setattr(format, "_BLOCK_BYTES", 1)
    batch = batch_of(DICT, [150, 30])
    path = export_to(tmp_path, MemoryDataset(batch), "lerobot").path
    stats = json.loads((path / "meta" / "stats.json").read_text())
    for name, values in (("observation.arm", batch.observations["arm"]), ("action", batch.actions[:, None])):
        for kind in ("min", "max", "mean", "std"):
            expected = getattr(values.astype(np.float64), kind)(axis=0)
            np.testing.assert_allclose(stats[name][kind], expected, rtol=1e-9, err_msg=kind)
        assert stats[name]["count"] == [180]
    camera = batch.observations["camera"][[0, 100, 150]] / 255
    np.testing.assert_allclose(
        stats["observation.camera"]["mean"], camera.mean(axis=(0, 1, 2))[:, None, None], rtol=1e-9
    )


@pytest.mark.parametrize(("recorded", "options", "fps"), [(None, {}, 30), (20, {}, 20), (20, {"fps": 5}, 5)])
def test_lerobot_fps(recorded: Any, options: dict[str, Any], fps: int, tmp_path: Path) -> None:
    """It is the option's, or else the environment's, and decides the timestamps."""
    info = {"sources": [{"env": {"render_fps": recorded}, "env_source": {"spec": "Env-v0"}}]}
    dataset = MemoryDataset(batch_of(SPECS["box"], [4]), info)
    path = export(dataset, "lerobot", tmp_path / "out", **options).path
    assert json.loads((path / "meta" / "info.json").read_text())["fps"] == fps
    stamps = pq.read_table(path / "data")["timestamp"].to_numpy()
    np.testing.assert_array_equal(stamps, (np.arange(4) / fps).astype(np.float32))
    assert pq.read_table(path / "meta" / "tasks.parquet")["task"].to_pylist() == ["Env-v0"]


@pytest.mark.parametrize("name", ["lerobot", "hf"])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 4)])
def test_images(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Every shape of pixels that PNG has is stored as PNG, losslessly; `test_format` has three channels."""
    batch = batch_of(EnvSpec(image_space(*shape), CHOICE), [3])
    (read,) = FOLDER_READERS[name](export_to(tmp_path, MemoryDataset(batch), name).path)
    pixels = batch.observations[..., 0] if shape[2:] == (1,) else batch.observations
    np.testing.assert_array_equal(pixels, read.observations[""], strict=True)


def test_what_is_an_image() -> None:
    """Frames with channels first, and floats, are plain numbers."""
    assert is_image(space_leaves(image_space(4, 5, 3))[0])
    for space in (image_space(3, 4, 5), image_space(0, 5), image_space(6), spaces.Box(0, 1, (4, 5, 3))):
        assert not is_image(space_leaves(space)[0])


def test_cards(tmp_path: Path) -> None:
    """The card names the environment, and what is not in the files."""
    dataset = MemoryDataset(batch_of(SPECS["float64"], [3]))
    path = export_to(tmp_path, dataset, "lerobot").path
    card = (path / "README.md").read_text()
    assert "1 episodes, 3 steps" in card
    assert "Not in these files: the observation after each episode's last step" in card


@pytest.mark.parametrize("keys", [[0], ["a", 1]])
def test_rllib_reads_no_keys_that_are_integers(keys: list[Any], tmp_path: Path) -> None:
    """msgpack, as it calls it, refuses them when it reads."""
    space = spaces.Tuple([spaces.Dict([(key, BOX) for key in keys])])
    dataset = MemoryDataset(batch_of(EnvSpec(space, CHOICE), [2]))
    with raises(UnsupportedSpaceError, "format-key"):
        export_to(tmp_path / "out", dataset, "rllib")
    (read,) = FOLDER_READERS["rllib"](export_to(tmp_path / "flat", dataset, "rllib", flatten=True).path)
    assert (2, 4) == read.observations[""][:, :4].shape


@pytest.mark.parametrize(
    ("name", "key"), [("lerobot", "a/b"), ("torchrl", "a/b"), ("torchrl", "shape"), ("zarr", "..")]
)
def test_keys_that_are_no_names(name: str, key: str, tmp_path: Path) -> None:
    """A key that would be a folder, or another thing in a file, is refused, and nothing is left."""
    spec = EnvSpec(spaces.Dict({key: BOX}), CHOICE)
    with raises(UnsupportedSpaceError, "format-key", name, f"'{key}'") as refused:
        export_to(tmp_path / "out", MemoryDataset(batch_of(spec, [2])), name)
    assert "flatten" in refused.value.marked_hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["lerobot", "torchrl", "zarr"])
def test_keys_that_are_equal_as_texts(name: str, tmp_path: Path) -> None:
    """One would be written over the other: they are refused."""
    spec = EnvSpec(spaces.Dict({1: BOX, "1": BOX}), CHOICE)  # type: ignore[dict-item]
    with raises(UnsupportedSpaceError, "format-key", name) as refused:
        export_to(tmp_path / "out", MemoryDataset(batch_of(spec, [2])), name)
    assert "flatten" in refused.value.marked_hint
    assert not (tmp_path / "out").exists()


def test_vectors_without_a_number(tmp_path: Path) -> None:
    """Each step has an empty list."""
    batch = batch_of(EnvSpec(spaces.Box(0, 1, (0,)), CHOICE), [3])
    (read,) = FOLDER_READERS["imitation"](export_to(tmp_path, MemoryDataset(batch), "imitation").path)
    assert (3, 0) == np.shape(read.observations[""])


def test_what_lerobot_refuses(tmp_path: Path) -> None:
    """Values of six axes, and steps of no duration."""
    six = EnvSpec(spaces.Box(0, 1, (1, 1, 1, 1, 1, 2)), CHOICE)
    with raises(UnsupportedSpaceError, "format-space"):
        export_to(tmp_path, MemoryDataset(batch_of(six, [2])), "lerobot")
    with raises(UsageError, "format-option"):
        export(MemoryDataset(batch_of(SPECS["box"], [2])), "lerobot", tmp_path / "out", fps=0)


def test_an_episode_too_large_for_rllib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by name: one value of a binary column has 2 GiB at most."""
    monkeypatch.setattr(rllib, "_MOST_BYTES", 5_000)
    with raises(UsageError, "episode-too-large"):
        export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"], [2, 400])), "rllib")


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("rllib", "msgpack_numpy", "msgpack-numpy"), ("rllib", "msgpack", "msgpack"), ("hf", "PIL", "pillow")],
)
def test_a_missing_package(
    name: str, module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named as pip knows it, and nothing is left."""
    monkeypatch.setitem(sys.modules, module, None)
    with raises(UsageError, "package-missing", package) as refused:
        export_to(tmp_path / "out", MemoryDataset(batch_of(SPECS["image"], [2])), name)
    assert refused.value.marked_hint == f"pip install {package}"
    assert not (tmp_path / "out").exists()


def test_torchrl_metadata(tmp_path: Path) -> None:
    """A nested space is a TensorDict that its parent names, with the rows of all."""
    batch = batch_of(DICT, [4, 2])
    path = export_to(tmp_path, MemoryDataset(batch), "torchrl").path
    nodes = {
        str(file.parent.relative_to(path)): json.loads(file.read_text()) for file in path.rglob("*.json")
    }
    assert nodes.keys() == {".", "observation", "next", "next/observation"}
    assert all(node["shape"] == [6] for node in nodes.values())
    assert nodes["."]["observation"] == nodes["next"]["observation"] == {"type": "TensorDict"}
    assert nodes["observation"]["camera"]["dtype"] == "torch.uint8"
    sizes = map_tree(lambda leaf: leaf.nbytes, batch.observations)
    assert (path / "observation" / "camera.memmap").stat().st_size == sizes["camera"]
