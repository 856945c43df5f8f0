"""Schema inference: the first episodes of a run decide which info keys become columns.

Info dictionaries may hold anything at any step, but all files of a dataset must have one schema, whichever worker ran
which episode. So the columns are those of the shortest prefix of episodes 0, 1, 2, … with at least `INFERENCE_STEPS`
steps. A value that comes later under another key or type goes to the row's JSON remainder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from rollout_cli.dataset.convert import Array, fits
from rollout_cli.dataset.schema import INFO_PREFIXES, InfoColumns
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import JSON, STRING, InfoPath, kind_type

INFERENCE_STEPS = 1_000
"""Steps after which, at an episode's end, the columns are decided."""


class SchemaInference:
    """Holds the first chunks back until their infos decide the columns, looking at them in the order of their numbers.

    With one partition that is the order in which they come. With several, partition 1 begins where partition 0 ends, so
    chunks of partition 1 wait until partition 0 reached their number.
    """

    def __init__(self, *, n_partitions: int = 1, min_steps: int = INFERENCE_STEPS) -> None:
        self.decided = False
        self._min_steps = min_steps
        self._steps = self._next_number = 0
        # Of each group and path the kinds met, and whether all values of each are exact as float64.
        self._met: tuple[dict[InfoPath, dict[str, bool]], ...] = ({}, {}, {})
        self._held: list[tuple[Chunk, int]] = []
        self._unseen: list[deque[Chunk]] = [deque() for _ in range(n_partitions)]

    def hold(self, chunk: Chunk, partition: int) -> None:
        """Take the next chunk of a partition, to be given back by `release`."""
        self._held.append((chunk, partition))
        self._unseen[partition].append(chunk)
        while not self.decided and (queue := self._next_in_order()) is not None:
            self.observe(queue.popleft())

    def observe(self, chunk: Chunk) -> None:
        """Look at the next episodes, or the next part of one, without holding them back."""
        if self.decided:
            return
        ends = self._steps + np.cumsum(chunk.lengths)
        inside = min(int(np.searchsorted(ends, self._min_steps)) + 1, chunk.n_episodes)
        observed = chunk.episodes(0, inside)
        tables = (observed.env_infos, observed.agent_infos, observed.episode_infos)
        for met, table in zip(self._met, tables, strict=True):
            for column in table.columns:
                kinds = met.setdefault(column.path, {})
                kinds[column.kind] = kinds.get(column.kind, True) and _exact_as_float64(column.values)
        self._steps = int(ends[inside - 1])
        if chunk.part is None or chunk.part.is_last:
            self.decided = self._steps >= self._min_steps
            self._next_number = int(chunk.numbers[-1]) + 1

    def result(self) -> InfoColumns:
        """Return the columns; those of all held chunks where too few steps came to decide them."""
        for queue in self._unseen:
            while queue and not self.decided:
                self.observe(queue.popleft())
        groups = zip(INFO_PREFIXES, map(_info_columns, self._met), strict=True)
        return {f"{prefix}.{key}": column for prefix, columns in groups for key, column in columns.items()}

    def release(self) -> list[tuple[Chunk, int]]:
        """Give back the held chunks with their partitions, in the order in which they came."""
        held, self._held = self._held, []
        self._unseen = [deque() for _ in self._unseen]
        return held

    def _next_in_order(self) -> deque[Chunk] | None:
        for queue in self._unseen:
            if queue and (len(self._unseen) == 1 or int(queue[0].numbers[0]) == self._next_number):
                return queue
        return None


def _info_columns(met: Mapping[InfoPath, Mapping[str, bool]]) -> InfoColumns:
    """Return path and kind of the columns of one group, by dotted key."""
    chosen = ((path, choose_kind(kinds)) for path, kinds in met.items())
    columns = sorted((".".join(path), path, kind) for path, kind in chosen if kind is not None)
    # Keys may contain dots: of several paths with one dotted key, the first has the column.
    found = {key: (path, kind) for key, path, kind in reversed(columns)}
    return dict(reversed(found.items()))


def choose_kind(kinds: Mapping[str, bool]) -> str | None:
    """Return the kind of the column for values of all `kinds` at one path; None where they have none in common.

    `kinds` says of each whether all its values are exact as float64. JSON values never have a column, so they do not
    count. Integers and floats of one shape join in the widest of their sort; both together in float64, if every integer
    is exact in it.
    """
    typed = [kind for kind in kinds if kind != JSON]
    if len(typed) <= 1 or STRING in typed:
        return typed[0] if len(typed) == 1 else None
    dtypes, shapes = zip(*map(kind_type, typed), strict=True)
    sorts = {dtype.kind for dtype in dtypes}
    common = np.result_type(*dtypes)
    if sorts - {"f"} and not sorts <= {"i", "u"}:
        # Integers and floats.
        common = np.dtype(np.float64)
        if "b" in sorts or not all(kinds[kind] for kind in typed):
            return None
    elif len(sorts) > 1 and common.kind == "f":
        return None  # No integer type holds int64 and uint64.
    return common.name + typed[0].removeprefix(dtypes[0].name) if len(set(shapes)) == 1 else None


def _exact_as_float64(values: Array) -> bool:
    if values.dtype == object:
        return False
    return values.dtype.kind not in "iu" or bool(fits(values, np.dtype(np.float64)).all())
