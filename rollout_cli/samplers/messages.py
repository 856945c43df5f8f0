"""The messages between a sampler and its workers: frozen values.

`generation` counts the calls of a sampler; it discards messages that a worker sent under an older one.
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
"""Finished episodes with this many rows are always sent at once."""

Lease = tuple[range, ...]
"""Episode numbers that a worker is to run: rising ranges that are not empty."""


@dataclass(frozen=True, slots=True)
class Update:
    """What changes in a worker, the environment first; pickled, so that a failure to load it is reported."""

    agent: bytes | None = None  # A policy or parameters; None for no change.
    env: bytes | None = None  # An environment or EnvUpdate.
    is_policy: bool = False  # Whether `agent` is a policy: the one before need not fit the environment.


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a new generation: apply the updates, answer `Started`, then run the lease."""

    generation: int
    updates: tuple[Update, ...] = ()  # To be applied in this order.
    lease: Lease = ()
    stride: int = 1  # The step from one of the worker's numbers to the next, where it owns every m-th number.
    salt: tuple[int, ...] = ()  # No other `Start` of this worker, in a run and those that resume it, has it.
    due_rows: int = FLUSH_ROWS  # See `Continue`.
    rebuild: bool = False  # Whether the worker first gives up what it has built; the updates are then all.


@dataclass(frozen=True, slots=True)
class Continue:
    """Run more numbers, and drop those above `last_needed`, if it is known.

    Finished episodes with `due_rows` rows are sent at once: they may end the plan.
    """

    lease: Lease = ()
    last_needed: int | None = None
    due_rows: int = FLUSH_ROWS


@dataclass(frozen=True, slots=True)
class Stop:
    """Drop all numbers and finished episodes, and wait: the call is over."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Close the environment, and end."""


ToWorker = Start | Continue | Stop | Exit


@dataclass(frozen=True, slots=True, eq=False)
class FromWorker:
    """What a worker sends, and for which call of its sampler."""

    worker: int
    generation: int


@dataclass(frozen=True, slots=True)
class Started(FromWorker):
    """The updates of a generation are applied; the report names the files that were read meanwhile.

    It was sent `at` this time, in seconds since the epoch: the sampler may be busy when it comes.
    """

    env_spec: EnvSpec
    report: WorkerReport = field(default_factory=WorkerReport)
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Reported(FromWorker):
    """A worker's first episode has ended; the report names the files that were read until then."""

    report: WorkerReport


@dataclass(frozen=True, slots=True, eq=False)
class Batch(FromWorker):
    """Finished episodes, whose numbers rise and may have gaps."""

    chunk: AnyChunk


@dataclass(frozen=True, slots=True, eq=False)
class Judged(FromWorker):
    """Which episodes were rejected, where workers keep some alone; a `Batch` with those kept may follow."""

    rejected: Array  # Their numbers, rising int64 (N,).
    # Of each info that the judgement needs and no episode of this worker has had so far: what is wrong.
    unmet: Mapping[str, RolloutError]


@dataclass(frozen=True, slots=True, eq=False)
class Failed(FromWorker):
    """Something raised in the worker. It has no numbers left, and waits for a `Start` that rebuilds it."""

    error: RolloutError
    numbers: tuple[int, ...] = ()  # The user's code failed in one of these episodes, if in any.

    @classmethod
    def of(cls, worker: int, generation: int, error: Exception) -> Self:
        """Return the report of anything that was raised."""
        numbers = tuple(sorted(error.episodes)) if isinstance(error, UserCodeError) else ()
        return cls(worker, generation, as_reported(error), numbers)


ToSampler = Started | Reported | Batch | Judged | Failed


def as_reported(error: Exception) -> RolloutError:
    """Return `error` as one of ours that can be pickled; the traceback of user code becomes the details.

    In the same process the original is its cause, so that a debugger finds the frames.
    """
    reported: RolloutError
    if isinstance(error, MemoryError):
        reported = WorkerError(
            f"a worker ran out of memory: {first_line(error)}",
            code="worker-out-of-memory",
            hint="run fewer workers or environments at once, or shorter episodes",
            details=traceback_text(error),
        )
    elif not isinstance(error, RolloutError):
        reported = InternalError(f"a worker failed: {first_line(error)}", details=traceback_text(error))
    else:
        # A class of the user's own may not be importable in the caller's process, or want other arguments.
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
    """Return a worker's error as Python shows it: the user's own is its cause, the hint is a note."""
    if error.__cause__ is None and error.details:
        error.__cause__ = RemoteError(error.details)
    if error.hint and not hasattr(error, "__notes__"):
        error.add_note(f"hint: {error.hint.replace('traceback below', 'traceback above')}")
    return error


def _users_traceback(error: BaseException) -> str:
    """Return the first cause that is no error of ours, from its first foreign frame on; empty for none.

    Where every frame is ours, user code gave something wrong, and the message says what.
    """
    chain = [error]
    # Nothing keeps a user's code from raising an error from itself, or two from each other.
    while isinstance(error, RolloutError) and error.__cause__ is not None and error.__cause__ not in chain:
        error = error.__cause__
        chain.append(error)
    trace = error.__traceback__
    while trace is not None and _OURS in Path(trace.tb_frame.f_code.co_filename).parents:
        trace = trace.tb_next
    if isinstance(error, RolloutError) or trace is None:
        return ""
    return traceback_text(error.with_traceback(trace))
