"""The messages between a sampler and its workers, as frozen dataclasses.

`generation` counts the calls of a sampler. The sampler discards messages of older generations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import AnyChunk
from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import (
    EnvError,
    InternalError,
    PolicyError,
    RemoteError,
    RolloutError,
    UserCodeError,
    WorkerError,
)
from rollout_cli.sources.loading import first_line, traceback_text
from rollout_cli.workers.values import WorkerReport

_OURS = Path(__file__).parents[1]

FLUSH_ROWS = 1 << 16
"""A worker with this many finished rows always sends them immediately."""

Lease = tuple[range, ...]
"""Episode numbers for a worker to run: rising, nonempty ranges."""


@dataclass(frozen=True, slots=True)
class Update:
    """A change of a worker's environment, then of its policy; pickled, so that the worker reports load errors."""

    agent: bytes | None = None  # A policy or parameters; None for no change.
    env: bytes | None = None  # An environment or EnvUpdate.
    is_policy: bool = False  # Whether `agent` is a policy: the old policy need not fit the new environment.


@dataclass(frozen=True, slots=True)
class Start:
    """Start a new generation: apply the updates, send `Started`, then run the lease."""

    generation: int
    updates: tuple[Update, ...] = ()  # Applied in this order.
    lease: Lease = ()
    stride: int = 1  # The difference between consecutive numbers of the worker.
    salt: tuple[int, ...] = ()  # Unique among the worker's `Start`s in a run and in runs that resume it.
    due_rows: int = FLUSH_ROWS  # See `Continue`.
    rebuild: bool = False  # Whether to rebuild the worker first; `updates` is then the complete history.


@dataclass(frozen=True, slots=True)
class Continue:
    """Run more numbers, and drop the numbers above `last_needed`, unless it is None.

    The worker sends finished episodes as soon as they have `due_rows` rows, because they may end the plan.
    """

    lease: Lease = ()
    last_needed: int | None = None
    due_rows: int = FLUSH_ROWS


@dataclass(frozen=True, slots=True)
class Stop:
    """Drop all numbers and finished episodes, and wait for the next call."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Close the environment and end."""


ToWorker = Start | Continue | Stop | Exit


@dataclass(frozen=True, slots=True, eq=False)
class FromWorker:
    """Base of all messages of a worker; `generation` is the sampler's call."""

    worker: int
    generation: int


@dataclass(frozen=True, slots=True)
class Started(FromWorker):
    """The worker has applied a generation's updates; the report names the files read meanwhile.

    `at` is the time of sending, in seconds since the epoch: the sampler may read the message much later.
    """

    env_spec: EnvSpec
    report: WorkerReport = field(default_factory=WorkerReport)
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Compiled(FromWorker):
    """The program of a JAX environment is compiled; the time until then says nothing about the worker's pace."""


@dataclass(frozen=True, slots=True)
class Reported(FromWorker):
    """The worker's first episode has ended; the report names the files read until then."""

    report: WorkerReport


@dataclass(frozen=True, slots=True, eq=False)
class Batch(FromWorker):
    """Finished episodes with rising numbers, which may have gaps."""

    chunk: AnyChunk


@dataclass(frozen=True, slots=True, eq=False)
class Judged(FromWorker):
    """Episodes that the run's `keep` expression rejected; a `Batch` with the kept episodes may follow."""

    rejected: Array  # Episode numbers, rising int64 (N,).
    # An error for each info that the expression needs and no episode of this worker has had so far.
    unmet: Mapping[str, RolloutError]


@dataclass(frozen=True, slots=True, eq=False)
class Failed(FromWorker):
    """The worker raised an error. Its leases are released; it waits for a `Start` message that rebuilds it."""

    error: RolloutError
    numbers: tuple[int, ...] = ()  # The episodes in which user code may have failed; empty for none.

    @classmethod
    def of(cls, worker: int, generation: int, error: Exception) -> Self:
        """Return the message that reports an exception."""
        numbers = tuple(sorted(error.episodes)) if isinstance(error, UserCodeError) else ()
        return cls(worker, generation, as_reported(error, worker), numbers)


ToSampler = Started | Compiled | Reported | Batch | Judged | Failed


def as_reported(error: Exception, worker: int) -> RolloutError:
    """Return `error` as a picklable RolloutError; the traceback of user code becomes its details.

    Within the same process the original error is the cause, so that a debugger can enter its frames.
    """
    reported: RolloutError
    if isinstance(error, MemoryError):
        reported = WorkerError(
            f"worker {worker} ran out of memory: {first_line(error)}",
            code="worker-out-of-memory",
            hint="use fewer workers, fewer environments per worker, or shorter episodes",
            details=traceback_text(error),
        )
    elif not isinstance(error, RolloutError):
        reported = InternalError(
            f"internal error in worker {worker}: {first_line(error)}",
            hint="report this bug of rollout with the lines below",
            details=traceback_text(error),
        )
    else:
        # The user's subclass may not be importable in the caller's process, or may need other arguments.
        kind = next(kind for kind in type(error).__mro__ if kind.__module__.startswith(f"{_OURS.name}."))
        details = str(error.details)
        if isinstance(error, EnvError | PolicyError) and not details:
            details = _users_traceback(error)
        if kind is type(error):
            error.details = details
            return error
        reported = kind(str(error.message), code=error.code, hint=str(error.marked_hint), details=details)
    reported.__cause__ = error
    return reported


def as_raised(error: RolloutError) -> RolloutError:
    """Return a worker's error for raising: the user's error becomes its cause, the hint a note."""
    if error.__cause__ is None and error.details:
        error.__cause__ = RemoteError(error.details)
    if error.hint and not hasattr(error, "__notes__"):
        error.add_note(f"hint: {error.hint.replace('traceback below', 'traceback above')}")
    return error


def _users_traceback(error: BaseException) -> str:
    """Return the traceback of the first cause that is not a RolloutError, from its first user frame on.

    It is empty if there is no such cause or every frame is of this package; the message then suffices.
    """
    chain = [error]
    # The chain of causes may have a cycle if user code raises an error from itself.
    while isinstance(error, RolloutError) and error.__cause__ is not None and error.__cause__ not in chain:
        error = error.__cause__
        chain.append(error)
    trace = error.__traceback__
    while trace is not None and _OURS in Path(trace.tb_frame.f_code.co_filename).parents:
        trace = trace.tb_next
    if isinstance(error, RolloutError) or trace is None:
        return ""
    return traceback_text(error.with_traceback(trace))
