"""RolloutBuffer: the steps of n rows in time-major rings, from which whole episodes are gathered.

A step of all rows is one copy a column, and many short episodes are gathered by one index. Long ones are put aside in
pieces before the ring comes round to them, so memory is bounded by what the episodes themselves need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.infos import InfoTable, tabulate
from rollout_cli.episodes.spaces import Leaf
from rollout_cli.workers.batches import batch_columns, info_table
from rollout_cli.workers.recording import in_order

Array = npt.NDArray[Any]
Columns = Mapping[Any, Array]
"""Arrays (T, ...) of steps or episodes: by kind and index of a leaf, by kind and key of an info, or by a fact."""

_PADDING = 8
"""Rows of the rings that no row of the environment has. Without them one row's steps lie a power of two bytes apart,
share few lines of the processor's cache, and take three times as long to gather."""

_RING_BYTES = 32 << 20
_FEWEST_STEPS, _MOST_STEPS = 16, 1024

_FACTS: dict[str, Any] = {
    **dict.fromkeys(("number", "seed", "start", "stop", "unsaved"), np.int64),
    **dict.fromkeys(("terminated", "truncated"), np.bool_),
    **dict.fromkeys(("began", "ended"), np.float64),
    "info": object,
}
Episodes = dict[str, Array]
"""Facts of k episodes, an array (k,) each: number (-1 for none), row, seed of the reset (-1 for none), first step and
the one after the last, first step that was not put aside, flags, times of the reset and of the end, info of the reset.
Steps are counted over all that the buffer recorded, times are seconds of one clock."""


def new_episodes(n_rows: int) -> Episodes:
    """Return the facts of rows that run no episode."""
    return {name: np.full(n_rows, -1).astype(kind) for name, kind in _FACTS.items()} | {"row": np.arange(n_rows)}


