"""What formats of Parquet files share: files of a bounded size, images as PNG in a column, and a card."""

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
    """Tables of one schema that go to files which follow one another; the stack closes the open one.

    `path_of` gives the path of a file's number, 0 for the first one. A file of 100 MiB or more is followed by
    the next one.
    """

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        super().__init__()
        self._path_of = path_of
        self._number = -1
        self._sink: Any = None
        self._writer: Any = None

    def write(self, table: pa.Table) -> int:
        """Write a table, a row group, and return the number of its file."""
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
    """Return whether PNG holds a leaf's values: uint8, height and width, and 1, 3 or 4 channels or none."""
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
        # The fastest level: files are a little larger, and written in half of the time.
        Image.fromarray(np.ascontiguousarray(image)).save(stream, "png", compress_level=1)
        files.append(stream.getvalue())
    columns = [pa.array(files, pa.binary()), pa.nulls(len(files), pa.string())]
    return pa.StructArray.from_arrays(columns, ["bytes", "path"])


def write_card(export: Export, name: str, front_matter: str) -> None:
    """Write README.md, which also says what the format `name` does not hold of the episodes.

    `{digest}` in the front matter stands for the files: `datasets` keeps a copy by the folder's name and
    these lines, and would read another export of that name from it.
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
