"""RolloutBuffer: the steps of n rows in time-major rings, from which whole episodes are gathered.

A step of all rows is one copy a column, and many short episodes are gathered by one index. Long ones are put aside in
pieces before the ring comes round to them, so memory is bounded by what the episodes themselves need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.infos import InfoTable, tabulate
from rollout_cli.episodes.spaces import Leaf, space_leaves
from rollout_cli.workers.batch_infos import BatchColumn, InfoKey, info_table
from rollout_cli.workers.checks import BadValueError, checked_text, shown
from rollout_cli.workers.episode_recorder import in_order

Array = npt.NDArray[Any]
Columns = tuple[Array, ...]
InfoColumns = dict[InfoKey, tuple[Array, Array]]
"""Values, and which rows have one."""

RowInfos = dict[int, dict[int, dict[Any, Any]]]
"""Info dictionaries by number, and by step of the episode."""

_PADDING = 8
"""Rows of the rings that no row of the environment has. Without them one row's steps lie a power of two bytes apart,
share few lines of the processor's cache, and take three times as long to gather."""

_RING_BYTES = 32 << 20
_FEWEST_STEPS, _MOST_STEPS = 16, 1024

_NO_INFO: dict[Any, Any] = {}


NUMBER, START, LYING, SEED, STOP, ROW, FLAGS = range(7)
"""Facts of an episode: its number, its first step, the first one that still lies in the rings, the seed of its reset,
the step after its last one (steps are counted over all that the buffer recorded), its row, and 1 for terminated plus 2
for truncated."""

BEGAN, ENDED_AT = range(2)
"""Times of an episode, in seconds of one clock."""


class Ended(NamedTuple):
    """K episodes that ended. Few wide arrays: with many short episodes each array costs as much as a step.

    Attributes:
        facts: int64 (7, K).
        times: float64 (2, K).
        infos: The infos of their resets, objects (K,): a dictionary each; None where all are empty.
        last_observations: One array (K, *shape) a leaf.
    """

    facts: Array
    times: Array
    infos: Array | None
    last_observations: Columns

    @property
    def numbers(self) -> Array:
        """Return their numbers."""
        numbers: Array = self.facts[NUMBER]
        return numbers

    @property
    def lengths(self) -> Array:
        """Return how many steps each has."""
        lengths: Array = self.facts[STOP] - self.facts[START]
        return lengths

    def select(self, which: Array) -> Ended:
        """Return some of them, by a mask or by places."""
        infos = None if self.infos is None else self.infos[which]
        last = tuple(leaf[which] for leaf in self.last_observations)
        return Ended(self.facts[:, which], self.times[:, which], infos, last)

    @staticmethod
    def join(parts: Sequence[Ended]) -> Ended:
        """Return them all; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        facts, times, infos, last = zip(*parts, strict=True)
        given = None
        if any(one is not None for one in infos):
            given = np.concatenate([part.infos if part.infos is not None else _no_infos(part) for part in parts])
        leaves = tuple(np.concatenate(leaf) for leaf in zip(*last, strict=True))
        return Ended(np.concatenate(facts, axis=1), np.concatenate(times, axis=1), given, leaves)


def _no_infos(part: Ended) -> Array:
    return np.full(part.facts.shape[1], _NO_INFO, object)


class _Rows(NamedTuple):
    """Steps of one or more episodes, flat: columns (T, ...), and the infos of environment and policy."""

    columns: Columns
    infos: tuple[InfoColumns, InfoColumns]

    def cut(self, start: int, stop: int) -> _Rows:
        """Return some of them, as views."""
        env, agent = ({key: (v[start:stop], h[start:stop]) for key, (v, h) in one.items()} for one in self.infos)
        return _Rows(tuple(column[start:stop] for column in self.columns), (env, agent))

    def copy(self) -> _Rows:
        """Return a copy, which does not keep others' steps in memory."""
        env, agent = ({key: (v.copy(), h.copy()) for key, (v, h) in one.items()} for one in self.infos)
        return _Rows(tuple(column.copy() for column in self.columns), (env, agent))

    @staticmethod
    def join(parts: Sequence[_Rows]) -> _Rows:
        """Return them after one another; a part may lack infos that others have."""
        columns = tuple(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True))
        lengths = [len(part.columns[-1]) for part in parts]
        env, agent = (_join_infos([part.infos[at] for part in parts], lengths) for at in (0, 1))
        return _Rows(columns, (env, agent))


