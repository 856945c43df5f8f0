"""RecordingWorker: what the workers that record into an EpisodeStore share."""

from __future__ import annotations

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import InternalError
from rollout_cli.workers.recorder import EpisodeStore
from rollout_cli.workers.worker import NumberedWorker


class RecordingWorker(NumberedWorker):
    """A worker whose finished episodes wait in an EpisodeStore, made when the environment's spaces are known."""

    _store: EpisodeStore | None = None

    def _take_spec(self, spec: EnvSpec) -> bool:
        """Make a store for episodes of `spec` where there is none; return whether it is a new one."""
        if self._store is not None and spec == self._store.env_spec:
            return False
        if self.finished_numbers:
            raise InternalError("the environment was replaced before the finished episodes were taken")
        self._store = EpisodeStore(spec, worker_number=self._worker_number)
        return True

    def _the_store(self) -> EpisodeStore:
        if self._store is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._store

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
        return self._the_store().env_spec

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
