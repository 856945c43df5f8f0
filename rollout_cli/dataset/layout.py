"""Where the files of a dataset lie, what they are called, what run they are of, and its info.json."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rollout_cli.dataset.card import PLOT
from rollout_cli.dataset.record import DatasetInfo, RunRecord, depth_of, wrong_field
from rollout_cli.dataset.store import accessing, has_rename
from rollout_cli.episodes.plain import Document
from rollout_cli.errors import DatasetFormatError, UsageError
from rollout_cli.sources.remote import RemotePath

FORMAT = "rollout"
FORMAT_VERSION = 3

LOCK_NAME = ".lock"
REPLACED = ".replaced"
"""Holds the dataset that another one replaces, while this takes its place."""

NEXT = ".next.tmp"
"""Holds a dataset that is to replace the folder's, until it has a commit, or all episodes of that one."""

ASIDE = ".repair-"
"""Begins the names of folders to which damaged files are moved."""

DATASET_ENTRIES = ("meta", "data", "README.md")
"""The top of a dataset's folder, in order of the move to `REPLACED`: without `meta` nothing is committed."""

TOTALS = ("episodes", "steps", "bytes", "segments")
"""The keys of info.json that count what the files hold; 0 until the end of the run."""

FILES_PER_CHUNK = 1_000
"""Files in one chunk folder of a dataset with one partition."""

LOST_INFO = "restore meta/info.json from a copy, or collect the dataset again"
"""The hint where info.json is lost: the other files do not have all that it records."""

_MOST_LEVELS = 100
"""How deep values of JSON may be nested: Python's functions could not walk much deeper ones."""

AnyPath = Path | str
"""The path of a folder or a file, or its URI."""

FileId = tuple[int, int]
"""Chunk index and file index."""

Origin = Mapping[str, str]
"""The keys of a file's footer that say where it belongs: its run, its partition, its first number."""

_FILE = re.compile(r"chunk-(\d{5}|[1-9]\d{5,})/file-(\d{5}|[1-9]\d{5,})\.parquet", re.ASCII)


def info_path(root: Path) -> Path:
    """Return the path of info.json."""
    return root / "meta" / "info.json"


def stats_path(root: Path) -> Path:
    """Return the path of stats.json."""
    return root / "meta" / "stats.json"


def plot_path(root: Path) -> Path:
    """Return the path of the picture that a card may show."""
    return root / "meta" / PLOT


def episodes_folder(root: Path) -> Path:
    """Return the folder of the episodes files, whose presence commits their segments."""
    return root / "meta" / "episodes"


def aside_path(root: Path) -> Path:
    """Return the path of a new folder for damaged files."""
    return root / f"{ASIDE}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"


def file_name(file: FileId) -> str:
    """Return the path of a file of `data` or `meta/episodes`, below that folder."""
    return f"chunk-{file[0]:05}/file-{file[1]:05}.parquet"


def table_files(folder: Path) -> dict[FileId, Path]:
    """Return the files of a table, in the order of their rows; none where there is no such folder.

    Links are followed: the cache of the Hugging Face hub consists of them.
    """
    paths = [path for chunk in entries(folder) for path in entries(chunk)]
    matches = ((_FILE.fullmatch(f"{path.parent.name}/{path.name}"), path) for path in paths)
    return dict(sorted(((int(match[1]), int(match[2])), path) for match, path in matches if match))


def entries(folder: Path) -> list[Path]:
    """Return what a folder holds, sorted by name; nothing where there is no folder.

    Raises:
        StorageError: If the folder cannot be read.
    """
    with accessing(folder), suppress(FileNotFoundError):  # A run may replace it between the two.
        return sorted(folder.iterdir()) if folder.is_dir() else []
    return []


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """Segment `number` of one of `n_partitions` partitions; each of several has a chunk folder of its own."""

    n_partitions: int
    partition: int
    number: int

    @property
    def file(self) -> FileId:
        """Chunk index and file index."""
        return (
            divmod(self.number, FILES_PER_CHUNK) if self.n_partitions == 1 else (self.partition, self.number)
        )

    def paths(self, root: Path) -> tuple[Path, Path]:
        """Return the paths of its data file, and of its episodes file, whose presence commits the segment."""
        return root / "data" / file_name(self.file), episodes_folder(root) / file_name(self.file)

    def temporary(self, root: Path) -> tuple[Path, Path]:
        """Return the paths of both files before the commit: their own, where no rename gives them those."""
        if not has_rename(root):
            return self.paths(root)
        name = "{:05}-{:05}.parquet.tmp".format(*self.file)
        return root / f".data-{name}", root / f".episodes-{name}"


def segment_files(folder: Path, n_partitions: int) -> dict[SegmentId, Path]:
    """Return a table's files by segment, in row order; raise `StorageError` for an unreadable folder."""
    segments = {}
    for (chunk, file), path in table_files(folder).items():
        place = (chunk, file) if n_partitions > 1 else (0, chunk * FILES_PER_CHUNK + file)
        segments[SegmentId(n_partitions, *place)] = path
    return segments


