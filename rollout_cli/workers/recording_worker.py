"""StoringWorker and RecordingWorker: what workers share whose finished episodes wait in a store of their own."""

from __future__ import annotations

import abc
from typing import Protocol

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import InternalError
from rollout_cli.workers.recorder import EpisodeStore
from rollout_cli.workers.worker import NumberedWorker


class Store(Protocol):
    """Where finished episodes wait."""

    env_spec: EnvSpec
    """The spaces that they are of."""

    @property
    def numbers(self) -> list[int]:
        """Return their numbers."""

    @property
    def lengths(self) -> list[int]:
        """Return their lengths, in the same order."""

    @property
    def n_rows(self) -> int:
        """Return the sum of those."""

    def take(self) -> Chunk | None:
        """Remove them and return them; None where there are none."""


class StoringWorker(NumberedWorker):
    """A worker whose finished episodes wait in a store, made when the environment's spaces are known."""

    _store: Store | None = None

    @abc.abstractmethod
    def _new_store(self, spec: EnvSpec) -> Store:
        """Make a store for episodes of `spec`."""

    def _take_spec(self, spec: EnvSpec) -> bool:
        """Make a store for episodes of `spec` where there is none; return whether it is a new one."""
        if self._store is not None and spec == self._store.env_spec:
            return False
        if self.finished_numbers:
            raise InternalError("the environment was replaced before the finished episodes were taken")
        self._store = self._new_store(spec)
        return True

    def collect_episode(self) -> EpisodeBatch:
        """Return the finished episodes that were not collected yet.

        Raises:
            InternalError: If no episode was finished.
        """
        chunk = self.take()
        if chunk is None:
            raise InternalError("collect_episode was called with no finished episode")
        return EpisodeBatch.from_chunks(self.env_spec, [chunk])

    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them; None where there are none."""
        return self._store.take() if self._store else None

    @property
    def env_spec(self) -> EnvSpec:
        """Return spaces and limit of its environment."""
        if self._store is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._store.env_spec

    @property
    def finished_numbers(self) -> list[int]:
        """Return the numbers of the finished episodes that wait to be taken."""
        return self._store.numbers if self._store else []

    @property
    def finished_lengths(self) -> list[int]:
        """Return their lengths, in the same order."""
        return self._store.lengths if self._store else []

    @property
    def finished_rows(self) -> int:
        """Return how many rows wait to be taken."""
        return self._store.n_rows if self._store else 0


class RecordingWorker(StoringWorker):
    """A worker that records into an EpisodeStore."""

    _store: EpisodeStore | None = None

    def _new_store(self, spec: EnvSpec) -> EpisodeStore:
        return EpisodeStore(spec, worker_number=self._worker_number, rules=self.rules)

    def _the_store(self) -> EpisodeStore:
        if self._store is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._store
