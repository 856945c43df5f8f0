"""BlockRecorder: what a native vector environment did, from the steps of all rows to chunks of finished episodes.

Finished episodes are handed on when no lower number of the worker's is missing, since whoever joins the workers' work
does nothing for a single episode where a chunk's numbers follow each other. One that runs very long holds the others
up for a moment only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.buffer_pool import BufferPool, Lender
from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.infos import InfoTable, tabulate
from rollout_cli.spaces import space_leaves
from rollout_cli.workers.finished import IN_HISTORY, Finished, in_order, joined
from rollout_cli.workers.gathering import Columns, Stretch, gather
from rollout_cli.workers.recorder import HOLD_SECONDS
from rollout_cli.workers.step_history import StepHistory, UnderWay
from rollout_cli.workers.vector_infos import info_table

Array = npt.NDArray[Any]

BLOCK_STEPS = 1024
BLOCK_BYTES = 32 << 20
"""The ring has so many steps, or fewer where they would need more bytes.

Episodes shorter than three quarters of it are copied once on their way to a chunk, longer ones in part twice.
"""

LEAST_STEPS = 4


class BlockRecorder:
    """Records steps of all rows and hands on finished episodes.

    Attributes:
        history: The steps.
        block: The last of them.
        n_episodes: How many episodes can be taken.
        n_rows: How many rows they have.
        n_observation_leaves: How many of the leaves, the first ones, are the observation's.

    Args:
        env_spec: The spaces of one row.
        n_envs: How many rows.
        worker_number: Who runs them.
    """

    def __init__(self, env_spec: EnvSpec, *, n_envs: int, worker_number: int) -> None:
        self.env_spec = env_spec
        self._worker_number = worker_number
        self.n_observation_leaves = len(space_leaves(env_spec.observation_space))
        leaves = (*space_leaves(env_spec.observation_space), *space_leaves(env_spec.action_space))
        step_bytes = n_envs * (8 + sum(max(8, leaf.row_bytes) for leaf in leaves))
        n_steps = max(LEAST_STEPS, min(BLOCK_STEPS, BLOCK_BYTES // step_bytes))
        self._memory = BufferPool(keeps=BLOCK_BYTES)
        self.history = StepHistory(leaves, n_rows=n_envs, n_steps=n_steps, memory=self._memory)
        self.block = self.history.block
        self._stores: dict[int, Columns] = {}
        self._next_store = 0
        self._log: list[Finished] = []
        self._held: list[Finished] = []
        self._held_since = 0.0
        self._ready: list[Finished] = []
        self.n_episodes = self.n_rows = 0

    @property
    def step(self) -> int:
        """Return how many steps were recorded."""
        return self.block.step

    @property
    def observations_under_way(self) -> list[Array]:
        """Return what was recorded in the step under way, one array (n, *shape) a leaf."""
        return [column.at(self.block.slot) for column in self.block.recorded[: self.n_observation_leaves]]

    def finish(self, episodes: Finished) -> None:
        """Take episodes that ended."""
        self._log.append(episodes)

    def release(self, lowest: int | None, now: float) -> None:
        """Let episodes be taken that no lower number holds up.

        Args:
            lowest: The lowest number that waits or runs; None where there is none.
            now: Seconds, of any one clock.
        """
        if not self._held:
            self._held_since = now
        waiting = self._all_held()
        if waiting is None:
            return
        self._held = []
        order = in_order(waiting.number)
        n_free = len(waiting)
        if lowest is not None and now - self._held_since < HOLD_SECONDS:
            n_free = int(waiting.number.searchsorted(lowest, sorter=order))
            self._held = [waiting.at(order[n_free:])] if n_free < len(waiting) else []
        if n_free:
            self._held_since = now
            ready = waiting.at(order[:n_free])
            self._ready.append(ready)
            self.n_episodes += n_free
            self.n_rows += int(ready.lengths.sum())

    def _all_held(self) -> Finished | None:
        """Return what is held and what finished lately; None for nothing."""
        parts, self._log = [*self._held, *self._log], []
        return joined(parts) if parts else None

    def drop_above(self, above: int | None) -> None:
        """Drop finished episodes that nobody was told of, with higher numbers; all of them where it is None."""
        held = self._all_held()
        self._held = []
        if held is not None and above is not None:
            kept = (held.number <= above).nonzero()[0]
            self._held = [held.at(kept)] if len(kept) else []

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the episodes that can be taken."""
        return [number for part in self._ready for number in part.number.tolist()]

    @property
    def lengths(self) -> list[int]:
        """Return their lengths, in the same order."""
        return [length for part in self._ready for length in part.lengths.tolist()]

    def numbers_since(self, count: int) -> Array:
        """Return the numbers of those that came after the first `count`, int64 (k,)."""
        numbers = [part.number for part in self._ready]
        return (numbers[0] if len(numbers) == 1 else np.concatenate([np.empty(0, np.int64), *numbers]))[count:]

    def take(self, lend: Lender | None = None) -> Chunk | None:
        """Remove the episodes that can be taken and return them in the order of their numbers; None for none.

        Args:
            lend: Lends the memory that their steps are put into, as far as it has room. What lies there goes to another
                process, and on its way columns stay as narrow as they were recorded (`Chunk.widened`).
        """
        if not self._ready:
            return None
        # Each part is in order by itself; usually there is one.
        ready = joined(self._ready)
        if len(self._ready) > 1:
            ready = ready.at(in_order(ready.number))
        self._ready = []
        self.n_episodes = self.n_rows = 0
        chunk = self._chunk(ready, self._gathered(ready, *([lend] if lend else [])))
        self._forget_stores()
        return chunk.widened(self._memory.take) if lend is None else chunk

    def make_room(self, under_way: UnderWay) -> None:
        """Let the oldest steps go where there is no room: finished episodes are gathered, running ones carried on."""
        if self.block.is_full:
            self._store_finished(self.history.next_oldest)
            self.history.make_room(under_way)

    # -- where steps lie -------------------------------------------------------------------------------------------

    def _store_finished(self, before: int) -> None:
        """Gather the finished episodes that began before a step, so that the steps before it can be let go."""
        for parts in (self._ready, self._held, self._log):
            for at, part in enumerate(parts):
                inside = ((part.start < before) & (part.store == IN_HISTORY)).nonzero()[0]
                if len(inside):
                    parts[at] = self._stored(part, inside)

    def _stored(self, part: Finished, inside: Array) -> Finished:
        moved = part.at(inside)
        store, self._next_store = self._next_store, self._next_store + 1
        self._stores[store] = self._gathered(moved)
        return part.stored(inside, store, np.cumsum(moved.lengths) - moved.lengths)

    def _forget_stores(self) -> None:
        if not self._stores:
            return
        used = {store for part in (*self._held, *self._log) for store in np.unique(part.store).tolist()}
        self._stores = {store: columns for store, columns in self._stores.items() if store in used}

    def _gathered(self, episodes: Finished, *lenders: Lender) -> Columns:
        lengths = episodes.lengths
        to = np.cumsum(lengths) - lengths
        if not self._stores:
            stretches = self._in_history(episodes, to)
        else:
            stretches = []
            for store in np.unique(episodes.store).tolist():
                inside = (episodes.store == store).nonzero()[0]
                part = episodes.at(inside)
                if store == IN_HISTORY:
                    stretches += self._in_history(part, to[inside])
                else:
                    stretches.append(Stretch(self._stores[store], part.offset, part.lengths, 1, to[inside]))
        return gather(stretches, int(lengths.sum()), *lenders, self._memory.take)

    def _in_history(self, episodes: Finished, to: Array) -> list[Stretch]:
        return self.history.stretches(episodes.row, episodes.start, episodes.stop, to)

    # -- chunks ----------------------------------------------------------------------------------------------------

    def _chunk(self, ready: Finished, columns: Columns) -> Chunk:
        n_rows, split = len(columns.leaves[-1]), self.n_observation_leaves
        return Chunk(
            numbers=ready.number,
            seeds=ready.seed,
            lengths=ready.lengths,
            terminated=ready.terminated,
            truncated=ready.truncated,
            workers=np.full(len(ready.number), self._worker_number, np.int32),
            wall_times=ready.wall_time,
            observations=tuple(columns.leaves[:split]),
            actions=tuple(columns.leaves[split:-1]),
            rewards=columns.leaves[-1],
            last_observations=ready.last,
            env_infos=info_table(n_rows, columns.infos[0]),
            agent_infos=info_table(n_rows, columns.infos[1]),
            episode_infos=_episode_infos(ready),
            types=columns.types,
        )


def _episode_infos(episodes: Finished) -> InfoTable:
    told = [] if episodes.info is None else episodes.info.tolist()
    return tabulate([info or {} for info in told]) if any(told) else InfoTable(len(episodes))
