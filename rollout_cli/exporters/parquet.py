"""Parquet files of bounded size, images as PNG columns, and cards, for all formats of this kind."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.episodes.spaces import Array, Leaf
from rollout_cli.exporters.format import Export
from rollout_cli.sources.loading import needing

_MOST_BYTES = 100 << 20

_CARD = """\
---
{front_matter}---

# Episodes of {env}

{episodes:,} episodes, {steps:,} steps, written by `rollout export --to {format}`.
"""


class ParquetFiles(ExitStack):
    """Tables of one schema, written to consecutive files; the stack closes the open file.

    `path_of` returns the path of a file by number, starting at 0. A new file is started after 100 MiB.
    """

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        super().__init__()
        self._path_of = path_of
        self._number = -1
        self._sink: Any = None
        self._writer: Any = None

    def write(self, table: pa.Table) -> int:
        """Write a table as a row group, and return the number of its file."""
        if self._sink is None or self._sink.tell() >= _MOST_BYTES:
            self.close()
            self._number += 1
            path = self._path_of(self._number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = self.enter_context(pa.OSFile(str(path), "wb"))
            self._writer = self.enter_context(pq.ParquetWriter(self._sink, table.schema, compression="zstd"))
        self._writer.write_table(table)
        return self._number


def is_image(leaf: Leaf) -> bool:
    """Return True if PNG can store a leaf's values: uint8, (height, width) or with 1, 3 or 4 channels."""
    match leaf.shape:
        case (_, _) | (_, _, 1 | 3 | 4) if leaf.kind == "box" and leaf.dtype == np.uint8:
            return 0 not in leaf.shape
    return False


def encode_images(images: Array) -> pa.Array:
    """Return a column of `struct<bytes: binary, path: string>` from images (T, height, width[, channels])."""
    with needing("pillow", module="PIL"):
        from PIL import Image  # noqa: PLC0415 - an optional package
    if images.shape[3:] == (1,):
        images = images[..., 0]
    files = []
    for image in images:
        stream = io.BytesIO()
        # The fastest level: files are slightly larger, and take half the time.
        Image.fromarray(np.ascontiguousarray(image)).save(stream, "png", compress_level=1)
        files.append(stream.getvalue())
    columns = [pa.array(files, pa.binary()), pa.nulls(len(files), pa.string())]
    return pa.StructArray.from_arrays(columns, ["bytes", "path"])


def write_card(export: Export, name: str, front_matter: str) -> None:
    """Write README.md, which also lists the losses of the format `name`.

    `{digest}` in the front matter stands for the content of the files. `datasets` caches by the folder's name
    and these lines, and without the digest would load another export of that name from the cache.
    """
    digest = blake2b(digest_size=16)
    for path in sorted(export.path.rglob("*.parquet")):
        digest.update(np.memmap(path, np.uint8, mode="r").data)
    card = _CARD.format(
        front_matter=front_matter.format(digest=digest.hexdigest()),
        env=export.env_id,
        episodes=len(export.source),
        steps=export.n_steps,
        format=name,
    )
    if export.losses:
        card += f"\nNot in these files: {'; '.join(export.losses)}.\n"
    (export.path / "README.md").write_text(card)