class RolloutBuffer:
    """Columns of n rows, whose `observation` and `action` have these leaves.

    Attributes:
        step: How many steps were recorded.
        row_bytes: The bytes of one row, without its texts.
        finished_rows: How many steps the episodes have that ended and were not taken.
    """

    def __init__(self, leaves: Mapping[str, Sequence[Leaf]], n_rows: int, worker_number: int) -> None:
        self._n_rows, self._width, self._worker_number = n_rows, n_rows + _PADDING, worker_number
        self.row_bytes = sum(leaf.row_bytes for of_space in leaves.values() for leaf in of_space) + 8
        fitting = _RING_BYTES // (self.row_bytes * self._width)
        self._n_slots = max(_FEWEST_STEPS, min(_MOST_STEPS, fitting))
        self._rings: dict[tuple[str, Any], Array] = {("reward", 0): self._ring(np.float64)}
        for kind, of_space in leaves.items():
            for at, leaf in enumerate(of_space):
                self._rings[kind, at] = self._ring(leaf.dtype, leaf.shape)
        self._pieces: dict[int, list[Columns]] = {}
        self._ended: list[Columns] = []
        self._overdue: list[Chunk] = []
        self.step = self.finished_rows = 0

    def _ring(self, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> Array:
        return np.zeros((self._n_slots, self._width, *shape), dtype)

    # -- a step ------------------------------------------------------------------------------------------------------

    def begin_step(self, observations: Iterable[Array]) -> None:
        """Begin a step with its observations, one array (n, *shape) a leaf."""
        for (kind, _), ring in self._rings.items():
            if kind.startswith("has "):
                ring[self.step % self._n_slots] = False
        self.put("observation", observations)

    def put(self, kind: Literal["observation", "action", "reward"], leaves: Iterable[Array]) -> None:
        """Record one array (n, *shape) a leaf in the present step."""
        slot = self.step % self._n_slots
        for at, leaf in enumerate(leaves):
            self._rings[kind, at][slot, : self._n_rows] = leaf

    def put_infos(self, kind: Literal["env", "agent"], infos: Any, within: Array | None = None) -> None:
        """Record infos of the present step, of the rows in the mask `within` (n,); None for all."""
        if type(infos) is dict and not infos:
            return
        slot = self.step % self._n_slots
        for key, values, has in batch_columns(infos, self._n_rows):
            if (kind, key) not in self._rings:
                self._rings[kind, key] = self._ring(values.dtype, values.shape[1:])
                self._rings[f"has {kind}", key] = self._ring(np.bool_)
            mask = np.ones(self._n_rows, bool) if within is None else within
            mask = mask if has is None else mask & has
            self._rings[kind, key][slot, : self._n_rows][mask] = values[mask]
            self._rings[f"has {kind}", key][slot, : self._n_rows] |= mask

    def end_step(self) -> bool:
        """Count the step; return whether `make_room` must come before the next one."""
        self.step += 1
        return self.step % (self._n_slots // 2) == 0

    def make_room(self, running: Episodes) -> None:
        """Put aside older episodes that ended, and older steps of those that run, before the rings overwrite them."""
        oldest = self.step - self._n_slots // 2
        if self._ended:
            self._overdue += self._cut(lambda ended: ended["unsaved"] < oldest)
        rows = np.flatnonzero((running["number"] >= 0) & (running["unsaved"] < oldest))
        episodes = {**_selected(running, rows), "stop": np.full(len(rows), self.step)}
        for number, steps in self._gathered_each(episodes):
            # A copy does not keep others' steps in memory.
            self._pieces.setdefault(number, []).append({key: column.copy() for key, column in steps.items()})
        running["unsaved"][rows] = self.step

    def _gathered(self, episodes: Columns) -> Columns:
        """Return the steps of episodes that were not put aside, by one index for all of them."""
        starts, lengths = episodes["unsaved"], episodes["stop"] - episodes["unsaved"]
        begins = np.cumsum(lengths) - lengths
        index = np.repeat((starts % self._n_slots - begins) * self._width + episodes["row"], lengths)
        index += np.arange(0, len(index) * self._width, self._width)
        # A place past the end is one at the beginning: that is what makes it a ring.
        return {
            key: ring.reshape(self._n_slots * self._width, *ring.shape[2:]).take(index, axis=0, mode="wrap")
            for key, ring in self._rings.items()
        }

    def _gathered_each(self, episodes: Columns) -> Iterator[tuple[int, Columns]]:
        steps = self._gathered(episodes)
        stops = np.cumsum(episodes["stop"] - episodes["unsaved"]).tolist()
        for number, start, stop in zip(episodes["number"].tolist(), [0, *stops], stops, strict=False):
            yield number, {key: column[start:stop] for key, column in steps.items()}

    # -- episodes ----------------------------------------------------------------------------------------------------

    def end(self, episodes: Episodes, last_observations: Iterable[Array]) -> None:
        """Take note of k episodes that ended, and of their last observations, one array (k, *shape) a leaf."""
        self._ended.append({**episodes, **{("last", at): leaf for at, leaf in enumerate(last_observations)}})
        self.finished_rows += int((episodes["stop"] - episodes["start"]).sum())

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the steps of episodes that were given up."""
        for number in numbers if self._pieces else ():
            self._pieces.pop(number, None)

    def take(self, below: int | None, ended_before: float) -> Chunk | None:
        """Remove episodes that ended and return them in the order of their numbers; None where there are none.

        Those stay that are not `below` the lowest number that still runs or waits (None gives all), unless they ended
        before the time `ended_before`.
        """
        chunks, self._overdue = self._overdue, []
        if self._ended:
            chunks += self._cut(
                lambda ended: (ended["ended"] < ended_before) | (below is None or ended["number"] < below)
            )
        if not chunks:
            return None
        chunk = in_order(concatenate(chunks))
        self.finished_rows -= chunk.n_steps
        return chunk

    def _cut(self, is_meant: Callable[[Columns], Array]) -> list[Chunk]:
        """Remove the episodes that ended and are meant, bool (k,), and return them."""
        ended = _joined(self._ended)
        meant = is_meant(ended)
        self._ended = [] if meant.all() else [_selected(ended, ~meant)]
        return [self._chunk(_selected(ended, meant))] if meant.any() else []

    def _chunk(self, ended: Columns) -> Chunk:
        ended = _selected(ended, np.argsort(ended["number"]))
        if not self._pieces.keys().isdisjoint(ended["number"].tolist()):
            parts = [[*self._pieces.pop(number, ()), rest] for number, rest in self._gathered_each(ended)]
            steps = _joined([part for pieces in parts for part in pieces])
        else:
            steps = self._gathered(ended)
        return Chunk(
            numbers=ended["number"],
            seeds=ended["seed"],
            lengths=ended["stop"] - ended["start"],
            terminated=ended["terminated"],
            truncated=ended["truncated"],
            workers=np.full(len(ended["number"]), self._worker_number, np.int32),
            wall_times=ended["ended"] - ended["began"],
            observations=_leaves(steps, "observation"),
            actions=_leaves(steps, "action"),
            rewards=steps["reward", 0],
            last_observations=_leaves(ended, "last"),
            env_infos=_infos(steps, "env"),
            agent_infos=_infos(steps, "agent"),
            episode_infos=tabulate(ended["info"].tolist()),
        )


def _leaves(columns: Columns, kind: str) -> tuple[Array, ...]:
    return tuple(column for key, column in columns.items() if key[0] == kind)


def _infos(steps: Columns, kind: str) -> InfoTable:
    columns = {key: (values, steps[f"has {kind}", key]) for (of, key), values in steps.items() if of == kind}
    return info_table(len(steps["reward", 0]), columns)


def _selected(columns: Columns, which: Array) -> Columns:
    return {key: column[which] for key, column in columns.items()}


def _joined(parts: Sequence[Columns]) -> Columns:
    """Return the parts after one another; some may lack infos that others have, and get zeros that nobody reads."""
    examples = {key: column for part in parts for key, column in part.items()}

    def column(part: Columns, key: Any) -> Array:
        missing = examples[key]
        return part[key] if key in part else np.zeros((len(part["reward", 0]), *missing.shape[1:]), missing.dtype)

    return {key: np.concatenate([column(part, key) for part in parts]) for key in examples}
