"""What runs on a Ray cluster's nodes: a worker as an actor, and the source of the chunks it leaves."""

from __future__ import annotations

import pickle
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from rollout_cli.episodes.chunk import Chunk, ChunkRef, concatenate, in_order
from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import InternalError, WorkerError
from rollout_cli.samplers.messages import Batch, Failed, Reported, Start, Started, ToWorker, Update
from rollout_cli.samplers.pool import Event
from rollout_cli.samplers.ray import load_ray
from rollout_cli.samplers.worker_loop import WorkerLoop, take_turn
from rollout_cli.samplers.worker_setup import WorkerSetup
from rollout_cli.seeding.seeds import BorrowedGenerators
from rollout_cli.sources.pins import PinnedFile, agreed

TURN_SECONDS = 0.1

FLUSH_SECONDS = 0.25
"""Longer than in a process of this machine: an object under 100 kB would travel by way of the driver."""


class Reply(NamedTuple):
    """What a turn gives the driver; each `Batch` in it has a ChunkRef without a source as its chunk."""

    events: list[Event]
    idle: bool
    running_numbers: tuple[int, ...]


class Actor:
    """One worker."""

    def __init__(self, setup: WorkerSetup, turn_seconds: float) -> None:
        self._worker = setup.worker
        self._loop = _new_loop(setup, turn_seconds)

    def turn(
        self, commands: Sequence[ToWorker], updates: tuple[Update, ...] = ()
    ) -> tuple[bytes, list[Chunk]]:
        """Take a turn; return the reply, packed, and the chunks of its batches, in their order.

        `updates` are those of a `Start` among the commands: an object of the store, which many actors share.
        """
        commands = [*commands]
        for index, command in enumerate(commands):
            if isinstance(command, Start):
                commands[index] = replace(command, updates=updates)
        events = take_turn(self._loop, self._worker, commands)
        if self._loop.ended:
            self._loop.close()
        chunks = []
        for index, event in enumerate(events):
            if isinstance(event, Batch):
                chunks.append(event.chunk.load())
                events[index] = replace(event, chunk=_reference(event.chunk))
        reply = Reply(events, self._loop.idle, self._loop.running_numbers)
        return _packed(reply), chunks


def _new_loop(setup: WorkerSetup, turn_seconds: float) -> WorkerLoop:
    sys.path += [entry for entry in setup.path if entry not in sys.path]
    setup.enter_folder()
    return WorkerLoop(
        setup.load_factory,
        setup.worker,
        hashes_files=True,  # The driver's machine may not have them.
        turn_seconds=turn_seconds,
        flush_seconds=max(FLUSH_SECONDS, turn_seconds),
    )


def _reference(chunk: Any) -> ChunkRef:
    return ChunkRef(
        numbers=chunk.numbers,
        lengths=chunk.lengths,
        variable_bytes=chunk.variable_bytes,
        n_bytes=chunk.n_bytes,
        source=_no_source,
        whole_sum=chunk.return_sum,
    )


def _no_source() -> Chunk:
    raise InternalError("a chunk has no source before its reply is read")


def _packed(reply: Reply) -> bytes:
    return zlib.compress(cloudpickle.dumps(reply), 1)


def unpacked(reply: bytes) -> Reply:
    """Return the reply that an actor packed."""
    unpickled: Reply = pickle.loads(zlib.decompress(reply))  # noqa: S301  It was pickled by our own actor.
    return unpickled


class Recipe(NamedTuple):
    """What it takes to run a worker's episodes again."""

    setup: WorkerSetup
    updates: Any  # The reference to all of them.
    stride: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The source of one chunk of a turn. If the store lost the chunk, a call runs its episodes again."""

    objects: Any  # The reference to the chunks of the turn.
    index: int
    recipe: Any  # The reference to a Recipe.
    numbers: tuple[range, ...]
    lengths: Array
    files: tuple[PinnedFile, ...] = ()  # That its worker had read.

    def __call__(self) -> Chunk:
        ray = load_ray()
        try:
            chunk: Chunk = ray.get(self.objects)[self.index]
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
            with BorrowedGenerators():  # This may be the caller's process.
                chunk = self._run_again(ray.get(self.recipe))
        return chunk

    def _run_again(self, recipe: Recipe) -> Chunk:
        loop = _new_loop(recipe.setup, TURN_SECONDS)
        updates = load_ray().get(recipe.updates)
        messages = loop.turn(
            [Start(0, updates, self.numbers, recipe.stride, (0, self.numbers[0].start), rebuild=True)]
        )
        while not loop.idle:
            messages += loop.turn()
        loop.close()
        for message in messages:
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, Started | Reported):
                agreed(self.files, message.report.files)
        chunks = [message.chunk.load() for message in messages if isinstance(message, Batch)]
        # An episode that took long came after higher numbers. None comes where all are rejected this time.
        chunk = in_order(concatenate(chunks)) if chunks else None
        if chunk is None or not np.array_equal(chunk.lengths, self.lengths):
            raise WorkerError(
                f"episodes {self.numbers[0].start} to {self.numbers[-1][-1]} were lost "
                "with a node of the cluster, and had other lengths when they were run again",
                code="episodes-lost",
                hint="these episodes are not reproducible: collect them again",
            )
        return chunk
