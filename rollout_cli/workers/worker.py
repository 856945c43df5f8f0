"""Worker: runs episodes of one policy, and hands them to whoever asks: a sampler, or a script.

The verbs are garage's. Beside them a sampler gives a worker episode numbers and takes finished episodes as chunks; a
worker of one's own is a subclass of DefaultWorker or VecWorker, which do both.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import InternalError

OnInvalidAction = Literal["error", "clip", "warn"]

_GUARD_BYTES = 8 << 30
"""Bytes of observations after which an episode has no end: it is kept in memory until it ends."""

NO_NUMBER = -1
"""Stands for no episode, where a row runs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """What a worker does about user code that nearly keeps its contract.

    Attributes:
        invalid_action: What becomes of an action outside of its space: its episode fails before the environment sees
            it; it is moved to the nearest bound (which nan does not have); or it goes to the environment as it is.
        step_guard: Steps after which an episode that no limit ends is taken to have no end, and fails.
    """

    invalid_action: OnInvalidAction = "error"
    step_guard: int = 1_000_000

    def most_steps(self, row_bytes: int) -> int:
        """Return how many steps an episode without a limit may have, where each has so many bytes of observations."""
        return max(1, min(self.step_guard, _GUARD_BYTES // max(1, row_bytes)))


class CrashBox:
    """Where a worker notes that a row runs an episode, or none (NO_NUMBER); those of all rows; and that it is alive.

    `begin_turn` and `end_turn` enclose the time in which episodes run: a worker that builds or waits is not stuck in a
    step. The second is not called where the process ends in between. This box, the base, notes nothing.
    """

    def begin(self, row: int, number: int) -> None: ...
    def note(self, numbers: npt.NDArray[np.int64]) -> None: ...
    def step(self) -> None: ...
    def begin_turn(self) -> None: ...
    def end_turn(self) -> None: ...


class Worker(abc.ABC):
    """Runs episodes of one policy. A worker is built where it runs, by a WorkerFactory, and never pickled.

    The legal order of the verbs: `update_agent` and `update_env` at least once each; then any number of episodes, each
    by `start_episode`, `step_episode` until it returns True, and `collect_episode`; `rollout` does these three. A
    sampler calls `assign`, `advance` and `take` in place of these, and may call both updates again between them.

    Args:
        seed: The root seed of the run; every episode's seeds come from it and the episode's number.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.

    Attributes:
        worker_number: The same.
        rules: What it does about user code that nearly keeps its contract; set before its first update.
        crash_box: Where it notes which episodes run; set before its first update.
        number_stride: The step from one of its numbers to the next, where it owns every m-th number.
        not_reproducible: Why its episodes cannot be reproduced, as far as it is known by now; None if nothing is.
    """

    not_reproducible: str | None = None

    def __init__(self, *, seed: int, max_episode_length: float | None, worker_number: int) -> None:
        self._seed = seed
        self._max_episode_length = float("inf") if max_episode_length is None else max_episode_length
        self.worker_number = worker_number
        self.rules = EpisodeRules()
        self.crash_box = CrashBox()
        self.number_stride = 1
        self.worker_init()

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        """Return how many numbers a worker with these arguments runs at once: it wants its work in such blocks."""
        del worker_args
        return 1

    # -- garage's verbs ----------------------------------------------------------------------------------------------

    def worker_init(self) -> None:  # noqa: B027  A place for subclasses, as documented.
        """Prepare the process; called once, before the first update."""

    @abc.abstractmethod
    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy, or new parameters (a dict, tuple or array) for the present one; None changes nothing.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """

    @abc.abstractmethod
    def update_env(self, env_update: Any) -> None:
        """Take a new environment, or an EnvUpdate to apply to the present one; None changes nothing.

        Raises:
            EnvLoadError: If it cannot be built, or has a space that cannot be recorded.
        """

    @abc.abstractmethod
    def start_episode(self) -> None:
        """Begin the lowest assigned number; where none is assigned, the one after the last."""

    @abc.abstractmethod
    def step_episode(self) -> bool:
        """Take one step; return whether an episode ended."""

    @abc.abstractmethod
    def collect_episode(self) -> EpisodeBatch:
        """Return the finished episodes that were not collected yet; InternalError where there are none."""

    def rollout(self) -> EpisodeBatch:
        """Run one episode and return it."""
        self.start_episode()
        while not self.step_episode():
            pass
        return self.collect_episode()

    def shutdown(self) -> None:  # noqa: B027  A place for subclasses.
        """Close the environment; EnvError if that fails."""

    # -- the sampler's verbs -----------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def env_spec(self) -> EnvSpec:
        """Spaces and limit of its environment."""

    @abc.abstractmethod
    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to run; the lowest is run first."""

    @abc.abstractmethod
    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step.

        Raises:
            UserCodeError: If the policy or the environment fails; its `episodes` are the numbers where it may be.
        """

    @abc.abstractmethod
    def take(self, *, everything: bool = False) -> Chunk | None:
        """Remove finished episodes and return them in the order of their numbers; None where there are none.

        Where not `everything` is asked for, one that a lower number of this worker's holds up is kept back for up to a
        quarter of a second, so that a chunk has few gaps.
        """

    @abc.abstractmethod
    def retract(self, *, above: int | None) -> None:
        """Drop the waiting and running numbers above `above`; where it is None, all of them, and the finished ones."""

    @property
    @abc.abstractmethod
    def has_work(self) -> bool:
        """Whether an episode runs or a number waits."""

    @property
    @abc.abstractmethod
    def running_numbers(self) -> tuple[int, ...]:
        """The numbers of the episodes that run."""

    @property
    @abc.abstractmethod
    def finished_rows(self) -> int:
        """How many rows `take(everything=True)` would give."""

    @property
    @abc.abstractmethod
    def finished_bytes(self) -> int:
        """About how many bytes it would give."""

    def info(self) -> dict[str, Any]:
        """Return what info.json says of the policy and environment that only a worker knows."""
        return {}

    def __getstate__(self) -> NoReturn:
        hint = "pickle its WorkerFactory, and build the worker from it"
        raise InternalError(f"a {type(self).__name__} cannot be pickled", hint=hint)
