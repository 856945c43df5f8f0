"""RolloutBuffer: the steps of n rows as time-major arrays, from which whole episodes are gathered.

A step of all rows is one copy a column. Episodes are gathered by one index for all of them. When the arrays are full,
the rows of episodes that still run, or that nobody has taken yet, are put aside as pieces of their episodes, and the
arrays are filled again from their beginning: so memory is bounded by what the episodes themselves need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable, tabulate
from rollout_cli.episodes.spaces import Leaf, space_leaves
from rollout_cli.workers.batch_infos import BatchColumn, InfoKey, info_table

Array = npt.NDArray[Any]

_PADDING = 8
"""Rows of the arrays that no row of the environment has. Without them one row's steps lie a power of two bytes apart,
share few lines of the processor's cache, and take three times as long to gather."""

_BLOCK_BYTES = 32 << 20
_FEWEST_STEPS, _MOST_STEPS = 16, 512


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """K episodes that ended; arrays (K,).

    Attributes:
        rows: Where each ran.
        starts, stops: Its first step, and the one after its last, counted over all steps of the buffer.
        numbers, seeds, terminated, truncated, wall_times: As in Chunk.
        ended_at: When, by the clock that `wall_times` are of.
        infos: The info of its reset, objects: a dictionary each.
        last_observations: One array (K, *shape) a leaf.
    """

    rows: Array
    starts: Array
    stops: Array
    numbers: Array
    seeds: Array
    terminated: Array
    truncated: Array
    wall_times: Array
    ended_at: Array
    infos: Array
    last_observations: tuple[Array, ...]

    def select(self, which: Array) -> Ended:
        """Return some of them, by a mask or by places."""
        *columns, last = (getattr(self, field.name) for field in fields(self))
        return Ended(*(column[which] for column in columns), tuple(leaf[which] for leaf in last))

    @staticmethod
    def join(parts: Sequence[Ended]) -> Ended:
        """Return them all; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(Ended)][:-1]
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        leaves = zip(*(part.last_observations for part in parts), strict=True)
        return Ended(*columns, tuple(np.concatenate(leaf) for leaf in leaves))


RowInfos = dict[int, dict[int, dict[Any, Any]]]
"""Info dictionaries by number, and by step of the episode."""

_NO_INFO: dict[Any, Any] = {}
_NO_INFOS: dict[int, dict[Any, Any]] = {}


class _Piece(NamedTuple):
    """Some steps of one episode that were put aside."""

    columns: tuple[Array, ...]
    infos: tuple[dict[InfoKey, tuple[Array, Array]], ...]


class RolloutBuffer:
    """Steps of n rows.

    Attributes:
        step: How many steps were recorded.
        slot: Where the next one goes.
        env_row_infos, agent_row_infos: Put info dictionaries of single rows here, by number and by step of the episode.
        row_bytes: The bytes of one row, without its texts.

    Args:
        env_spec: The spaces of one row.
        n_rows: n.
        worker_number: Which worker records.
    """

    def __init__(self, env_spec: EnvSpec, n_rows: int, worker_number: int) -> None:
        observations, actions = space_leaves(env_spec.observation_space), space_leaves(env_spec.action_space)
        self._n_observations = len(observations)
        self.n_rows, self._width, self._worker_number = n_rows, n_rows + _PADDING, worker_number
        self.row_bytes = sum(leaf.row_bytes for leaf in (*observations, *actions)) + 8
        fitting = _BLOCK_BYTES // (self.row_bytes * self._width)
        self._n_slots = max(_FEWEST_STEPS, min(_MOST_STEPS, fitting))
        self._columns = [self._array(leaf.dtype, leaf.shape) for leaf in (*observations, *actions)]
        self._columns.append(self._array(np.dtype(np.float64), ()))
        self._infos: tuple[dict[InfoKey, tuple[Array, Array]], ...] = ({}, {})
        self.env_row_infos: RowInfos = {}
        self.agent_row_infos: RowInfos = {}
        self._pieces: dict[int, list[_Piece]] = {}
        self._ended: list[Ended] = []
        self.step = self.slot = 0
        self.n_ended_rows = 0

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        return np.empty((self._n_slots, self._width, *shape), dtype)

    # -- a step ------------------------------------------------------------------------------------------------------

    def put_observations(self, leaves: Iterable[Array]) -> None:
        """Record the observations of this step, one array (n, *shape) a leaf."""
        for column, leaf in zip(self._columns, leaves, strict=False):
            np.copyto(column[self.slot, : self.n_rows], leaf)

    def put_actions(self, leaves: Iterable[Array]) -> None:
        """Record the actions of this step, one array (n, *shape) a leaf."""
        for column, leaf in zip(self._columns[self._n_observations :], leaves, strict=False):
            np.copyto(column[self.slot, : self.n_rows], leaf)

    def put_rewards(self, rewards: Array) -> None:
        """Record the rewards of this step, (n,)."""
        np.copyto(self._columns[-1][self.slot, : self.n_rows], rewards)

    def put_env_infos(self, columns: Iterable[BatchColumn], within: Array | None = None) -> None:
        """Record env infos of this step, of the rows in the mask `within` (n,); None for all."""
        self._put_infos(self._infos[0], columns, within)

    def put_agent_infos(self, columns: Iterable[BatchColumn]) -> None:
        """Record the policy's infos of this step."""
        self._put_infos(self._infos[1], columns, None)

    def _put_infos(
        self, block: dict[InfoKey, tuple[Array, Array]], columns: Iterable[BatchColumn], within: Array | None
    ) -> None:
        for key, values, has in columns:
            if key not in block:
                empty = self._array(values.dtype, values.shape[1:])
                block[key] = empty, np.zeros((self._n_slots, self._width), bool)
            kept, known = block[key]
            mask = has if within is None or has is None else has & within
            mask = within if mask is None else mask
            if mask is None:
                kept[self.slot, : self.n_rows] = values
                known[self.slot, : self.n_rows] = True
            else:
                kept[self.slot, : self.n_rows][mask] = values[mask]
                known[self.slot, : self.n_rows] |= mask

    def end_step(self) -> None:
        """Count the step."""
        self.step += 1
        self.slot += 1

    @property
    def is_full(self) -> bool:
        """Return whether `make_room` must be called before another step."""
        return self.slot == self._n_slots

    def make_room(self, rows: Array, starts: Array, numbers: Array) -> None:
        """Put aside the steps of the episodes that run (k,) and of those that ended, and begin at the first slot."""
        for row, start, number in zip(rows.tolist(), starts.tolist(), numbers.tolist(), strict=True):
            self._put_aside(row, start, self.step, number)
        for ended in self._ended:
            columns = (ended.rows, ended.starts, ended.stops, ended.numbers)
            for row, start, stop, number in zip(*(column.tolist() for column in columns), strict=True):
                self._put_aside(row, start, stop, number)
        for block in self._infos:
            for _, known in block.values():
                known[:] = False
        self.slot = 0

    def _put_aside(self, row: int, start: int, stop: int, number: int) -> None:
        first = self.step - self.slot
        if stop <= max(start, first):
            return
        slots = slice(max(start, first) - first, stop - first)
        columns = tuple(column[slots, row].copy() for column in self._columns)
        infos = tuple(
            {key: (values[slots, row].copy(), known[slots, row].copy()) for key, (values, known) in block.items()}
            for block in self._infos
        )
        self._pieces.setdefault(number, []).append(_Piece(columns, infos))

    # -- episodes ----------------------------------------------------------------------------------------------------

    def end(self, ended: Ended) -> None:
        """Take note of episodes that ended; their steps stay until they are taken."""
        self._ended.append(ended)
        self.n_ended_rows += int((ended.stops - ended.starts).sum())

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the steps of episodes that were given up."""
        for number in numbers:
            for by_number in (self._pieces, self.env_row_infos, self.agent_row_infos):
                by_number.pop(number, None)

    @property
    def ended_numbers(self) -> Array:
        """Return the numbers of the episodes that ended and were not taken."""
        return np.concatenate([np.empty(0, np.int64), *(ended.numbers for ended in self._ended)])

    def take(self, below: int | None, ended_before: float) -> Chunk | None:
        """Remove episodes that ended and return them in the order of their numbers; None where there are none.

        Args:
            below: The lowest number that still runs or waits: those with higher numbers stay. None gives all.
            ended_before: Those that ended before this time are given anyway.
        """
        if not self._ended:
            return None
        ended = Ended.join(self._ended)
        self._ended = [ended]
        if below is not None:
            ready = (ended.numbers < below) | (ended.ended_at < ended_before)
            if not ready.any():
                return None
            self._ended = [] if ready.all() else [ended.select(~ready)]
            ended = ended.select(ready)
        else:
            self._ended = []
        ended = ended.select(np.argsort(ended.numbers))
        self.n_ended_rows -= int((ended.stops - ended.starts).sum())
        return self._chunk(ended)

    def _chunk(self, ended: Ended) -> Chunk:
        lengths = ended.stops - ended.starts
        has_pieces = any(number in self._pieces for number in ended.numbers.tolist()) if self._pieces else False
        columns, env_infos, agent_infos = (self._by_pieces if has_pieces else self._by_index)(ended, lengths)
        chunk = Chunk(
            numbers=ended.numbers,
            seeds=ended.seeds,
            lengths=lengths,
            terminated=ended.terminated,
            truncated=ended.truncated,
            workers=np.full(len(lengths), self._worker_number, np.int32),
            wall_times=ended.wall_times,
            observations=tuple(columns[: self._n_observations]),
            actions=tuple(columns[self._n_observations : -1]),
            rewards=columns[-1],
            last_observations=ended.last_observations,
            env_infos=self._row_table(self.env_row_infos, ended.numbers, lengths) or env_infos,
            agent_infos=self._row_table(self.agent_row_infos, ended.numbers, lengths) or agent_infos,
            episode_infos=tabulate(ended.infos.tolist()),
        )
        self.forget(ended.numbers.tolist())
        return chunk

    @staticmethod
    def _row_table(infos: RowInfos, numbers: Array, lengths: Array) -> InfoTable | None:
        if not infos:
            return None
        pairs = zip(numbers.tolist(), lengths.tolist(), strict=True)
        found = ((infos.get(number, _NO_INFOS), length) for number, length in pairs)
        return tabulate([by_step.get(step, _NO_INFO) for by_step, length in found for step in range(length)])

    def _by_index(self, ended: Ended, lengths: Array) -> tuple[list[Array], InfoTable, InfoTable]:
        """Gather episodes that lie in the arrays as a whole."""
        first = self.step - self.slot
        begins = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        index = np.repeat((ended.starts - first) * self._width + ended.rows - begins * self._width, lengths)
        index += np.arange(0, total * self._width, self._width)

        def taken(array: Array) -> Array:
            # Places that are no error are not checked: by `raise` numpy would gather into a buffer first.
            return array.reshape(-1, *array.shape[2:]).take(index, axis=0, mode="wrap")

        env_infos, agent_infos = (
            info_table(total, {key: (taken(values), taken(known)) for key, (values, known) in block.items()})
            for block in self._infos
        )
        return [taken(column) for column in self._columns], env_infos, agent_infos

    def _by_pieces(self, ended: Ended, lengths: Array) -> tuple[list[Array], InfoTable, InfoTable]:
        """Gather episodes some of which have pieces that were put aside."""
        fields_ = (ended.rows, ended.starts, ended.stops, ended.numbers)
        first = self.step - self.slot
        pieces: list[_Piece] = []
        for row, start, stop, number in zip(*(column.tolist() for column in fields_), strict=True):
            pieces += self._pieces.get(number, ())
            slots = slice(max(start, first) - first, max(stop, first) - first)
            infos = tuple(
                {key: (values[slots, row], known[slots, row]) for key, (values, known) in block.items()}
                for block in self._infos
            )
            pieces.append(_Piece(tuple(column[slots, row] for column in self._columns), infos))
        columns = [np.concatenate(parts) for parts in zip(*(piece.columns for piece in pieces), strict=True)]
        env_infos, agent_infos = (_joined_infos([piece.infos[at] for piece in pieces], pieces) for at in (0, 1))
        return columns, env_infos, agent_infos


def _joined_infos(blocks: list[dict[InfoKey, tuple[Array, Array]]], pieces: list[_Piece]) -> InfoTable:
    """Return the infos of pieces after one another; a piece may lack a key that others have."""
    examples = {key: values for block in blocks for key, (values, _) in block.items()}
    lengths = [len(piece.columns[-1]) for piece in pieces]
    joined = {}
    for key, example in examples.items():
        parts = [
            block.get(key) or (np.zeros((length, *example.shape[1:]), example.dtype), np.zeros(length, bool))
            for block, length in zip(blocks, lengths, strict=True)
        ]
        joined[key] = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    return info_table(sum(lengths), joined)


def text_array(texts: Any) -> Array:
    """Return texts (n,) as the array of objects that a text column is."""
    column = np.empty(len(texts), object)
    column[:] = list(texts)
    return column


def leaf_array(leaf: Leaf, values: Any) -> Array:
    """Return the values of one leaf of a batch (n, *shape) as an array."""
    return text_array(values) if leaf.kind == "text" and not isinstance(values, np.ndarray) else np.asarray(values)
