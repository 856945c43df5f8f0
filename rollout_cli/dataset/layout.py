"""The layout of a dataset: paths and names of its files, their origin, and info.json."""

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
"""Holds the old dataset while a new one replaces it."""

NEXT = ".next.tmp"
"""Holds a new dataset until it replaces the old one: after its first commit, or with all old episodes."""

ASIDE = ".repair-"
"""The prefix of folders for damaged files."""

DATASET_ENTRIES = ("meta", "data", "README.md")
"""The top-level entries of a dataset, in the order of the move to `REPLACED`; `meta` has all commits."""

TOTALS = ("episodes", "steps", "bytes", "segments")
"""The keys of info.json that count the content of the files; 0 until the end of the run."""

FILES_PER_CHUNK = 1_000
"""Files in one chunk folder of a dataset with one partition."""

LOST_INFO = "restore meta/info.json from a copy, or collect the dataset again"
"""The hint for a lost info.json: the other files do not record all of its content."""

_MOST_LEVELS = 100
"""The maximum nesting of JSON values: recursive functions fail on deeper ones."""

AnyPath = Path | str
"""The path of a folder or a file, or its URI."""

FileId = tuple[int, int]
"""Chunk index and file index."""

Origin = Mapping[str, str]
"""The keys of a file's footer that identify its run, its partition and its first number."""

_FILE = re.compile(r"chunk-(\d{5}|[1-9]\d{5,})/file-(\d{5}|[1-9]\d{5,})\.parquet", re.ASCII)


def info_path(root: Path) -> Path:
    """Return the path of info.json."""
    return root / "meta" / "info.json"


def stats_path(root: Path) -> Path:
    """Return the path of stats.json."""
    return root / "meta" / "stats.json"


def plot_path(root: Path) -> Path:
    """Return the path of the picture that a card can show."""
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
    """Return the files of a table in row order; none if the folder does not exist.

    Links are followed: the cache of the Hugging Face hub consists of them.
    """
    paths = [path for chunk in entries(folder) for path in entries(chunk)]
    matches = ((_FILE.fullmatch(f"{path.parent.name}/{path.name}"), path) for path in paths)
    return dict(sorted(((int(match[1]), int(match[2])), path) for match, path in matches if match))


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder sorted by name; none if the folder does not exist.

    Raises:
        StorageError: If the folder cannot be read.
    """
    with accessing(folder), suppress(FileNotFoundError):  # A run may replace it between the two calls.
        return sorted(folder.iterdir()) if folder.is_dir() else []
    return []


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """Segment `number` of one of `n_partitions` partitions; each of several partitions has a chunk folder."""

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
        """Return the paths of its data file and its episodes file; the episodes file commits the segment."""
        return root / "data" / file_name(self.file), episodes_folder(root) / file_name(self.file)

    def temporary(self, root: Path) -> tuple[Path, Path]:
        """Return the paths of both files before the commit: the final ones if the store cannot rename."""
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
        DatasetFormatError: If it is missing or has another format.
        StorageError: If it cannot be read.
    """
    path = info_path(root)
    replaced = root / REPLACED
    try:
        with accessing(path, FileNotFoundError, NotADirectoryError):
            if path.exists() and not path.is_file():
                raise DatasetFormatError(
                    f"{path} is not a regular file", code="not-a-regular-file", hint=LOST_INFO
                )
            document = parsed_json(path, path.read_bytes(), LOST_INFO)
    except OSError as error:
        if isinstance(root, RemotePath):
            root.check_server()
        if replaced.exists():
            raise DatasetFormatError(
                f"{root} has no meta/info.json: a run is replacing the old dataset, "
                "or was killed while replacing it",
                code="dataset-being-replaced",
                hint="wait until the run has ended, or repeat a killed run with {resume=True} or {overwrite=True}; "
                f"the old dataset is in {replaced}",
            ) from error
        raise DatasetFormatError(
            f"{root} is not a dataset: it has no meta/info.json",
            code="not-a-dataset",
            hint=f"pass the folder of a dataset; if this was one, {LOST_INFO}",
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DatasetFormatError(
            f"{path} does not describe a dataset of format {FORMAT!r}",
            code="info-format",
            hint="pass the folder of a dataset that rollout wrote",
        )
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise DatasetFormatError(
            f"{path} has format version {version}, expected {FORMAT_VERSION}",
            code="info-version",
            hint="use the version of rollout-collect that made the dataset",
        )
    if wrong := wrong_field(document):
        raise DatasetFormatError(f"{path} is damaged: {wrong}", code="info-value", hint=LOST_INFO)
    return cast("DatasetInfo", document)


def parsed_json(path: Path, content: bytes, hint: str) -> Any:
    """Return the JSON document with this content; raise `DatasetFormatError` if it is invalid."""
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
    """Return the column of `meta/episodes` that rises without unrecorded gaps: numbers or ids."""
    return "episode_id" if info["derived"] else "episode_number"


def started_at(info: DatasetInfo) -> str:
    """Return the start time of a dataset, unique in its folder; a resumed run keeps it."""
    return str(info["times"]["started"])


def described(document: Document) -> str:
    """Return a verdict of info.json in one line: `yes`, `no (…)` or `unknown (…)`."""
    status = str(document.get("status", "not recorded"))
    reason = document.get("reason")
    return f"{status} ({reason})" if reason else status


def acceptance_text(document: Document) -> str:
    """Return the share of episodes that `--keep` kept: `12 of 10,000 episodes (0.12 %)`."""
    return f"{document['kept']:,} of {document['run']:,} episodes ({100 * document['rate']:.3g} %)"


def collected_source(info: DatasetInfo) -> RunRecord:
    """Return the record of the run that collected a dataset; raise `UsageError` if no run of `rollout` did."""
    if info["derived"]:
        operation = info["derived"][-1].get("operation")
        raise UsageError(
            f"no run collected this dataset: `rollout {operation}` made it from other datasets",
            code="run-unknown",
            hint="pass the dataset of a run; datasets made by other commands cannot be resumed",
        )
    root_seed_of(info["sources"][0])
    return info["sources"][0].copy()


def root_seed_of(source: RunRecord) -> int:
    """Return the root seed of a run; raise `UsageError` if another program ran the episodes."""
    if (seed := source["root_seed"]) is None:
        raise UsageError(
            f"another program ran these episodes, and `rollout` has {source.get('kind', 'recorded')} them: "
            "they cannot be run again or continued by a command",
            code="run-unknown",
            hint="pass a dataset of `rollout collect`; continue this one with "
            "rollout_cli.Writer or rollout_cli.Recorder, and resume=True",
        )
    return seed


def fingerprint_of(info: DatasetInfo) -> str | None:
    """Return the fingerprint in the files of a dataset; None if it has no files yet.

    It is the fingerprint of the run. For a derived dataset it is a hash of the sources' fingerprints and of
    the operations.
    """
    runs = [source.get("run") for source in info["sources"]]
    if not info["derived"]:
        return None if runs[0] is None else str(runs[0])
    text = json.dumps([runs, info["derived"]], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def file_origin(run: str | None, partition: int, first_number: int) -> Origin:
    """Return the origin for the footers of a data file and its episodes file.

    A `run` of None stands for an unknown fingerprint, which no footer states.
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
            f"{path} is from another run or place, not from this dataset: {', '.join(differing)}",
            code="file-of-other-run",
            hint="load the dataset again if a run has replaced it; otherwise run: rollout verify",
        )