def _join_infos(parts: list[InfoColumns], lengths: list[int]) -> InfoColumns:
    examples = {key: values for part in parts for key, (values, _) in part.items()}
    joined = {}
    for key, example in examples.items():
        pairs = [
            part.get(key) or (np.zeros((length, *example.shape[1:]), example.dtype), np.zeros(length, bool))
            for part, length in zip(parts, lengths, strict=True)
        ]
        joined[key] = np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
    return joined


class RolloutBuffer:
    """Steps of n rows.

    Attributes:
        step: How many steps were recorded.
        row_bytes: The bytes of one row, without its texts.
        n_ended_rows: How many steps the episodes have that ended and were not taken.
        env_row_infos, agent_row_infos: Put info dictionaries of single rows here, by number and by step of the episode.

    Args:
        env_spec: The spaces of one row.
        n_rows: n.
        worker_number: Which worker records.
    """

    def __init__(self, env_spec: EnvSpec, n_rows: int, worker_number: int) -> None:
        observations, actions = space_leaves(env_spec.observation_space), space_leaves(env_spec.action_space)
        self._n_observations = len(observations)
        self._n_rows, self._width, self._worker_number = n_rows, n_rows + _PADDING, worker_number
        self.row_bytes = sum(leaf.row_bytes for leaf in (*observations, *actions)) + 8
        fitting = _RING_BYTES // (self.row_bytes * self._width)
        self._n_slots = max(_FEWEST_STEPS, min(_MOST_STEPS, fitting))
        self._rings = [self._ring(leaf.dtype, leaf.shape) for leaf in (*observations, *actions)]
        self._rings.append(self._ring(np.dtype(np.float64), ()))
        self._info_rings: tuple[InfoColumns, InfoColumns] = ({}, {})
        self.env_row_infos: RowInfos = {}
        self.agent_row_infos: RowInfos = {}
        self._pieces: dict[int, list[_Rows]] = {}
        self._ended: list[Ended] = []
        self._overdue: list[Chunk] = []
        self.step = self._slot = 0
        self.n_ended_rows = 0

    def _ring(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        return np.empty((self._n_slots, self._width, *shape), dtype)

    # -- a step ------------------------------------------------------------------------------------------------------

    def put_observations(self, leaves: Iterable[Array]) -> None:
        """Begin a step with its observations, one array (n, *shape) a leaf."""
        for rings in self._info_rings:
            for _, known in rings.values():
                known[self._slot] = False
        for ring, leaf in zip(self._rings, leaves, strict=False):
            ring[self._slot, : self._n_rows] = leaf

    def put_actions(self, leaves: Iterable[Array]) -> None:
        """Record the actions of this step, one array (n, *shape) a leaf."""
        for ring, leaf in zip(self._rings[self._n_observations :], leaves, strict=False):
            ring[self._slot, : self._n_rows] = leaf

    def put_rewards(self, rewards: Array) -> None:
        """Record the rewards of this step, (n,)."""
        self._rings[-1][self._slot, : self._n_rows] = rewards

    def put_env_infos(self, columns: Iterable[BatchColumn], within: Array | None = None) -> None:
        """Record env infos of this step, of the rows in the mask `within` (n,); None for all."""
        self._put_infos(self._info_rings[0], columns, within)

    def put_agent_infos(self, columns: Iterable[BatchColumn]) -> None:
        """Record the policy's infos of this step."""
        self._put_infos(self._info_rings[1], columns, None)

    def _put_infos(self, rings: InfoColumns, columns: Iterable[BatchColumn], within: Array | None) -> None:
        for key, values, has in columns:
            if key not in rings:
                rings[key] = self._ring(values.dtype, values.shape[1:]), np.zeros((self._n_slots, self._width), bool)
            mask = np.ones(self._n_rows, bool) if within is None else within
            mask = mask if has is None else mask & has
            kept, known = (ring[self._slot, : self._n_rows] for ring in rings[key])
            kept[mask] = values[mask]
            known |= mask

    def end_step(self) -> bool:
        """Count the step; return whether `make_room` must come before the next one."""
        self.step += 1
        self._slot = self.step % self._n_slots
        return self.step % (self._n_slots // 2) == 0

    def make_room(self, facts: Array, rows: Array) -> None:
        """Put aside the older steps of episodes that run, before the rings come round to them.

        Episodes that ended and still wait for a lower number wait no longer.

        Args:
            facts: Of all rows, int64 (at least 4, n); which step lies in the rings is changed in place.
            rows: Those that run an episode, (k,).
        """
        oldest = self.step - self._n_slots // 2
        if self._ended:
            ended = Ended.join(self._ended)
            late = ended.facts[LYING] < oldest
            self._ended = [ended.select(~late)]
            if late.any():
                self._overdue.append(self._chunk(ended.select(late)))
        rows = rows[facts[LYING, rows] < oldest]
        lying = facts[LYING, rows]
        lengths = self.step - lying
        steps = self._gathered(rows, lying, lengths)
        stops = np.cumsum(lengths)
        for number, start, stop in zip(
            facts[NUMBER, rows].tolist(), (stops - lengths).tolist(), stops.tolist(), strict=True
        ):
            self._pieces.setdefault(number, []).append(steps.cut(start, stop).copy())
        facts[LYING, rows] = self.step

    def _gathered(self, rows: Array, starts: Array, lengths: Array) -> _Rows:
        """Return steps that lie in the rings, by one index for all of them."""
        total = int(lengths.sum())
        begins = np.cumsum(lengths) - lengths
        index = np.repeat((starts % self._n_slots - begins) * self._width + rows, lengths)
        index += np.arange(0, total * self._width, self._width)

        def taken(ring: Array) -> Array:
            # A place past the end is one at the beginning: that is what makes it a ring.
            return ring.reshape(self._n_slots * self._width, *ring.shape[2:]).take(index, axis=0, mode="wrap")

        env, agent = ({key: (taken(v), taken(h)) for key, (v, h) in rings.items()} for rings in self._info_rings)
        return _Rows(tuple(taken(ring) for ring in self._rings), (env, agent))

    def observations_at(self, steps: Array, rows: Array, now: Sequence[Array]) -> Columns:
        """Return what rows (k,) observed at some steps (k,) that lie in the rings, one array (k, *shape) a leaf.

        Args:
            steps: The steps; the one that comes next among them.
            rows: The rows.
            now: The observations of the next step, which is not recorded yet, one array (n, *shape) a leaf.
        """
        is_next = steps == self.step
        out = []
        for ring, leaf in zip(self._rings, now, strict=False):
            found = ring[steps % self._n_slots, rows]
            found[is_next] = leaf[rows[is_next]]
            out.append(found)
        return tuple(out)

    # -- episodes ----------------------------------------------------------------------------------------------------

    def end(self, ended: Ended) -> None:
        """Take note of episodes that ended."""
        self._ended.append(ended)
        self.n_ended_rows += int(ended.lengths.sum())

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the steps of episodes that were given up."""
        for by_number in (self._pieces, self.env_row_infos, self.agent_row_infos):
            if by_number:
                for number in numbers:
                    by_number.pop(number, None)

    @property
    def ended_numbers(self) -> list[int]:
        """Return the numbers of the episodes that ended and were not taken."""
        parts = [*(ended.numbers for ended in self._ended), *(chunk.numbers for chunk in self._overdue)]
        return [number for part in parts for number in part.tolist()]

    def take(self, below: int | None, ended_before: float) -> Chunk | None:
        """Remove episodes that ended and return them in the order of their numbers; None where there are none.

        Args:
            below: The lowest number that still runs or waits: those with higher numbers stay. None gives all.
            ended_before: Those that ended before this time are given anyway.
        """
        chunks, self._overdue = self._overdue, []
        ready = self._ready(below, ended_before)
        if ready is not None:
            ended = Ended.join(self._ended)
            is_all = bool(ready.all())
            self._ended = [] if is_all else [ended.select(~ready)]
            chunks.append(self._chunk(ended if is_all else ended.select(ready)))
        if not chunks:
            return None
        chunk = in_order(concatenate(chunks))
        self.n_ended_rows -= chunk.n_steps
        return chunk

    def _ready(self, below: int | None, ended_before: float) -> Array | None:
        """Return which episodes to give now; None for none.

        While lower numbers hold up most of them, those that are ready wait, too: to part them costs as much each time.
        """
        if not self._ended:
            return None
        numbers = np.concatenate([ended.numbers for ended in self._ended])
        if below is None:
            return np.ones(len(numbers), bool)
        late = np.concatenate([ended.times[ENDED_AT] for ended in self._ended]) < ended_before
        ready = (numbers < below) | late
        return np.asarray(ready) if late.any() or np.count_nonzero(ready) * 2 > len(ready) else None

    def _chunk(self, ended: Ended) -> Chunk:
        """Gather episodes, in the order of their numbers."""
        whole = ended.facts[LYING] == ended.facts[START]
        if whole.all():
            ended = ended.select(np.argsort(ended.numbers))
            return self._of_rows(ended, self._gathered(ended.facts[ROW], ended.facts[START], ended.lengths))
        chunks = [self._of_pieces(ended.select(~whole))]
        if whole.any():
            chunks.append(self._chunk(ended.select(whole)))
        return in_order(concatenate(chunks))

    def _of_pieces(self, ended: Ended) -> Chunk:
        lengths = ended.facts[STOP] - ended.facts[LYING]
        rests = self._gathered(ended.facts[ROW], ended.facts[LYING], lengths)
        stops = np.cumsum(lengths)
        parts: list[_Rows] = []
        for number, start, stop in zip(ended.numbers.tolist(), (stops - lengths).tolist(), stops.tolist(), strict=True):
            parts += [*self._pieces[number], rests.cut(start, stop)]
        return self._of_rows(ended, _Rows.join(parts))

    def _of_rows(self, ended: Ended, rows: _Rows) -> Chunk:
        lengths, flags, count = ended.lengths, ended.facts[FLAGS], len(ended.numbers)
        env_infos, agent_infos = (info_table(len(rows.columns[-1]), infos) for infos in rows.infos)
        chunk = Chunk(
            numbers=ended.numbers,
            seeds=ended.facts[SEED],
            lengths=lengths,
            terminated=flags & 1 > 0,
            truncated=flags & 2 > 0,
            workers=np.full(count, self._worker_number, np.int32),
            wall_times=ended.times[ENDED_AT] - ended.times[BEGAN],
            observations=rows.columns[: self._n_observations],
            actions=rows.columns[self._n_observations : -1],
            rewards=rows.columns[-1],
            last_observations=ended.last_observations,
            env_infos=_row_table(self.env_row_infos, ended) or env_infos,
            agent_infos=_row_table(self.agent_row_infos, ended) or agent_infos,
            episode_infos=InfoTable(count) if ended.infos is None else tabulate(ended.infos.tolist()),
        )
        self.forget(ended.numbers.tolist())
        return chunk


def _row_table(infos: RowInfos, ended: Ended) -> InfoTable | None:
    if not infos:
        return None
    pairs = zip(ended.numbers.tolist(), ended.lengths.tolist(), strict=True)
    found = ((infos.get(number, _NO_INFO), length) for number, length in pairs)
    return tabulate([by_step.get(step, _NO_INFO) for by_step, length in found for step in range(length)])


def leaf_array(leaf: Leaf, values: Any) -> Array:
    """Return the values of one leaf of a batch, (n, *shape), as an array; texts as one of objects."""
    if leaf.kind != "text":
        return as_array(values)
    column = np.empty(len(values), object)
    column[:] = [checked_text("the text of a row", value, leaf.space) for value in values]
    return column


def as_array(values: Any) -> Array:
    """Return values of a batch as an array.

    Raises:
        BadValueError: If they make none.
    """
    try:
        return np.asarray(values)
    except Exception as error:  # A foreign array (a tensor with a gradient) may refuse in any way.
        raise BadValueError(f"the batch is no array: {shown(values)}") from error
