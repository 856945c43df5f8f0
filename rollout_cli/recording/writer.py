"""Writer: a dataset of episodes that another program ran, given as arrays."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gymnasium import spaces

from rollout_cli.dataset.commits import read_tables
from rollout_cli.dataset.committed import Committed, read_committed
from rollout_cli.dataset.folder import (
    FolderLock,
    OutputFolder,
    check_folder,
    has_no_dataset,
    recover_replaced,
)
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.metadata import DatasetSettings, DatasetSummary
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.store import file_store
from rollout_cli.dataset.tables import decode_chunk
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.plain import Document
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import ArgumentError, InternalError, UsageError
from rollout_cli.recording.arrays import EpisodeArrays, Infos, chunk_of, inferred_space
from rollout_cli.sources.remote import folder_of
from rollout_cli.sources.versions import surroundings

_log = logging.getLogger(__name__)


class Writer:
    """Writes episodes that another program ran to a dataset, with the same columns and commits as `collect`.

    Finished episodes are committed every `flush_every` seconds, when a data file is full, and at the end: a
    killed program loses no committed episode, and continues with `resume=True`. Episode numbers are 0, 1, 2, ….
    The dataset has the seeds that you pass, but no root seed, so it cannot be replayed. As a context manager,
    the writer completes the dataset, or ends it as `interrupted` after an exception.

    Args:
        path: Folder or URI of the dataset.
        observation_space: The space of the observations; None to infer a Box (or Dict and Tuple of Boxes) from
            the arrays of the first episode, which is logged and recorded.
        action_space: The space of the actions; None to infer it. Integers of shape (T,) need a space.
        max_episode_length: The steps after which the environment truncates episodes; None for no limit.
        env: The id or name of the environment, recorded for readers.
        policy: A description of what chose the actions, recorded for readers.
        resume: Continue the dataset of an earlier Writer, if there is one.
        overwrite: Replace an existing dataset.
        next_observation: Also store the next observation of every step.
        flush_every: Seconds between two commits, above 0.
        segment_bytes: Maximum bytes of a data file, before encoding; None for 128 MiB, or the maximum of the
            dataset to continue.

    Raises:
        ArgumentError: If an argument or array is invalid.
        DatasetExistsError: If the folder may not be replaced.
        DatasetLockedError: If another writer uses the folder.
        UsageError: If the dataset to continue has another origin or other spaces.
        StorageError: From any method, if a disk operation fails.

    Example:
        >>> import gymnasium, numpy as np
        >>> with rollout_cli.Writer("mine", action_space=gymnasium.spaces.Discrete(2)) as writer:
        ...     writer.write(np.zeros((4, 2)), [0, 1, 1], [0.5, 0.5, 1.0], terminated=True, truncated=False)
        0
        >>> rollout_cli.load("mine")[0].total_reward
        2.0
    """

    _kind = "written"

    def __init__(
        self,
        path: str | Path,
        *,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        max_episode_length: int | None = None,
        env: str | None = None,
        policy: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
        next_observation: bool = False,
        flush_every: float = 30.0,
        segment_bytes: int | None = None,
    ) -> None:
        if resume and overwrite:
            raise ArgumentError("resume=True and overwrite=True exclude each other", code="option-excluded")
        if not flush_every > 0:
            raise ArgumentError(
                f"flush_every is {flush_every}, expected a number above 0", code="flush-every"
            )
        self._path = folder_of(path).resolve()
        self._overwrite = overwrite
        self._segment_bytes = segment_bytes
        self._limits = SizeLimits() if segment_bytes is None else SizeLimits(segment_bytes=segment_bytes)
        self._next_observation = next_observation
        self._flush_every = flush_every
        self._spaces = (observation_space, action_space)
        self._max_episode_length = max_episode_length
        self._env = env
        self._policy = policy
        self._writer: DatasetWriter | None = None
        self._rows: tuple[SpaceRows, SpaceRows] | None = None
        self._is_open = True
        self.next_number = 0
        self._n_cut = 0
        self._lock: FolderLock | None = None
        if resume and self._path.is_dir():
            # Another writer might commit between the reading of the folder and the lock.
            self._lock = FolderLock(file_store(self._path), self._path)
            try:
                if self._continues():
                    return
            except BaseException:
                self._lock.release()
                raise
        check_folder(self._path, overwrite=overwrite)
        if observation_space is not None and action_space is not None:
            self._open(EnvSpec(observation_space, action_space, max_episode_length), are_inferred=False)

    def write(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminated: bool,
        truncated: bool,
        env_infos: Infos = (),
        agent_infos: Infos = (),
        episode_info: Any = None,
        seed: int | None = None,
    ) -> int:
        """Add an episode of T steps, and return its number. The arrays are copied.

        Args:
            observations: Tree of arrays (T + 1, *shape): the observation before each action, and the last one.
                Floats are rounded to the dtype of the space.
            actions: Tree of arrays (T, *shape).
            rewards: Real numbers (T,).
            terminated: Whether the last step reached a terminal state of the environment.
            truncated: Whether the episode was cut for another reason, such as a time limit.
            env_infos: The infos of `env.step`: a dictionary a step, or arrays with a value a step by key.
            agent_infos: What the policy tells of each step, in the same forms.
            episode_info: The info of `env.reset`.
            seed: The seed passed to `env.reset`; None if it is unknown.

        Raises:
            ArgumentError: If an array has another shape or type than its space, or lengths disagree. Nothing
                of the episode is then written, and the writer can be used on.
        """
        arrays = EpisodeArrays(
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            env_infos=env_infos,
            agent_infos=agent_infos,
            episode_info=episode_info,
            seed=seed,
        )
        return self.add(arrays)

    def add(self, episode: EpisodeArrays) -> int:
        """Add an episode, as `write` does, and return its number."""
        if not self._is_open:
            raise UsageError(
                f"the writer of {self._path} is closed",
                code="writer-closed",
                hint="open a new one with resume=True",
            )
        if self._writer is None:
            spec = self._inferred(episode)
            chunk = chunk_of(0, episode, SpaceRows(spec.observation_space), SpaceRows(spec.action_space))
            self._open(spec, are_inferred=True)  # After the first episode was found to be valid.
        else:
            chunk = chunk_of(self.next_number, episode, *self._columns)
        self.write_chunk(chunk)
        return self.next_number - 1

    def write_chunk(self, chunk: Chunk) -> None:
        """Add the next episode as a chunk; its number is `next_number`."""
        self._opened.write(chunk)
        self.next_number += chunk.n_episodes

    def count_cut(self) -> None:
        """Count an episode that the program cut before its end."""
        self._n_cut += 1
        self._opened.record(cut=self._n_cut)

    def flush(self) -> None:
        """Commit all episodes before this returns. An object store commits full data files only."""
        if self._writer is not None:
            self._writer.flush()
            self._writer.wait()

    def close(self) -> DatasetSummary | None:
        """Commit all episodes and complete the dataset; return its summary, or None without any episode."""
        if self._writer is None and self._lock is not None:
            self._lock.release()  # Without an episode no dataset was opened, which would release it.
        if not self._is_open or self._writer is None:
            self._is_open = False
            return None
        self._is_open = False
        if not self._writer.has_episodes:
            self._writer.abort()
            return None
        return self._writer.close(status="complete")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._is_open and self._writer is not None:
            self._is_open = False
            self._writer.__exit__(kind, error, traceback)

    # -- opening -----------------------------------------------------------------------------------

    @property
    def _opened(self) -> DatasetWriter:
        if self._writer is None:
            raise InternalError("the dataset is not open")
        return self._writer

    @property
    def _columns(self) -> tuple[SpaceRows, SpaceRows]:
        if self._rows is None:
            raise InternalError("the spaces are not known")
        return self._rows

    def _inferred(self, episode: EpisodeArrays) -> EnvSpec:
        observation_space, action_space = self._spaces
        if observation_space is None:
            observation_space = inferred_space("observations", episode.observations)
            _log.warning("inferred observation_space %s from the first episode", observation_space)
        if action_space is None:
            action_space = inferred_space("actions", episode.actions)
            _log.warning("inferred action_space %s from the first episode", action_space)
        return EnvSpec(observation_space, action_space, self._max_episode_length)

    def _open(
        self,
        spec: EnvSpec,
        *,
        are_inferred: bool,
        source: Document | None = None,
        committed: Committed | None = None,
        before: DatasetInfo | None = None,
        replace_from: tuple[int, ...] = (),
    ) -> None:
        """Open the dataset, or a new version of it that starts with the episodes of the old one."""
        settings = DatasetSettings(
            spec,
            [source or self._source(are_inferred=are_inferred)],
            (0,),
            next_observation=self._next_observation,
            limits=self._limits,
            before=before,
        )
        folder = OutputFolder(
            self._path,
            overwrite=self._overwrite or bool(replace_from),
            replace_from=replace_from,
            lock=self._lock,
        )
        self._writer = DatasetWriter(folder, settings, committed=committed, flush_seconds=self._flush_every)
        self._rows = (SpaceRows(spec.observation_space), SpaceRows(spec.action_space))

    def _source(self, *, are_inferred: bool) -> dict[str, Any]:
        """Return the record of the source: what is unknown is null or absent."""
        return {
            "kind": self._kind,
            "root_seed": None,
            "env": {"id": self._env, "max_episode_length": self._max_episode_length},
            "env_source": {} if self._env is None else {"spec": self._env},
            "policy": {} if self._policy is None else {"spec": self._policy},
            "spaces": "inferred" if are_inferred else "given",
            "reproducible": {"status": "unknown", "reason": self._kind},
            **surroundings(),
        }

    def _continues(self) -> bool:
        """Open the dataset in the folder behind its last committed episode; return False if there is none."""
        recover_replaced(file_store(self._path), self._path)
        if has_no_dataset(self._path):
            return False
        self._continue(read_info(self._path))
        return True

    def _continue(self, info: DatasetInfo) -> None:
        """Open the dataset that `info` describes behind its last committed episode."""
        source = info["sources"][0]
        schema = DatasetSchema.from_info(info)
        stored = schema.spaces.env_spec
        observation_space, action_space = self._spaces
        limit = self._max_episode_length or stored.max_episode_length
        spec = EnvSpec(
            observation_space or stored.observation_space, action_space or stored.action_space, limit
        )
        self._n_cut = source.get("cut", 0)
        self._next_observation = info["next_observation"]
        self._limits = SizeLimits(**info["limits"])
        _check_continuable(self._path, info, stored, spec, self._segment_bytes)
        committed = read_committed(self._path, info)
        for notice in committed.notices:
            _log.warning("%s", notice)
        self.next_number = committed.partitions[0].next_number
        if committed.can_resume:
            self._open(stored, are_inferred=False, source=source, committed=committed)
            return
        # The columns are not decided: the few episodes are written again, followed by the new ones.
        held = self._held(schema, committed)
        replace_from = tuple(partition.next_number for partition in committed.partitions)
        if not held:
            self._overwrite = True
        self._open(stored, are_inferred=False, source=source, before=info, replace_from=replace_from)
        for chunk in held:
            self._opened.write(chunk)

    def _held(self, schema: DatasetSchema, committed: Committed) -> list[Chunk]:
        """Return the committed episodes of a dataset without decided columns."""
        parts = [
            read_tables(self._path, schema, written.segment, written.record) for written in committed.segments
        ]
        return [decode_chunk(schema, steps, episodes) for steps, episodes in parts]


def _check_continuable(
    path: Path, info: DatasetInfo, stored: EnvSpec, given: EnvSpec, segment_bytes: int | None
) -> None:
    """Raise UsageError if the dataset has another origin, other spaces or another maximum size of data files."""
    if info["derived"] or info["sources"][0]["root_seed"] is not None:
        made = "made from other datasets" if info["derived"] else "collected by `rollout`"
        raise UsageError(
            f"{path} was {made}, expected a dataset of a Writer or Recorder",
            code="resume-kind",
            hint="choose another path, or pass overwrite=True to replace the dataset",
        )
    if SpaceSchema.of(given).describe() != info["spaces"]:
        raise UsageError(
            f"the spaces of {path} are {stored.observation_space} and {stored.action_space}, "
            f"expected {given.observation_space} and {given.action_space}",
            code="resume-spaces",
            hint="pass the spaces of the dataset, or choose another path",
        )
    if segment_bytes not in {None, info["limits"]["segment_bytes"]}:
        raise UsageError(
            f"segment_bytes of {path} is {info['limits']['segment_bytes']:,}, expected {segment_bytes:,}",
            code="resume-limits",
            hint="leave segment_bytes out to keep the size of the dataset, or choose another path",
        )