def read_info(root: Path) -> DatasetInfo:
    """Return the info.json of the dataset in `root`.

    Raises:
        DatasetFormatError: If there is none of this format.
        StorageError: If it cannot be read.
    """
    path = info_path(root)
    replaced = root / REPLACED
    try:
        with accessing(path, FileNotFoundError, NotADirectoryError):
            if path.exists() and not path.is_file():
                raise DatasetFormatError(f"{path} is not a regular file", code="not-a-regular-file")
            document = parsed_json(path, path.read_bytes(), LOST_INFO)
    except OSError as error:
        if isinstance(root, RemotePath):
            root.check_server()
        if replaced.exists():
            raise DatasetFormatError(
                f"{root} is no dataset: a run was killed while it replaced the one that was here, "
                "or is just doing that",
                code="dataset-being-replaced",
                hint="if it was killed, run it again, with {resume=True} or {overwrite=True}: "
                f"it is in {replaced}",
            ) from error
        raise DatasetFormatError(
            f"{root} is not a dataset: it has no meta/info.json",
            code="not-a-dataset",
            hint=f"give a dataset's folder; if it was one, {LOST_INFO}",
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DatasetFormatError(
            f"{path} does not describe a dataset of the format {FORMAT!r}", code="info-format"
        )
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise DatasetFormatError(
            f"{path} has format version {version}, and this program has version {FORMAT_VERSION} alone",
            code="info-version",
            hint="a dataset needs the version of rollout-collect that made it",
        )
    if wrong := wrong_field(document):
        raise DatasetFormatError(f"{path} is damaged: {wrong}", code="info-value", hint=LOST_INFO)
    return cast("DatasetInfo", document)


def parsed_json(path: Path, content: bytes, hint: str) -> Any:
    """Return the JSON document in a file of this content; raise `DatasetFormatError` where it holds none."""
    try:
        document = json.loads(content)
        depth = depth_of(document)
    except (ValueError, RecursionError) as error:
        raise DatasetFormatError(
            f"{path} is not valid JSON: {error}", code="info-not-json", hint=hint
        ) from error
    if depth > _MOST_LEVELS:
        raise DatasetFormatError(
            f"{path} is damaged: its values are nested too deep", code="info-too-deep", hint=hint
        )
    return document


def order_column(info: DatasetInfo) -> str:
    """Return the column of `meta/episodes` that rises with no gaps but recorded ones: numbers or ids."""
    return "episode_id" if info["derived"] else "episode_number"


def started_at(info: DatasetInfo) -> str:
    """Return when a dataset began, which no other one in its folder has; a resume goes on with it."""
    return str(info["times"]["started"])


def described(document: Document) -> str:
    """Return a verdict, as info.json has it, in one line: `yes`, `no (…)` or `unknown (…)`."""
    status = str(document.get("status", "not recorded"))
    reason = document.get("reason")
    return f"{status} ({reason})" if reason else status


def acceptance_text(document: Document) -> str:
    """Return how many episodes `--keep` has kept, as info.json has it: `12 of 10,000 episodes (0.12 %)`."""
    return f"{document['kept']:,} of {document['run']:,} episodes ({100 * document['rate']:.3g} %)"


def collected_source(info: DatasetInfo) -> RunRecord:
    """Return the record of the run that collected a dataset; raise `UsageError` for a derived dataset."""
    if info["derived"]:
        raise UsageError(
            f"no run collected the dataset: it was made of others ({info['derived'][-1].get('operation')})",
            code="run-unknown",
            hint="give a dataset that was collected: one that is made of others is not continued",
        )
    return info["sources"][0].copy()


def fingerprint_of(info: DatasetInfo) -> str | None:
    """Return the fingerprint that the files of a dataset name; None where there are none yet.

    It is that of the run, or of a derived dataset a hash of its sources' and of how it was made of them.
    """
    runs = [source.get("run") for source in info["sources"]]
    if not info["derived"]:
        return None if runs[0] is None else str(runs[0])
    text = json.dumps([runs, info["derived"]], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def file_origin(run: str | None, partition: int, first_number: int) -> Origin:
    """Return the origin that the footers of a data file and its episodes file state.

    A `run` of None stands for one whose fingerprint is unknown: no file states that.
    """
    return {
        "rollout.run": f"{run}",
        "rollout.partition": f"{partition}",
        "rollout.first_number": f"{first_number}",
    }


def check_origin(path: Path, footer: Mapping[bytes, bytes] | None, expected: Origin) -> None:
    """Raise `DatasetFormatError` unless the footer of the file `path` states the `expected` origin."""
    stated = {key: (footer or {}).get(key.encode(), b"missing").decode(errors="replace") for key in expected}
    differing = [
        f"{key} is {stated[key]}, not {text}" for key, text in expected.items() if stated[key] != text
    ]
    if differing:
        raise DatasetFormatError(
            f"{path} is of another run or place than the dataset has here: {', '.join(differing)}",
            code="file-of-other-run",
            hint="if a run replaced the dataset meanwhile, load it again; else see: rollout verify",
        )
