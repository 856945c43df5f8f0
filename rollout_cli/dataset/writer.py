"""DatasetWriter: episodes in dataset order in, a dataset folder out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rollout_cli.dataset.commits import Committed
from rollout_cli.dataset.files import FileStore, FolderLock
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk

Status = Literal["complete", "interrupted"]


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """The contents of a closed dataset.

    Attributes:
        path: Its folder.
        status: `complete` or `interrupted`.
        episodes: Episodes in it.
        steps: Their steps.
        bytes: Bytes of its data and episodes files.
        segments: Data files.
        info_columns: `decided`, or `partial` where the run ended before its info columns were decided.
        dropped_infos: By column, how many info values could not be stored.
        anomalies: Columns with values that are not finite, or outside of their space.
    """

    path: Path
    status: Status
    episodes: int
    steps: int
    bytes: int
    segments: int
    info_columns: str
    dropped_infos: Mapping[str, int]
    anomalies: tuple[Any, ...] = ()


class DatasetWriter:
    """Signatures only, for builders of run/ and the reader; the body follows."""

    def __init__(
        self,
        path: Path | str,
        *,
        env_spec: EnvSpec,
        root_seed: int,
        n_partitions: int = 1,
        first_numbers: Sequence[int] | None = None,
        header: Mapping[str, Any] | None = None,
        next_observation: bool = False,
        overwrite: bool = False,
        committed: Committed | None = None,
        limits: Any = None,
        flush_seconds: float = 30.0,
        files: FileStore | None = None,
        lock: FolderLock | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def path(self) -> Path:
        raise NotImplementedError

    @property
    def has_episodes(self) -> bool:
        raise NotImplementedError

    def observe(self, chunk: Chunk) -> None:
        raise NotImplementedError

    def write(self, chunk: Chunk, *, partition: int = 0) -> None:
        raise NotImplementedError

    def close(self, *, status: Status, **facts: Any) -> DatasetSummary:
        raise NotImplementedError

    def abort(self, *, commits: bool = True) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError
