"""Episodes of each space, which end in every way: terminated, truncated after one step, and both at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.spaces import map_tree
from rollout_cli.exporters.export import FORMATS, ExportSummary, export
from rollout_cli.exporters.source import EpisodeSource, MemoryEpisode
from tests.helpers.chunks import episode

BOX = spaces.Box(-1, 1, (4,), np.float32)
CHOICE = spaces.Discrete(3)
TREE = {"arm": BOX, "grip": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(3)])}

SPECS = {
    "box": EnvSpec(BOX, spaces.Box(-2, 2, (2,), np.float32)),
    "discrete": EnvSpec(spaces.Discrete(7), CHOICE),
    "start": EnvSpec(spaces.Discrete(7, start=-2), spaces.Discrete(3, start=5)),
    "multi_discrete": EnvSpec(spaces.MultiDiscrete([3, 5]), spaces.MultiDiscrete([2, 4, 3])),
    "multi_binary": EnvSpec(spaces.MultiBinary(5), spaces.MultiBinary(3)),
    "tuple": EnvSpec(spaces.Tuple([BOX, spaces.Discrete(5)]), CHOICE),
    "dict": EnvSpec(spaces.Dict(TREE), spaces.Dict({"a": CHOICE, "b": BOX})),
    "text": EnvSpec(spaces.Text(6, min_length=1, charset="abc é☃"), CHOICE),
    "image": EnvSpec(spaces.Box(0, 255, (8, 6, 3), np.uint8), CHOICE),
    "float64": EnvSpec(spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,), np.float64)),
}
LENGTHS = (4, 1, 6, 3)

OPTIONS: dict[str, dict[str, Any]] = {"lerobot": {"fps": 30}}
"""What a format must be told of these episodes."""


def chunks_of(spec: EnvSpec, lengths: Sequence[int] = LENGTHS, **infos: Any) -> list[Chunk]:
    """Return episodes 0, 1, 2, …: the first is terminated, the second truncated, the third both, and so on."""
    return [episode(number, length, spec=spec, **infos) for number, length in enumerate(lengths)]


def batch_of(spec: EnvSpec, lengths: Sequence[int] = LENGTHS, **infos: Any) -> EpisodeBatch:
    """Return these episodes as a batch."""
    return EpisodeBatch.from_chunks(spec, chunks_of(spec, lengths, **infos))


def place_of(name: str, folder: Path) -> Path:
    """Return a path in a folder that a format takes."""
    if name == "minari":
        return folder / "space" / "case-v0"
    return folder / f"exported{FORMATS[name].suffixes[0] if FORMATS[name].suffixes else ''}"


def export_to(folder: Path, source: EpisodeSource, name: str, **options: Any) -> ExportSummary:
    """Export to a path in a folder."""
    return export(source, name, place_of(name, folder), **OPTIONS.get(name, {}), **options)


def files_of(path: Path) -> dict[str, bytes]:
    """Return the bytes of a file, or of all files of a folder."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


class MemoryDataset:
    """The episodes of a batch; `info` is what a dataset's info.json would say of where they came from."""

    def __init__(self, batch: EpisodeBatch, info: Mapping[str, Any] | None = None) -> None:
        self._batch = batch
        self.env_spec = batch.env_spec
        self.info: Mapping[str, Any] = {"sources": [], "derived": []} if info is None else info

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[MemoryEpisode]:
        for batch in self._batch.split():
            yield MemoryEpisode(
                number=int(batch.numbers[0]),
                seed=int(batch.seeds[0]),
                terminated=bool(batch.terminated[0]),
                truncated=bool(batch.truncated[0]),
                observations=batch.observations,
                actions=batch.actions,
                rewards=batch.rewards,
                last_observation=map_tree(itemgetter(0), batch.last_observations),
                recorded=batch,
            )
