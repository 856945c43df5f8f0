"""Shard: one open data file and the episodes file that settles it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rollout_cli.dataset.columns import decode_tensor
from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.copying import joined, row_groups
from rollout_cli.dataset.files import FileStore, tidy_up
from rollout_cli.dataset.parquet import TableFile
from rollout_cli.dataset.schema import DatasetSchema

Place = tuple[int, int]
"""Chunk index and file index."""


@dataclass(frozen=True, slots=True)
class CommittedShard:
    """What a commit put in place.

    Attributes:
        place: Chunk index and file index.
        episodes: Episodes that its episodes file states.
        steps: Rows of its data file that belong to them.
        bytes: Bytes of both files.
    """

    place: Place
    episodes: int
    steps: int
    bytes: int


FILES_PER_CHUNK = 1_000
"""Files in one chunk folder of a dataset with one lane."""


def shard_place(n_lanes: int, lane: int, shard: int) -> Place:
    """Return chunk index and file index of a lane's shard: each of several lanes has a chunk folder of its own."""
    return divmod(shard, FILES_PER_CHUNK) if n_lanes == 1 else (lane, shard)


def data_path(root: Path, place: Place) -> Path:
    """Return where a data file lives."""
    return root / "data" / f"chunk-{place[0]:05}" / f"file-{place[1]:05}.parquet"


def episodes_path(root: Path, place: Place) -> Path:
    """Return where the episodes file of the data file at `place` lives."""
    return root / "meta" / "episodes" / f"chunk-{place[0]:05}" / f"file-{place[1]:05}.parquet"


class Shard:
    """A data file and its episodes file, both under temporary names until `commit`.

    The data file is put in place first: an episode counts from the moment at which its episodes file is there, and rows
    of a data file that no episodes file states are ignored.

    Args:
        files: Where they are written.
        root: The dataset's folder.
        place: Chunk index and file index of both.
        schema: The dataset's schema.

    Attributes:
        steps: Rows of the episodes that were written so far.
    """

    def __init__(self, files: FileStore, root: Path, place: Place, schema: DatasetSchema) -> None:
        self._place = place
        self.steps = 0
        self._open: dict[Path, TableFile] = {}
        try:
            for path, columns in ((data_path(root, place), schema.data), (episodes_path(root, place), schema.episodes)):
                files.make_folder(path.parent)
                self._open[path] = TableFile(files, path.with_name(f".{path.name}.tmp"), columns)
        except BaseException as error:
            tidy_up(error, self.discard)
            raise

    @classmethod
    def continuing(cls, files: FileStore, root: Path, place: Place, schema: DatasetSchema, groups: int) -> Shard:
        """Return a new version of the shard that is in place, begun with what is committed of it.

        Args:
            files: Where it is written.
            root: The dataset's folder.
            place: Chunk index and file index.
            schema: The dataset's schema.
            groups: How many row groups of its data file are full.
        """
        shard = cls(files, root, place, schema)
        try:
            # Written again rather than copied: a Parquet file's footer tells where each of its parts begins.
            for table in row_groups(root, data_path(root, place), schema.data, groups):
                shard.write_steps(table)
            for table in joined(row_groups(root, episodes_path(root, place), schema.episodes)):
                shard.write_episodes(table)
        except BaseException as error:
            tidy_up(error, shard.discard)
            raise
        return shard

    def write_steps(self, table: pa.Table) -> None:
        """Write a row group of steps."""
        self._data.write(table)

    def write_episodes(self, table: pa.Table) -> None:
        """Write rows of episodes whose last steps were written."""
        self._episodes.write(table)
        # Not with pyarrow.compute, whose import alone takes longer than a short run's whole dataset.
        self.steps += int(decode_tensor(table["length"].combine_chunks()).sum())

    def commit(self, commit: Commit) -> CommittedShard:
        """Put both files in place.

        Args:
            commit: What the episodes file is to state.
        """
        episodes, footer = self._episodes.rows, commit.footer()
        size = 0
        for path, file in list(self._open.items()):
            size += file.publish(path, footer if file is self._episodes else None)
            del self._open[path]
        return CommittedShard(self._place, episodes, self.steps, size)

    def discard(self) -> None:
        """Throw away what was not put in place; all of it, even where one removal fails."""
        with ExitStack() as stack:
            while self._open:
                stack.callback(self._open.popitem()[1].discard)

    @property
    def _data(self) -> TableFile:
        return next(iter(self._open.values()))

    @property
    def _episodes(self) -> TableFile:
        return list(self._open.values())[-1]
