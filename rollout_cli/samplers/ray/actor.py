"""Actor: a worker on a node of a Ray cluster; Stored: the source of a chunk in the cluster's object store."""

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
"""Longer than for local processes, because Ray sends objects under 100 kB through the driver."""


class Reply(NamedTuple):
    """The result of a turn for the driver; the chunk of each `Batch` is a ChunkRef without a source."""

    events: list[Event]
    idle: bool
    running_numbers: tuple[int, ...]


class Actor:
    """One worker as a Ray actor."""

    def __init__(self, setup: WorkerSetup, turn_seconds: float) -> None:
        self._worker = setup.worker
        self._loop = _new_loop(setup, turn_seconds)

    def turn(
        self, commands: Sequence[ToWorker], updates: tuple[Update, ...] = ()
    ) -> tuple[bytes, list[Chunk]]:
        """Run a turn; return the packed reply and the chunks of its batches, in order.

        `updates` belong to the `Start` among the commands. They are a separate argument, because many actors
        share one object in the store.
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
    raise InternalError("an actor loaded a chunk before the driver set the source of the chunk")


def _packed(reply: Reply) -> bytes:
    return zlib.compress(cloudpickle.dumps(reply), 1)


def unpacked(reply: bytes) -> Reply:
    """Return an actor's reply from its packed bytes."""
    unpickled: Reply = pickle.loads(zlib.decompress(reply))  # noqa: S301  It was pickled by our own actor.
    return unpickled


class Recipe(NamedTuple):
    """The data needed to rerun a worker's episodes."""

    setup: WorkerSetup
    updates: Any  # The reference to the complete history of updates.
    stride: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The source of one chunk of a turn; if the store has lost the chunk, loading it reruns its episodes."""

    objects: Any  # The reference to the turn's chunks.
    index: int
    recipe: Any  # The reference to a Recipe.
    numbers: tuple[range, ...]
    lengths: Array
    files: tuple[PinnedFile, ...] = ()  # Files that the worker had read.

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
        # Long episodes are sent after shorter ones with higher numbers. No chunk comes if all are rejected.
        chunk = in_order(concatenate(chunks)) if chunks else None
        if chunk is None or not np.array_equal(chunk.lengths, self.lengths):
            first = self.numbers[0].start
            last = self.numbers[-1][-1]
            raise WorkerError(
                f"episodes {first} to {last} were lost with a node of the "
                "Ray cluster, and had different lengths when rerun",
                code="episodes-lost",
                hint="collect these episodes again: they are not reproducible",
            )
        return chunk
