"""What datasets on the Hugging Face hub share: images as PNG files inside a column, and a card."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa

from rollout_cli.episodes.spaces import Leaf
from rollout_cli.exporters.format import Array, Export
from rollout_cli.loading import needing

_CARD = """\
---
{front_matter}---

# Episodes of {env}

{episodes:,} episodes, {steps:,} steps, written by `rollout export --to {format}`.
"""


def is_image(leaf: Leaf) -> bool:
    """Return whether PNG holds a leaf's values: uint8 of height, width, and 1, 3 or 4 channels or no such axis."""
    match leaf.shape:
        case (_, _) | (_, _, 1 | 3 | 4) if leaf.kind == "box" and leaf.dtype == np.uint8:
            return 0 not in leaf.shape
    return False


def encode_images(images: Array) -> pa.Array:
    """Return a column of `struct<bytes: binary, path: string>` from images (T, height, width[, channels])."""
    with needing("pillow", module="PIL"):
        from PIL import Image  # noqa: PLC0415 - an optional package
    files = []
    for image in images[..., 0] if images.shape[3:] == (1,) else images:
        stream = io.BytesIO()
        # The fastest level: files are a little larger, and written in half of the time.
        Image.fromarray(np.ascontiguousarray(image)).save(stream, "png", compress_level=1)
        files.append(stream.getvalue())
    columns = [pa.array(files, pa.binary()), pa.nulls(len(files), pa.string())]
    return pa.StructArray.from_arrays(columns, ["bytes", "path"])


def write_card(export: Export, name: str, front_matter: str) -> None:
    """Write README.md, which also says what the format `name` does not hold of the episodes."""
    steps = int(export.lengths.sum())
    card = _CARD.format(
        front_matter=front_matter, env=export.env_id, episodes=len(export.source), steps=steps, format=name
    )
    losses = f"\nNot in these files: {'; '.join(export.losses)}.\n" if export.losses else ""
    (export.path / "README.md").write_text(card + losses)
