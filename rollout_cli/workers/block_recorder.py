"""BlockRecorder: what a native vector environment did, from the steps of all rows to chunks of finished episodes.

Finished episodes are handed on when no lower number of the worker's is missing, since whoever joins the workers' work
does nothing for a single episode where a chunk's numbers follow each other. One that runs very long holds the others
up for a moment only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.infos import InfoTable, tabulate
from rollout_cli.spaces import space_leaves
from rollout_cli.workers.finished import IN_BLOCKS, Finished, FinishedLog, joined
from rollout_cli.workers.step_block import Columns, StepBlock, Stretch, gather
from rollout_cli.workers.vector_infos import info_table

Array = npt.NDArray[Any]

BLOCK_STEPS = 256
BLOCK_BYTES = 16 << 20
"""A block has so many steps, or fewer where they would need more bytes."""

LEAST_STEPS = 4
HOLD_SECONDS = 0.25
"""How long a finished episode waits for lower numbers."""


@dataclass(frozen=True, slots=True)
class _Carried:
    """Steps of rows whose episodes went on when their block was emptied: row r's lie from `offset[r]` on.

    Attributes:
        columns: The steps.
        offset: Where each row's begin (n,).
        start: The first step that each row has here (n,).
        stop: One past the last step of all.
    """

    columns: Columns
    offset: Array
    start: Array
    stop: int


class UnderWay(Protocol):
    """What a recorder asks of the episodes that run."""

    starts: Array
    """The first step of each row's episode (n,)."""

    @property
    def running(self) -> Array:
        """Return the rows that run one."""


