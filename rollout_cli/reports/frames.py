"""Frames: image observations, PNG files, and videos as GIF, MP4 or a folder of PNG files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.schema import SpaceColumn
from rollout_cli.errors import UsageError
from rollout_cli.sources.loading import needing

SUFFIXES = (".gif", ".mp4", "")
"""The suffixes of videos; an empty one stands for a folder of PNG files."""

_LEAST_SIDE = 16  # A smaller grid, such as MiniGrid's, has codes, not colors.
_CHANNELS = (1, 3, 4)
# Numbers of dimensions.
_MATRIX = 2
_CUBE = 3
_STACK = 4


def image_column(dataset: Dataset) -> SpaceColumn | None:
    """Return the first observation column of images, or None if there is none."""
    for column in dataset.rows.spaces.observation:
        leaf = column.leaf
        is_picture = leaf.kind == "box" and leaf.dtype == np.uint8 and _MATRIX <= len(leaf.shape) <= _STACK
        if is_picture and sorted(leaf.shape)[-2] >= _LEAST_SIDE:
            return column
    return None


def as_frame(image: Array) -> Array:
    """Return an image as uint8 (height, width, 3).

    The input is (height, width), optionally with channels first or last; of a stack, the last image is used.
    """
    while image.ndim > _CUBE:
        image = image[-1]
    if image.ndim == _CUBE and image.shape[-1] not in _CHANNELS:
        image = image.transpose(1, 2, 0) if image.shape[0] in (1, 3) else image[-1]
    if image.ndim == _MATRIX:
        image = image[..., None]
    if image.shape[-1] < 3:  # noqa: PLR2004 - gray
        image = np.repeat(image[..., :1], 3, axis=-1)
    return np.ascontiguousarray(image[..., :3], np.uint8)


def png(frame: Array) -> bytes:
    """Return a frame, uint8 (height, width, 3), as a PNG file."""
    height, width, _ = frame.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # A row starts with its filter type; 0 for none.
    rows[:, 1:] = frame.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits per channel, RGB.
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def check_video(path: Path) -> None:
    """Raise UsageError if the suffix is not one of a video, or a package that writes it is missing."""
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path} does not end in .gif or .mp4, and is not the name of a folder",
            code="output-suffix",
            hint="pass a video's name: {output=" + str(path.with_suffix(".gif")) + "}",
        )
    if path.suffix == ".gif":
        with needing("pillow", "PIL"):
            import PIL  # noqa: F401, PLC0415 - an optional package
    if path.suffix == ".mp4":
        with needing("imageio"):
            import imageio  # noqa: F401, PLC0415 - an optional package
        with needing("imageio-ffmpeg"):
            import imageio_ffmpeg  # noqa: F401, PLC0415 - an optional package


@contextmanager
def video_writer(place: Path, fps: float) -> Iterator[Callable[[Array], object]]:
    """Yield a function that adds a frame, uint8 (height, width, 3), to a new video in `place`."""
    if not place.suffix:
        place.mkdir()
        numbers = count()
        yield lambda frame: (place / f"frame-{next(numbers):05}.png").write_bytes(png(frame))
        return
    if place.suffix == ".gif":
        with place.open("wb") as file:
            yield partial(_add_to_gif, file, max(20, 10 * round(100 / fps)))
            file.write(b";")
        return
    import imageio.v2 as imageio  # noqa: PLC0415 - as above

    writer: Any = imageio.get_writer(place, mode="I", fps=fps, macro_block_size=1)
    with writer:
        # MP4 needs an even height and width: an odd last row or column is repeated.
        yield lambda frame: writer.append_data(
            np.pad(frame, ((0, len(frame) % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")
        )


def _add_to_gif(file: BinaryIO, duration: int, frame: Array) -> None:
    """Add a frame shown for `duration` ms: Pillow's `save` merges equal frames, and holds all in memory."""
    from PIL import GifImagePlugin, Image  # noqa: PLC0415 - as above

    image = Image.fromarray(frame).convert("P", palette=Image.Palette.ADAPTIVE)
    if not file.tell():
        file.writelines(GifImagePlugin.getheader(image, info={"loop": 0})[0])
    file.writelines(GifImagePlugin.getdata(image, duration=duration, include_color_table=True))
