"""The messages between a sampler and its workers: frozen values.

`generation` counts the calls of a sampler; it discards messages that a worker sent under an older one.
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
    """A value, by cloudpickle; it is unpickled where it is used, so that a failure is reported as what it is."""

    data: bytes = field(repr=False)

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return `value` pickled; None, which changes nothing, stays None."""
        return None if value is None else cls(cloudpickle.dumps(value))

    def load(self) -> Any:
        """Return a new copy of the value."""
        return pickle.loads(self.data)  # noqa: S301  It was pickled by this package's own process.


@dataclass(frozen=True, slots=True)
class Update:
    """What changes in a worker, the environment first: a policy or parameters, an environment or EnvUpdate."""

    agent: Pickled | None = None
    env: Pickled | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a new generation: apply the updates, answer `Started`, then run the lease."""

    generation: int
    updates: tuple[Update, ...] = ()  # What to apply, in this order.
    lease: Lease = ()
    last_needed: int | None = None  # The highest number that is still needed; None where it is not known yet.
    stride: int = 1  # The step from one of the worker's numbers to the next, where it owns every m-th number.
    rebuild: bool = False  # Whether the worker first gives up all that it has built; then the updates are all of them.


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
    """The updates of a generation are applied; `info` is what only a worker knows, for info.json."""

    worker: int
    generation: int
    env_spec: EnvSpec = field(repr=False)
    info: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Finished episodes, whose numbers rise and may have gaps, or one part of a long one.

    `not_reproducible` is why the worker's episodes cannot be reproduced, where it has seen that.
    """

    worker: int
    generation: int
    chunk: Chunk = field(repr=False)
    not_reproducible: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """Something raised in the worker. It has no numbers any more, and waits for a `Start` that rebuilds it.

    Attributes:
        error: What was raised, as `transit_errors.as_reported` gives it.
        numbers: The episodes in one of which the user's code failed; none where the fault lies in no episode.
    """

    worker: int
    generation: int
    error: RolloutError
    numbers: tuple[int, ...] = ()


ToSampler = Started | Batch | Failed
