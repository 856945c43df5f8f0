"""The messages between a sampler and its workers: frozen values.

`generation` counts the calls of a sampler. A worker stamps each message with the one that it works under, and the
sampler discards messages of an older one.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Self

import cloudpickle

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import RolloutError

Lease = tuple[range, ...]
"""Episode numbers that a worker is to run: rising ranges that are not empty."""


@dataclass(frozen=True, slots=True)
class Pickled:
    """A value that is unpickled only where it is used, so that a failure to do so is reported as what it is.

    Attributes:
        data: The value, by cloudpickle (which takes lambdas and classes of the main script by value).
    """

    data: bytes = field(repr=False)

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return `value` pickled; None stays None: it means that nothing changes."""
        return None if value is None else cls(cloudpickle.dumps(value))

    def load(self) -> Any:
        """Return a new copy of the value."""
        return pickle.loads(self.data)  # noqa: S301  It was pickled by this package's own process.


@dataclass(frozen=True, slots=True)
class Update:
    """What changes in a worker, the environment first; None changes nothing.

    Attributes:
        agent: A policy, PolicySource or parameters.
        env: An environment, EnvSource or EnvUpdate.
    """

    agent: Pickled | None = None
    env: Pickled | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a new generation: apply the updates, answer `Started`, then run the lease.

    Attributes:
        generation: The new generation.
        updates: Applied in this order.
        lease: Episode numbers to run.
        last_needed: The highest number that is still needed; None where it is not known yet.
        stride: The step from one of the worker's numbers to the next, where it owns every m-th number.
        rebuild: Whether the worker first gives up all that it has built; then the updates are its whole history.
    """

    generation: int
    updates: tuple[Update, ...] = ()
    lease: Lease = ()
    last_needed: int | None = None
    stride: int = 1
    rebuild: bool = False


@dataclass(frozen=True, slots=True)
class Continue:
    """Run more numbers, and drop those above the last one needed."""

    lease: Lease = ()
    last_needed: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Drop all numbers and finished episodes, and wait: the call is over."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Close the environment, and end."""


ToWorker = Start | Continue | Stop | Exit


@dataclass(frozen=True, slots=True)
class Started:
    """The updates of a generation are applied.

    Attributes:
        worker: Who.
        generation: Under which generation.
        env_spec: The environment's spaces and limit.
        info: What only a worker knows of its environment and policy, for info.json.
    """

    worker: int
    generation: int
    env_spec: EnvSpec = field(repr=False)
    info: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Finished episodes, or one part of a long one.

    Attributes:
        worker: Who ran them.
        generation: Under which generation.
        chunk: The episodes; their numbers rise, and may have gaps.
        not_reproducible: Why the worker's episodes cannot be reproduced, where it has seen that.
    """

    worker: int
    generation: int
    chunk: Chunk = field(repr=False)
    not_reproducible: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """Something raised in the worker. It has no numbers any more, and waits for a `Start` that rebuilds it.

    Attributes:
        worker: Who.
        generation: Under which generation.
        error: What was raised, as `transit_errors.as_reported` gives it.
        numbers: The episodes in one of which the user's code failed; none where the fault lies in no episode.
    """

    worker: int
    generation: int
    error: RolloutError
    numbers: tuple[int, ...] = ()


ToSampler = Started | Batch | Failed
