"""The messages between a sampler and its workers.

Each is a named frozen value. `version` counts the calls of a sampler: a worker stamps what it sends with the version it
works under, and the sampler discards what belongs to an older one.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from rollout_cli.chunk import Chunk, Part
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.packing import Piece, pack, packed_size, unpack
from rollout_cli.samplers.ranges import contiguous_ranges

Array = npt.NDArray[Any]

Lease = tuple[range, ...]
"""Episode numbers that a worker is to run."""


def lease_numbers(lease: Lease) -> list[int]:
    """Return the episode numbers of a lease."""
    return list(chain.from_iterable(lease))


@dataclass(frozen=True, slots=True)
class Pickled:
    """A value that is unpickled only where it is used, so that a failure to do so can be told as what it is.

    Attributes:
        data: The value, by cloudpickle (which takes lambdas and classes of the main script by value).
    """

    data: bytes

    @classmethod
    def of(cls, value: Any) -> Pickled | None:
        """Return `value` pickled; None stays None, for it means that there is nothing."""
        return None if value is None else cls(cloudpickle.dumps(value))

    def load(self) -> Any:
        """Return the value."""
        return pickle.loads(self.data)


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a new version: apply the updates, then run the lease.

    Attributes:
        version: The new version.
        agent_update: A policy, PolicySource or parameters; None changes nothing.
        env_update: An environment, EnvSource or EnvUpdate; None changes nothing.
        lease: Episode numbers to run.
        ceiling: The highest number that is still wanted; None for no limit.
        stride: The step from one of the worker's numbers to the next, where it owns every m-th number.
        anew: Whether the worker forgets all that it has built, and builds it from these updates.
    """

    version: int
    agent_update: Pickled | None = None
    env_update: Pickled | None = None
    lease: Lease = ()
    ceiling: int | None = None
    stride: int = 1
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on: run more numbers, and drop those above the ceiling."""

    lease: Lease = ()
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Send what is finished, give back the rest, and wait."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process."""


ToWorker = Start | Continue | Stop | Exit


@dataclass(frozen=True, slots=True)
class Started:
    """The updates of a version are applied; what the worker learnt of its environment and policy."""

    worker: int
    version: int
    env_spec: EnvSpec
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Finished episodes.

    Attributes:
        worker: Who ran them.
        version: Under which version.
        numbers: Their episode numbers: rising ranges without gaps; one, unless others of the worker's still run.
        lengths: Their lengths, int64 (N,), those of all ranges in one; of a part, the whole episode's.
        payload: The packed chunk: the pieces of `packing.pack`, or one, in which they lie after one another.
        part: Set where this is one part of a long episode.
        not_reproducible: Why the worker's episodes cannot be reproduced, where it has seen that.
    """

    worker: int
    version: int
    numbers: tuple[range, ...]
    lengths: Array = field(repr=False)
    payload: tuple[Piece, ...] = field(repr=False)
    part: Part | None = None
    not_reproducible: str | None = None

    def __post_init__(self) -> None:
        """Check that every number has a length."""
        if sum(map(len, self.numbers)) != len(self.lengths):
            raise ValueError(f"a batch has the lengths of {len(self.lengths)} episodes, and numbers {self.numbers}")

    @classmethod
    def of(cls, chunk: Chunk, worker: int, version: int, not_reproducible: str | None) -> Batch:
        """Return a worker's finished episodes, packed."""
        part = chunk.part
        lengths = np.asarray([part.episode_length] if part else chunk.lengths, np.int64)
        ranges = contiguous_ranges(chunk.numbers)
        return cls(worker, version, ranges, lengths, tuple(pack(chunk)), part, not_reproducible)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The lengths are few and kept for longer: in memory of their own they do not hold on to what was read together
        # with them.
        del protocol
        payload = tuple(map(bytes, self.payload))
        edges = tuple(edge for numbers in self.numbers for edge in (numbers.start, numbers.stop))
        rest = (payload, self.part, self.not_reproducible)
        return _unpickled_batch, (self.worker, self.version, edges, self.lengths.tobytes(), *rest)


def _unpickled_batch(worker: int, version: int, edges: tuple[int, ...], lengths: bytes, *rest: Any) -> Batch:
    """Return a batch from plain values, which are pickled faster than ranges and arrays."""
    edge = iter(edges)
    return Batch(worker, version, tuple(map(range, edge, edge)), np.frombuffer(lengths, np.int64), *rest)


@dataclass(frozen=True, slots=True)
class Returned:
    """Numbers that the worker did not run, or not to their end."""

    worker: int
    version: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker's policy or environment failed; it waits for a `Start`, with no numbers.

    Attributes:
        worker: Who.
        version: Under which version.
        error: A pickled RolloutError, whose details hold the traceback.
        numbers: In which episode the user's code failed, or in which it may have been; none where it was in no episode.
    """

    worker: int
    version: int
    error: bytes
    numbers: tuple[int, ...] = ()


ToSampler = Started | Batch | Returned | Failed


def to_wire(message: Any) -> list[Piece]:
    """Return a message as byte pieces, the payload's own pieces among them: none of them is joined or copied."""
    if isinstance(message, Batch):
        return [*pack(replace(message, payload=())), *message.payload]
    return pack(message)


def from_wire(data: memoryview) -> Any:
    """Return the message that the joined pieces of `to_wire` stand for; a payload is one piece then, a view.

    Raises:
        ValueError: If the payload is not as long as it says.
    """
    message = unpack(data)
    if not isinstance(message, Batch):
        return message
    payload = data[packed_size(data) :]
    if len(payload) and packed_size(payload) != len(payload):
        raise ValueError(f"a payload of {packed_size(payload)} bytes has {len(payload)}")
    return replace(message, payload=(payload,))
