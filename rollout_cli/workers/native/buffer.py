"""RolloutBuffer, which stores the steps of n rows in time-major ring buffers and gathers complete episodes.

Recording a step of all rows takes one copy per column, and one index gathers many short episodes. Steps of
long episodes are copied out before the ring overwrites them, so memory is bounded by the episodes' own size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.chunk import Chunk, concatenate, in_order
from rollout_cli.episodes.infos import InfoTable, tabulate
from rollout_cli.episodes.spaces import Array, Leaf, map_tree
from rollout_cli.workers.batches import InfoKey, batch_columns, info_table

InfoGroup = Literal["env", "agent"]

_PADDING = 8
"""Unused extra rows of the rings. Without them, the steps of a row can be a power of two bytes apart, which
maps them to few cache lines and makes gathering three times slower."""

_RING_BYTES = 32 << 20
_FEWEST_STEPS = 16
_MOST_STEPS = 1024


@dataclass(slots=True)
class Episodes:
    """Metadata of k episodes, or of the running episodes of n rows, as one array (k,) or (n,) per field."""

    row: Array
    number: Array  # -1 if the row has no episode.
    seed: Array  # The seed of the reset; -1 if it had none.
    start: Array  # The first step, counted from the first step in the buffer.
    stop: Array  # One after the last step.
    unsaved: Array  # The first step that was not copied out of the rings.
    terminated: Array
    truncated: Array
    started_at: Array  # Time of the reset, in seconds of the workers' clock.
    ended_at: Array  # Time of the end, in the same seconds.
    info: Array  # The info of the reset.
    last: tuple[Array, ...] = ()  # The last observations, one array (k, *shape) a leaf.

    @classmethod
    def none(cls, n_rows: int) -> Self:
        """Return the metadata of rows without an episode."""
        facts: list[Any] = [
            np.arange(n_rows),
            *np.full((5, n_rows), -1),
            *np.zeros((2, n_rows), bool),
            *np.zeros((2, n_rows)),
            np.full(n_rows, None, object),
        ]
        return cls(*facts)

    def select(self, indices: Array) -> Self:
        """Return the episodes at these indices or in this mask."""
        facts = {name: getattr(self, name)[indices] for name in _FACTS}
        return replace(self, **facts, last=tuple([leaf[indices] for leaf in self.last]))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the concatenated episodes of the parts."""
        facts: dict[str, Any] = {}
        for name in _FACTS:
            facts[name] = np.concatenate([getattr(part, name) for part in parts])
        last = tuple(map(np.concatenate, zip(*(part.last for part in parts), strict=True)))
        return replace(parts[0], **facts, last=last)


_FACTS = [field.name for field in fields(Episodes) if field.name != "last"]


class Ring(NamedTuple):
    """Values of one info, and a mask of the steps that have a value."""

    values: Array
    has: Array


