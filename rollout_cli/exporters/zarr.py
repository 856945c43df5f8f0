"""Zarr version 2 in the layout of Diffusion Policy's ReplayBuffer: https://diffusion-policy.cs.columbia.edu."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout_cli.dataset.schema import space_columns
from rollout_cli.episodes.batch import Tree, at_ends
from rollout_cli.episodes.spaces import DType, Shape, Space, tree_leaves
from rollout_cli.exporters.format import Array, Export, Format, check_keys

_CHUNK_BYTES = 8 << 20


def write(export: Export) -> None:
    """Write a group `data` with one row per step, and a group `meta` with one row per episode."""
    check_keys("zarr", export.env_spec)
    arrays = {}
    for name, values in _arrays(export):
        if name not in arrays:
            rows = export.n_steps if name.startswith("data/") else len(export.lengths)
            arrays[name] = _ChunkedArray(export.path / name, (rows, *values.shape[1:]), values.dtype)
        arrays[name].append(values)
    for array in arrays.values():
        array.close()
    for group in (export.path, export.path / "data", export.path / "meta"):
        (group / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
    (export.path / ".zattrs").write_text(json.dumps({"env": export.env_id, "not_held": list(export.losses)}))


def _arrays(export: Export) -> Iterator[tuple[str, Array]]:
    """Yield the next rows of each array."""
    spec = export.env_spec
    for batch in export.blocks():
        yield from _leaves(spec.observation_space, "data/obs", batch.observations)
        yield from _leaves(spec.action_space, "data/action", batch.actions)
        yield "data/reward", batch.rewards
        yield "data/terminated", at_ends(batch.lengths, batch.terminated)
        yield "data/truncated", at_ends(batch.lengths, batch.truncated)
        yield from _leaves(spec.observation_space, "meta/last_obs", batch.last_observations)
    yield "meta/episode_ends", np.cumsum(export.lengths)


def _leaves(space: Space, name: str, tree: Tree) -> Iterator[tuple[str, Array]]:
    """Yield one array per leaf; in Dict and Tuple spaces, the path follows the name after a dot."""
    for column, values in zip(space_columns(space, name), tree_leaves(tree), strict=True):
        if column.stored:
            yield column.name, values


@dataclass(slots=True)
class _ChunkedArray:
    """An array on disk that grows by rows up to its shape; one uncompressed file per chunk."""

    folder: Path
    shape: Shape
    dtype: DType
    rows: int = 0

    @property
    def chunk_rows(self) -> int:
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        return min(self.shape[0], max(1, _CHUNK_BYTES // row_bytes))

    def _file(self, chunk: int) -> Path:
        return self.folder / ".".join([str(chunk), *["0"] * (len(self.shape) - 1)])

    def append(self, values: Array) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        while len(values):
            chunk, row = divmod(self.rows, self.chunk_rows)
            part, values = np.split(values, [self.chunk_rows - row])
            with self._file(chunk).open("ab") as stream:
                part.tofile(stream)
            self.rows += len(part)

    def close(self) -> None:
        chunks = [self.chunk_rows, *self.shape[1:]]
        # All Zarr chunks have the same size, including the last one.
        last = self._file((self.rows - 1) // self.chunk_rows)
        os.truncate(last, self.dtype.itemsize * math.prod(chunks))
        described = {
            "zarr_format": 2,
            "shape": self.shape,
            "chunks": chunks,
            "dtype": self.dtype.str,
            "compressor": None,
            "filters": None,
            "fill_value": 0,
            "order": "C",
        }
        (self.folder / ".zarray").write_text(json.dumps(described))


FORMAT = Format("zarr", "Zarr arrays, as Diffusion Policy's ReplayBuffer reads them", write, nested=True)