class BlockRecorder:
    """Records steps of all rows and hands on finished episodes.

    Attributes:
        step: How many steps were recorded.
        numbers: The episodes that can be taken; their numbers.
        lengths: And their lengths.
        n_rows: The sum of those.

    Args:
        env_spec: The spaces of one row.
        n_envs: How many rows.
        worker_number: Who runs them.
    """

    def __init__(self, env_spec: EnvSpec, *, n_envs: int, worker_number: int) -> None:
        self.env_spec = env_spec
        self.step = 0
        self._n_envs = n_envs
        self._worker_number = worker_number
        self._n_observation_leaves = len(space_leaves(env_spec.observation_space))
        leaves = (*space_leaves(env_spec.observation_space), *space_leaves(env_spec.action_space))
        step_bytes = n_envs * sum(max(8, leaf.row_bytes) for leaf in leaves)
        n_steps = max(LEAST_STEPS, min(BLOCK_STEPS, BLOCK_BYTES // step_bytes))
        self.block = StepBlock(leaves, n_rows=n_envs, n_steps=n_steps)
        self._block_start = 0
        self._carried: list[_Carried] = []
        self._stores: dict[int, Columns] = {}
        self._next_store = 0
        self._log = FinishedLog(leaves[: self._n_observation_leaves])
        self._held: list[Finished] = []
        self._held_since = 0.0
        self._ready: list[Finished] = []
        self.numbers: list[int] = []
        self.lengths: list[int] = []
        self.n_rows = 0

    def stepped(self) -> None:
        """Note that the step under way is recorded."""
        self.block.length += 1
        self.step += 1

    def finish(
        self,
        rows: Array,
        last: tuple[Array, ...],
        info: Any,
        *,
        ids: Array,
        terminated: Array,
        truncated: Array,
        wall_time: Array,
    ) -> None:
        """Take the episodes that ended with the last step in some rows.

        Args:
            rows: Which rows (K,).
            last: Their last observations, one array (K, *shape) a leaf.
            info: What their resets told: dictionaries (K,), or None for nothing.
            ids: Their numbers, first steps and seeds, int64 (3, K).
            terminated: Whether their last steps terminated them (K,).
            truncated: Whether they truncated them (K,).
            wall_time: Seconds from their resets (K,).
        """
        number, start, seed = ids
        self._log.add(
            len(rows),
            info,
            last,
            number=number,
            start=start,
            seed=seed,
            row=rows,
            stop=self.step,
            terminated=terminated,
            truncated=truncated,
            wall_time=wall_time,
        )

    def _empty_log(self) -> None:
        """Put what finished lately to what is held."""
        if self._log.count:
            self._held.append(self._log.take())
            self._log.count = 0

    def release(self, lowest: int | None, now: float) -> None:
        """Let episodes be taken that no lower number holds up.

        Args:
            lowest: The lowest number that waits or runs; None where there is none.
            now: Seconds, of any one clock.
        """
        was_empty = not self._held
        self._empty_log()
        if not self._held:
            return
        if was_empty:
            self._held_since = now
        waiting, self._held = joined(self._held), []
        free = np.ones(len(waiting.number), bool)
        if lowest is not None and now - self._held_since < HOLD_SECONDS:
            free = waiting.number < lowest
        if not free.all():
            self._held = [waiting.at(~free)]
        if free.any():
            self._held_since = now
            ready = waiting.at(free)
            self._ready.append(ready)
            self.numbers += ready.number.tolist()
            self.lengths += ready.lengths.tolist()
            self.n_rows += int(ready.lengths.sum())

    def drop_above(self, above: int | None) -> None:
        """Drop finished episodes that nobody was told of, with higher numbers; all of them where it is None."""
        self._empty_log()
        self._held = [part.at(part.number <= above) for part in self._held] if above is not None else []
        self._held = [part for part in self._held if len(part.number)]

    def take(self) -> Chunk | None:
        """Remove the episodes that can be taken and return them in the order of their numbers; None for none."""
        if not self._ready:
            return None
        ready = joined(self._ready)
        ready = ready.at(np.argsort(ready.number))
        self._ready, self.numbers, self.lengths, self.n_rows = [], [], [], 0
        chunk = self._chunk(ready, self._gathered(ready))
        self._forget_stores()
        return chunk

    def make_room(self, under_way: UnderWay) -> None:
        """Empty the block where it is full: what it holds of finished episodes is gathered, of running ones carried."""
        if not self.block.is_full:
            return
        running, starts = under_way.running, under_way.starts
        self._store_finished()
        if not len(running) or int(starts[running].min()) >= self._block_start:
            self._carried = []
        self._carry(running, starts)
        self._block_start = self.step
        self.block.clear()

    # -- where steps lie -------------------------------------------------------------------------------------------

    def _store_finished(self) -> None:
        """Gather the finished episodes, so that nothing of them lies in blocks any more."""
        self._empty_log()
        for parts in (self._ready, self._held):
            for at, part in enumerate(parts):
                inside = part.store == IN_BLOCKS
                if inside.any():
                    parts[at] = self._stored(part, inside)

    def _stored(self, part: Finished, inside: Array) -> Finished:
        moved = part.at(inside)
        self._stores[self._next_store] = self._gathered(moved)
        store, offset = part.store.copy(), part.offset.copy()
        store[inside] = self._next_store
        offset[inside] = np.cumsum(moved.lengths) - moved.lengths
        self._next_store += 1
        return replace(part, store=store, offset=offset)

    def _forget_stores(self) -> None:
        used = {store for part in self._held for store in np.unique(part.store).tolist()}
        self._stores = {store: columns for store, columns in self._stores.items() if store in used}

    def _gathered(self, episodes: Finished) -> Columns:
        to = np.cumsum(episodes.lengths) - episodes.lengths
        stretches = []
        for store in np.unique(episodes.store).tolist():
            inside = episodes.store == store
            part = episodes.at(inside)
            if store == IN_BLOCKS:
                facts = part.facts
                stretches += self._stretches(facts["row"], facts["start"], facts["stop"], to[inside])
            else:
                stretches.append(Stretch(self._stores[store], part.offset, part.lengths, 1, to[inside]))
        return gather(stretches, int(episodes.lengths.sum()))

    def _stretches(self, rows: Array, starts: Array, stops: Array, to: Array) -> list[Stretch]:
        """Return where steps of rows lie, in what was carried and in the block."""
        out = []
        for carried in self._carried:
            # What a row has here belongs to the episode that was under way when it was carried.
            has = (starts < carried.stop) & (stops > carried.stop)
            if has.any():
                row = rows[has]
                first = np.maximum(starts[has], carried.start[row])
                offset = carried.offset[row] + first - carried.start[row]
                out.append(Stretch(carried.columns, offset, carried.stop - first, 1, to[has] + first - starts[has]))
        first = np.maximum(starts, self._block_start)
        has = stops > first
        if has.any():
            row, first = rows[has], first[has]
            offset = (first - self._block_start) * self._n_envs + row
            stretch = Stretch(
                self.block.columns, offset, stops[has] - first, self._n_envs, to[has] + first - starts[has]
            )
            out.append(stretch)
        return out

    def _carry(self, running: Array, starts: Array) -> None:
        """Put what the block holds of running episodes, and all that was carried of them, together."""
        kept = running[starts[running] < self.step]
        if not len(kept):
            self._carried = []
            return
        alone = self._carried and _is_mostly_dead(self._carried, kept, starts)
        start = starts[kept] if alone else np.maximum(starts[kept], self._block_start)
        stop = np.full(len(kept), self.step)
        count = stop - start
        offsets = np.cumsum(count) - count
        columns = gather(self._stretches(kept, start, stop, offsets), int(count.sum()))
        offset, first = np.zeros(self._n_envs, np.int64), np.full(self._n_envs, self.step)
        offset[kept], first[kept] = offsets, start
        if alone:
            self._carried = []
        self._carried.append(_Carried(columns, offset, first, self.step))

    # -- chunks ----------------------------------------------------------------------------------------------------

    def _chunk(self, ready: Finished, columns: Columns) -> Chunk:
        n_rows, split, facts = int(ready.lengths.sum()), self._n_observation_leaves, ready.facts
        return Chunk(
            numbers=ready.number,
            seeds=facts["seed"],
            lengths=ready.lengths,
            terminated=facts["terminated"],
            truncated=facts["truncated"],
            workers=np.full(len(ready.number), self._worker_number, np.int32),
            wall_times=facts["wall_time"],
            observations=tuple(columns.leaves[:split]),
            actions=tuple(columns.leaves[split:-1]),
            rewards=columns.leaves[-1],
            last_observations=ready.last,
            env_infos=info_table(n_rows, columns.infos[0]),
            agent_infos=info_table(n_rows, columns.infos[1]),
            episode_infos=_episode_infos(ready.info.tolist()),
        )


def _episode_infos(infos: Sequence[Mapping[Any, Any] | None]) -> InfoTable:
    return tabulate([info or {} for info in infos]) if any(infos) else InfoTable(len(infos))


def _is_mostly_dead(carried: Sequence[_Carried], running: Array, starts: Array) -> bool:
    """Return whether less than half of what was carried belongs to episodes that still run."""
    total = sum(len(part.columns.leaves[-1]) for part in carried)
    alive = sum(
        int(np.maximum(part.stop - np.maximum(starts[running], part.start[running]), 0).sum()) for part in carried
    )
    return 2 * alive < total
