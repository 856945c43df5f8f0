"""Images of LeRobot's Parquet files: the pixels come back, and a hostile image is one error."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from PIL import Image

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import DatasetFormatError, UsageError
from rollout_cli.importers.load import import_dataset
from tests.exporters.cases import BOX, SPECS, MemoryDataset, batch_of, export_to, place_of
from tests.helpers.datasets import source_of
from tests.helpers.errors import raises
from tests.importers.test_import import assert_equal, imported

CAMERA = spaces.Box(0, 255, (8, 6, 3), np.uint8)


@pytest.mark.parametrize("name", ["image", "gray", "cameras"])
def test_lerobot_images_come_back(tmp_path: Path, name: str) -> None:
    """Under the names of their cameras; the last one of an episode is black."""
    gray = spaces.Box(0, 255, (8, 6, 1), np.uint8)
    cameras = spaces.Dict({"images.top": CAMERA, "images.wrist": gray, "state": BOX})
    space = {"image": CAMERA, "gray": gray, "cameras": cameras}[name]
    exported, back = imported(tmp_path, "lerobot", EnvSpec(space, SPECS["box"].action_space))
    assert_equal(exported.observations, back.observations)
    if name == "cameras":
        assert cameras.keys() == back.last_observations.keys()
        assert np.isnan(back.last_observations["state"]).all()
        back = back.last_observations["images.top"]
        unknown = source_of(tmp_path / "back")["imported"]["unknown"]
        assert "last image of observation.images.top: stored as black" in unknown
    else:
        back = back.last_observations
    assert not back.any()


def file_of(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def with_camera(folder: Path, cell: Any, **feature: Any) -> Path:
    """Return a dataset of LeRobot, whose last image is replaced."""
    export_to(folder, MemoryDataset(batch_of(EnvSpec(CAMERA, BOX))), "lerobot")
    place = place_of("lerobot", folder)
    (file,) = place.glob("data/*/*.parquet")
    table = pq.read_table(file)
    at = table.column_names.index("observation.image")
    cells = pa.array([*table["observation.image"].to_pylist()[:-1], cell], table.schema.field(at).type)
    pq.write_table(table.set_column(at, "observation.image", cells), file)
    info = json.loads((place / "meta/info.json").read_text())
    info["features"]["observation.image"].update(feature)
    (place / "meta/info.json").write_text(json.dumps(info))
    return place


def test_a_jpeg_is_what_pillow_reads(tmp_path: Path) -> None:
    """And a feature may have its channels first, as LeRobot allows."""
    content = file_of(Image.fromarray(np.arange(144, dtype=np.uint8).reshape(8, 6, 3)), "jpeg")
    place = with_camera(tmp_path, {"bytes": content}, shape=[3, 8, 6], names=["channels", "height", "width"])
    import_dataset(place, tmp_path / "back")
    seen = rollout_cli.load(tmp_path / "back")[-1].observations[-1]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), seen)


SMALL = Image.new("RGB", (6, 8))
"""An image of the camera's size."""

HOSTILE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "none": (None, ("a row without an image",)),
    "elsewhere": ({"path": "/etc/hostname"}, ("a row without an image",)),
    "large": ({"bytes": file_of(Image.new("RGB", (9_000, 1)), "png")}, ("1 x 9000", "(8, 6, 3)")),
    "palette": ({"bytes": file_of(SMALL.convert("P"), "png")}, ("mode P",)),
    "gray": ({"bytes": file_of(SMALL.convert("L"), "png")}, ("mode L",)),
    "another format": ({"bytes": file_of(SMALL, "gif")}, ("cannot be read",)),
    "cut": (
        {"bytes": file_of(Image.effect_noise((6, 8), 9).convert("RGB"), "png")[:-30]},
        ("cannot be read",),
    ),
    "empty": ({"bytes": b""}, ("cannot be read",)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_refused(tmp_path: Path, name: str) -> None:
    """No file outside the dataset is read, and no pixels of an image that is too large."""
    cell, parts = HOSTILE[name]
    place = with_camera(tmp_path, cell)
    with raises(DatasetFormatError, "import-damaged", *parts):
        import_dataset(place, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_images_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = with_camera(tmp_path, None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with raises(UsageError, "package-missing", "pillow"):
        import_dataset(place, tmp_path / "back")
    assert not (tmp_path / "back").exists()
