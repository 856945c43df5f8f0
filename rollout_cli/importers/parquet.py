"""Reading Parquet files of others: the rows of each episode, tensors as nested lists, and images as PNG or JPEG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import spans
from rollout_cli.sources.loading import needing

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


def episodes_in(
    files: Iterable[Path], number: str, columns: list[str] | None = None
) -> Iterator[tuple[Path, pa.Table]]:
    """Yield the file and the rows of each episode; the column `number` contains the episode numbers.

    Raises:
        DatasetFormatError: If the numbers decrease, or an episode is in two files.
    """
    last = -1
    for file in files:
        table = pq.read_table(file, columns=columns)
        numbers = table[number].to_numpy()
        if np.any(np.diff(numbers, prepend=last) < 0) or numbers[:1] == last:
            raise DatasetFormatError(
                f"the {number} of {file} decreases, or continues episode {last} of the file before; "
                "expected increasing numbers, and each episode in one file",
                code="import-damaged",
            )
        last = int(numbers[-1])
        for start, stop in spans(np.append(np.diff(numbers), True)):
            yield file, table.slice(start, stop - start)


def tensor_of(file: Path, name: str, rows: pa.Table, shape: tuple[int, ...]) -> Array:
    """Return a column as an array (T, *shape); a list of one number is a scalar in the file.

    Raises:
        DatasetFormatError: If values are missing, or a row has another number of values.
    """
    array = rows[name].combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):  # The package `datasets` registers them.
        array = array.storage
    is_whole = True
    while pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        is_whole &= len(pc.unique(pc.list_value_length(array))) == 1
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    if not is_whole or array.null_count or values.size != len(rows) * int(np.prod(shape)):
        raise DatasetFormatError(
            f"{name} of {file} has {values.size} values in {len(rows)} rows, expected the shape {shape} in each",
            code="import-damaged",
        )
    return np.asarray(values.reshape(len(rows), *shape))


def images_of(file: Path, name: str, rows: pa.Table, shape: tuple[int, ...]) -> Array:
    """Decode a column of PNG or JPEG files to an array uint8 (T, *shape), with `shape` (height, width, channels).

    Raises:
        DatasetFormatError: If an image is not in the column, which could name any file, or is not of this shape.
        UsageError: If Pillow is not installed.
    """
    with needing("pillow", module="PIL"):
        from PIL import Image  # noqa: PLC0415 - an optional package
    frames = np.empty((len(rows), *shape), np.uint8)
    for frame, cell in zip(frames, rows[name].to_pylist(), strict=True):
        if not cell or cell["bytes"] is None:
            raise DatasetFormatError(f"{name} of {file} has a row without an image", code="import-damaged")
        # The shape is compared before the pixels are decoded, which may be many.
        with Image.open(io.BytesIO(cell["bytes"]), formats=("PNG", "JPEG")) as image:
            if (image.height, image.width, _CHANNELS.get(image.mode)) != shape:
                raise DatasetFormatError(
                    f"{name} of {file} has an image of {image.height} x {image.width} pixels and mode {image.mode}, "
                    f"expected the shape {shape}",
                    code="import-damaged",
                )
            frame[:] = np.asarray(image).reshape(shape)
    return frames
