"""Worker and NumberedWorker: what workers offer.

The verbs of Worker are garage's. Those that NumberedWorker adds let a sampler give it episode numbers and take finished
episodes as chunks; a class of the user's that has garage's verbs alone works through an adapter (`verbs_adapter.py`).
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy.typing as npt

from rollout_cli.buffer_pool import Lender
from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import InternalError
from rollout_cli.workers.rules import EpisodeRules

Array = npt.NDArray[Any]


class Worker(abc.ABC):
    """Runs episodes of one policy. A worker is built where it runs, by a WorkerFactory, and never pickled.

    The legal order: `update_agent` and `update_env` at least once each; then any number of episodes, each by
    `start_episode`, `step_episode` until it returns True, and `collect_episode`; `rollout` does these three.

    Args:
        seed: The root seed of the run; every episode's seeds come from it and the episode's number.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
    """

    def __init__(self, *, seed: int, max_episode_length: float | None, worker_number: int) -> None:
        self._seed = seed
        self._max_episode_length = float("inf") if max_episode_length is None else max_episode_length
        self._worker_number = worker_number
        self.worker_init()

    @property
    def worker_number(self) -> int:
        """Return which of the run's workers this is."""
        return self._worker_number

    def worker_init(self) -> None:  # noqa: B027  A place for subclasses, as documented.
        """Prepare the process; called once, before the first update."""

    @abc.abstractmethod
    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy, or new parameters (a dict, tuple or array) for the one it has; None changes nothing."""

    @abc.abstractmethod
    def update_env(self, env_update: Any) -> None:
        """Take a new environment, or an EnvUpdate to apply to the one it has; None changes nothing."""

    @abc.abstractmethod
    def start_episode(self) -> None:
        """Begin an episode; of a NumberedWorker the lowest assigned number, or where none is the one after the last."""

    @abc.abstractmethod
    def step_episode(self) -> bool:
        """Take one step; return whether the episode ended."""

    @abc.abstractmethod
    def collect_episode(self) -> EpisodeBatch:
        """Return the finished episodes that were not collected yet."""

    def rollout(self) -> EpisodeBatch:
        """Run one episode and return it."""
        self.start_episode()
        while not self.step_episode():
            pass
        return self.collect_episode()

    def shutdown(self) -> None:  # noqa: B027  A place for subclasses.
        """Close the environment."""

    def __getstate__(self) -> NoReturn:
        """Refuse: what a worker holds belongs to its process."""
        raise InternalError(
            f"a {type(self).__name__} cannot be pickled", hint="pickle its WorkerFactory, and build the worker from it"
        )


class NumberedWorker(Worker):
    """A worker that takes part in the numbering: a sampler gives it numbers, and each of them is a certain episode.

    A sampler uses `assign`, `advance` and `take`, and may call both updates again between them.

    Args:
        seed: As in Worker.
        max_episode_length: As in Worker.
        worker_number: As in Worker.

    Attributes:
        whole_episodes: Whether it gives whole episodes only, as everything but a FragmentWorker does.
        number_stride: The step from one of this worker's numbers to the next, where it owns every m-th number.
        rules: What it does about user code that keeps to its contract only nearly; set before its first update.
        lend: Lends memory to put large columns of finished episodes into, from where they are sent on without a copy; a
            worker may do without, and may leave columns as narrow as it kept them (`Chunk.types`). None where there is
            none.
    """

    whole_episodes: ClassVar[bool] = True
    lend: Lender | None = None

    def __init__(self, *, seed: int, max_episode_length: float | None, worker_number: int) -> None:
        self._waiting: deque[int] = deque()
        self._own_next = 0
        self.number_stride = 1
        self.rules = EpisodeRules()
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        """Return in blocks of how many numbers a worker with these arguments wants its work.

        They are the numbers that it runs at the same time, or whose episodes depend on each other.
        """
        del worker_args
        return 1

    @property
    @abc.abstractmethod
    def env_spec(self) -> EnvSpec:
        """Return spaces and limit of its environment."""

    @abc.abstractmethod
    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step."""

    @abc.abstractmethod
    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them; None where there are none."""

    @property
    @abc.abstractmethod
    def finished_numbers(self) -> list[int]:
        """Return the numbers of the finished episodes that wait to be taken."""

    def finished_since(self, count: int) -> Sequence[int] | Array:
        """Return those of them that came after the first `count`."""
        return self.finished_numbers[count:]

    @property
    @abc.abstractmethod
    def finished_lengths(self) -> list[int]:
        """Return their lengths, in the same order."""

    @property
    @abc.abstractmethod
    def finished_rows(self) -> int:
        """Return how many rows wait to be taken."""

    @property
    @abc.abstractmethod
    def running(self) -> bool:
        """Return whether an episode is under way."""

    def assign(self, numbers: Iterable[int]) -> None:
        """Add episode numbers to run; the lowest is run first."""
        self._waiting = deque(sorted((*self._waiting, *numbers)))

    def retract(self, *, above: int | None = None) -> None:
        """Give up the numbers that are higher than `above`, waiting or running; all of them where it is None."""
        self._waiting = deque(number for number in self._waiting if above is not None and number <= above)

    @property
    def has_work(self) -> bool:
        """Return whether an episode runs or a number waits."""
        return self.running or bool(self._waiting)

    def facts(self) -> dict[str, Any]:
        """Return what a dataset's header should tell of the policy and environment that only a worker knows."""
        return {}

    @property
    def not_reproducible(self) -> str | None:
        """Return why the episodes cannot be reproduced, as far as it is known by now; None where nothing speaks so."""
        return None

    def _next_number(self) -> int:
        number = self._waiting.popleft() if self._waiting else self._own_next
        self._own_next = number + 1
        return number
