"""The files of a repair: copies, and shards of which only the first episodes stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.copying import row_groups
from rollout_cli.dataset.files import FileStore, tidy_up
from rollout_cli.dataset.limits import check_episode_rows, open_parquet
from rollout_cli.dataset.parquet import TableFile
from rollout_cli.dataset.shard import Place, data_path, episodes_path
from rollout_cli.dataset.tables import reading
from rollout_cli.errors import DatasetFormatError, StorageError

_BLOCK = 1 << 20


def copy_file(files: FileStore, source: Path, target: Path) -> None:
    """Copy a file, of any size; a copy that is there already is replaced."""
    files.make_folder(target.parent)
    try:
        with source.open("rb") as old, files.create(target.with_name(f".{target.name}.tmp")) as new:
            while block := old.read(_BLOCK):
                new.write(block)
            files.publish(new, target)
    except OSError as error:
        raise StorageError(f"cannot read {source}: {error.strerror or error}") from error


def stated_lengths(root: Path, place: Place) -> Array:
    """Return the lengths that an episodes file states, int64 (N,); none where it cannot be read."""
    path = episodes_path(root, place)
    try:
        with reading(path):
            file = open_parquet(root, path)
            check_episode_rows(path, file.metadata)
            return np.asarray(file.read(columns=["length"])["length"].to_numpy())
    except (DatasetFormatError, KeyError):
        return np.zeros(0, np.int64)


def cut_shard(files: FileStore, root: Path, place: Place, episodes: int) -> None:
    """Keep the first episodes of a shard: both files are written anew, and then put in the place of the old ones.

    The shard counts as full: what a run that goes on would need to add to it is not known.

    Args:
        files: Where they are written.
        root: The dataset's folder.
        place: The shard's place.
        episodes: How many stay, at least 1; they are whole.
    """
    data, own = data_path(root, place), episodes_path(root, place)
    with reading(own):
        file = open_parquet(root, own)
        check_episode_rows(own, file.metadata)
        facts = file.read(columns=["length", "episode_number"]).slice(0, episodes)
    commit = Commit.from_footer(file.metadata.metadata or {})
    stop = int(facts["episode_number"].to_numpy().max()) + 1
    kept = Commit(commit.start, stop, tuple(number for number in commit.skipped if number < stop))
    steps = int(facts["length"].to_numpy().sum())
    written: list[tuple[TableFile, Path, dict[str, str] | None]] = []
    try:
        for path, rows, footer in ((data, steps, None), (own, episodes, kept.footer())):
            with reading(path):
                schema = open_parquet(root, path).schema_arrow
            new = TableFile(files, path.with_name(f".{path.name}.tmp"), schema)
            written.append((new, path, footer))
            for table in _first_rows(root, path, schema, rows):
                new.write(table)
        while written:
            new, path, footer = written[0]
            new.publish(path, footer)
            del written[0]
    except BaseException as error:
        for new, _, _ in written:
            tidy_up(error, new.discard)
        raise


def _first_rows(root: Path, path: Path, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    for table in row_groups(root, path, schema):
        yield pa.Table.from_arrays(table.slice(0, rows).combine_chunks().columns, schema=schema)
        rows -= table.num_rows
        if rows <= 0:
            return