@dataclass(slots=True)
class Columns:
    """Steps of n rows in rings (slots, width, ...), or steps (T, ...) gathered from them."""

    leaves: list[Array]  # The leaves of observations, the leaves of actions, and the rewards.
    infos: dict[tuple[InfoGroup, InfoKey], Ring]

    def mapped(self, function: Callable[[Array], Array]) -> Self:
        """Apply a function to each column and return the new columns."""
        infos = {key: Ring(*map(function, ring)) for key, ring in self.infos.items()}
        return type(self)([function(leaf) for leaf in self.leaves], infos)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the concatenated parts; infos that a part lacks are filled with zeros and masked out."""
        examples: dict[Any, Ring] = {}
        for part in parts:
            examples |= part.infos
        rings: dict[Any, list[Ring]] = {key: [] for key in examples}
        for part in parts:
            count = len(part.leaves[-1])
            for key, (values, has) in examples.items():
                missing = Ring(np.zeros((count, *values.shape[1:]), values.dtype), np.zeros(count, has.dtype))
                rings[key].append(part.infos.get(key, missing))
        infos = {key: Ring(*map(np.concatenate, zip(*pieces, strict=True))) for key, pieces in rings.items()}
        leaves = zip(*(part.leaves for part in parts), strict=True)
        return cls(list(map(np.concatenate, leaves)), infos)


class RolloutBuffer:
    """Ring buffers for n rows, whose observations and actions have these leaves.

    Attributes:
        step: Number of recorded steps.
        row_bytes: Bytes of one step of one row, without its strings.
        finished_rows: Number of steps in finished episodes that were not taken.
    """

    def __init__(
        self, observations: Sequence[Leaf], actions: Sequence[Leaf], n_rows: int, worker_number: int
    ) -> None:
        self._n_rows = n_rows
        self._width = n_rows + _PADDING
        self._worker_number = worker_number
        self.row_bytes = sum(leaf.row_bytes for leaf in (*observations, *actions)) + 8
        fitting = _RING_BYTES // (self.row_bytes * self._width)
        self._n_slots = max(_FEWEST_STEPS, min(_MOST_STEPS, fitting))
        leaves = [self._ring(leaf.dtype, leaf.shape) for leaf in (*observations, *actions)]
        self._rings = Columns([*leaves, self._ring(np.float64)], {})
        self._n_observations = len(observations)
        self._pieces: dict[int, list[Columns]] = {}
        self._ended: list[Episodes] = []
        self._overdue: list[Chunk] = []
        self.step = self.finished_rows = 0

    def _ring(self, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> Array:
        return np.zeros((self._n_slots, self._width, *shape), dtype)

    # -- a step ----------------------------------------------------------------------------------------------

    def begin_step(self, observations: Iterable[Array]) -> None:
        """Start a step with its observations, one array (n, *shape) per leaf."""
        for ring in self._rings.infos.values():
            ring.has[self.step % self._n_slots] = False
        self._put(self._rings.leaves[: self._n_observations], observations)

    def put_actions(self, actions: Iterable[Array]) -> None:
        """Record the actions of the current step, one array (n, *shape) per leaf."""
        self._put(self._rings.leaves[self._n_observations : -1], actions)

    def put_rewards(self, rewards: Array) -> None:
        """Record the rewards of the current step, (n,)."""
        self._put(self._rings.leaves[-1:], [rewards])

    def _put(self, rings: Iterable[Array], columns: Iterable[Array]) -> None:
        slot = self.step % self._n_slots
        for ring, column in zip(rings, columns, strict=True):
            ring[slot, : self._n_rows] = column

    def put_infos(self, group: InfoGroup, infos: Any, within: Array | None = None) -> None:
        """Record infos of the current step for the rows in the mask `within` (n,), or for all rows."""
        if type(infos) is dict and not infos:
            return
        slot = self.step % self._n_slots
        for key, values, has in batch_columns(infos, self._n_rows):
            ring = self._info_ring(group, key, values)
            mask = np.ones(self._n_rows, bool) if within is None else within
            if has is not None:
                mask = mask & has
            ring.values[slot, : self._n_rows][mask] = values[mask]
            ring.has[slot, : self._n_rows] |= mask

    @property
    def most_block_steps(self) -> int:
        """The maximum number of steps of a block, if `make_room` is called after each block."""
        return self._n_slots // 2

    def put_block(
        self, columns: Iterable[Array], infos: Mapping[InfoGroup, dict[str, Any]], n_steps: int
    ) -> None:
        """Record `n_steps` complete steps; call `make_room` afterwards.

        Args:
            columns: One array (n_steps, n, *shape) per leaf of observations, per leaf of actions, and rewards.
            infos: Dictionaries of arrays (n_steps, n, ...) by group.
            n_steps: Number of steps, at most `most_block_steps`.
        """
        slots = np.arange(self.step, self.step + n_steps) % self._n_slots
        # Slices: an index array would copy element by element.
        edges = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), n_steps]
        parts = [(slice(slots[low], slots[high - 1] + 1), slice(low, high)) for low, high in pairwise(edges)]
        pairs = list(zip(self._rings.leaves, columns, strict=True))
        absent = dict(self._rings.infos)
        for group, tree in infos.items():
            flat = map_tree(lambda values: values.reshape(-1, *values.shape[2:]), tree)
            for key, values, _ in batch_columns(flat, n_steps * self._n_rows):
                ring = self._info_ring(group, key, values)
                absent.pop((group, key), None)
                pairs.append((ring.values, values.reshape(n_steps, self._n_rows, *values.shape[1:])))
                pairs.append((ring.has, np.ones((n_steps, self._n_rows), bool)))
        pairs += [(ring.has, np.zeros((n_steps, self._n_rows), bool)) for ring in absent.values()]
        for ring_values, values in pairs:
            for slot, part in parts:
                ring_values[slot, : self._n_rows] = values[part]
        self.step += n_steps

    def _info_ring(self, group: InfoGroup, key: InfoKey, values: Array) -> Ring:
        if (group, key) not in self._rings.infos:
            ring = Ring(self._ring(values.dtype, values.shape[1:]), self._ring(np.bool_))
            self._rings.infos[group, key] = ring
        return self._rings.infos[group, key]

    def end_step(self) -> bool:
        """Count the step; return True if `make_room` must be called before the next step."""
        self.step += 1
        return self.step % (self._n_slots // 2) == 0

    def make_room(self, running: Episodes, n_steps: int) -> None:
        """Copy ended episodes, and steps of running ones, which the next `n_steps` steps would overwrite."""
        oldest = self.step + n_steps - self._n_slots
        if any((ended.unsaved < oldest).any() for ended in self._ended):
            self._overdue += self._cut(lambda ended: ended.unsaved < oldest)
        rows = np.flatnonzero((running.number >= 0) & (running.unsaved < oldest))
        running.stop[rows] = self.step
        for number, steps in self._gathered_by_episode(running.select(rows)):
            # A view would keep the steps of all rows in memory.
            self._pieces.setdefault(number, []).append(steps.mapped(np.copy))
        running.unsaved[rows] = self.step

    def _gathered(self, episodes: Episodes) -> Columns:
        """Return the episodes' steps that are still in the rings, gathered with one index array."""
        starts = episodes.unsaved
        lengths = episodes.stop - episodes.unsaved
        offsets = np.cumsum(lengths) - lengths
        index = np.repeat((starts % self._n_slots - offsets) * self._width + episodes.row, lengths)
        index += np.arange(0, len(index) * self._width, self._width)

        def gathered(ring: Array) -> Array:
            # An index past the end wraps to the start of the ring.
            flat = ring.reshape(self._n_slots * self._width, *ring.shape[2:])
            return flat.take(index, axis=0, mode="wrap")

        return self._rings.mapped(gathered)

    def _gathered_by_episode(self, episodes: Episodes) -> Iterator[tuple[int, Columns]]:
        steps = self._gathered(episodes)
        stops = np.cumsum(episodes.stop - episodes.unsaved).tolist()
        for number, start, stop in zip(episodes.number.tolist(), [0, *stops], stops, strict=False):
            yield number, steps.mapped(itemgetter(slice(start, stop)))

    # -- episodes --------------------------------------------------------------------------------------------

    def end(self, episodes: Episodes) -> None:
        """Add k episodes that ended."""
        self._ended.append(episodes)
        self.finished_rows += int((episodes.stop - episodes.start).sum())

    def forget(self, numbers: Iterable[int]) -> None:
        """Delete the steps of discarded episodes."""
        for number in numbers:
            self._pieces.pop(number, None)

    def take(self, below: float, ended_before: float) -> list[Chunk]:
        """Remove ended episodes and return them in the order of their numbers, in one chunk or none.

        Episodes numbered `below` or higher stay, unless they ended before the time `ended_before` or the rings
        had no room for them.
        """
        chunks = self._overdue
        self._overdue = []
        if self._ended:
            chunks += self._cut(lambda ended: (ended.ended_at < ended_before) | (ended.number < below))
        if not chunks:
            return []
        chunk = in_order(concatenate(chunks))
        self.finished_rows -= chunk.n_steps
        return [chunk]

    def _cut(self, selected: Callable[[Episodes], Array]) -> list[Chunk]:
        """Remove the ended episodes that `selected` returns True for, bool (k,), and return them."""
        ended = Episodes.joined(self._ended)
        is_selected = selected(ended)
        self._ended = [] if is_selected.all() else [ended.select(~is_selected)]
        indices = np.flatnonzero(is_selected)
        indices = indices[np.argsort(ended.number[indices])]
        in_pieces = np.isin(ended.number[indices], list(self._pieces))
        # One index gathers all episodes that are still in the rings as a whole.
        parts = indices[~in_pieces], indices[in_pieces]
        return [self._chunk(ended.select(part)) for part in parts if len(part)]

    def _chunk(self, ended: Episodes) -> Chunk:
        """Return a chunk of these episodes, which are in the order of their numbers; all or none are in pieces."""
        if int(ended.number[0]) not in self._pieces:
            steps = self._gathered(ended)
        else:
            parts: list[Columns] = []
            for number, last_steps in self._gathered_by_episode(ended):
                parts += [*self._pieces.pop(number, ()), last_steps]
            steps = Columns.joined(parts)
        *leaves, rewards = steps.leaves
        return Chunk(
            numbers=ended.number,
            seeds=ended.seed,
            lengths=ended.stop - ended.start,
            terminated=ended.terminated,
            truncated=ended.truncated,
            workers=np.full(len(ended.number), self._worker_number, np.int32),
            wall_times=ended.ended_at - ended.started_at,
            observations=tuple(leaves[: self._n_observations]),
            actions=tuple(leaves[self._n_observations :]),
            rewards=rewards,
            last_observations=ended.last,
            env_infos=_infos(steps, "env"),
            agent_infos=_infos(steps, "agent"),
            episode_infos=tabulate(ended.info.tolist()),
        )


def _infos(steps: Columns, group: InfoGroup) -> InfoTable:
    rings = {key: ring for (ring_group, key), ring in steps.infos.items() if ring_group == group}
    return info_table(len(steps.leaves[-1]), rings)
