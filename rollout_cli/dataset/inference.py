"""Schema inference: the first episodes of a run decide which info keys become columns.

Info dictionaries may hold anything at any step, but all files of a dataset must have one schema, whichever worker ran
which episode. So the columns are those of the shortest prefix of episodes 0, 1, 2, … with at least `INFERENCE_STEPS`
steps. A value that comes later under another key or type goes to the row's JSON remainder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout_cli.dataset.convert import Array, fits
from rollout_cli.dataset.schema import InfoField, InfoSchema
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import JSON, STRING, InfoPath, InfoTable, kind_type

INFERENCE_STEPS = 1_000
"""Steps after which, at an episode's end, the columns are decided."""

_INTEGERS = "iu"


class SchemaInference:
    """Holds the first chunks back until their infos decide the columns, looking at them in the order of their numbers.

    With one partition that is the order in which they come. With several, partition 1 begins where partition 0 ends, so
    chunks of partition 1 wait until partition 0 reached their number.

    Args:
        n_partitions: How many partitions there are.
        min_steps: Steps that the inference needs.
    """

    def __init__(self, *, n_partitions: int = 1, min_steps: int = INFERENCE_STEPS) -> None:
        self._min_steps = min_steps
        self._steps = 0
        self._next_number = 0
        self._decided = False
        self._kinds = (_Kinds(), _Kinds(), _Kinds())
        self._held: list[tuple[Chunk, int]] = []
        self._unseen: list[deque[Chunk]] = [deque() for _ in range(n_partitions)]

    @property
    def decided(self) -> bool:
        """Return whether the columns are decided."""
        return self._decided

    def hold(self, chunk: Chunk, partition: int) -> None:
        """Take the next chunk of a partition, to be given back by `release`."""
        self._held.append((chunk, partition))
        self._unseen[partition].append(chunk)
        while not self._decided and (following := self._next_in_order()) is not None:
            self.observe(following)

    def observe(self, chunk: Chunk) -> None:
        """Look at the next episodes, or the next part of one, without holding them back."""
        if self._decided:
            return
        ends = self._steps + np.cumsum(chunk.lengths)
        is_whole = chunk.part is None or chunk.part.is_last
        inside = min(int(np.searchsorted(ends, self._min_steps)) + 1, chunk.n_episodes)
        observed = chunk.episodes(0, inside)
        tables = (observed.env_infos, observed.agent_infos, observed.episode_infos)
        for kinds, table in zip(self._kinds, tables, strict=True):
            kinds.add(table)
        self._steps = int(ends[inside - 1])
        self._decided = is_whole and self._steps >= self._min_steps
        if is_whole:
            self._next_number = int(chunk.numbers[-1]) + 1

    def result(self) -> InfoSchema:
        """Return the columns; those of all held chunks where too few steps came to decide them."""
        for partition in self._unseen:
            while partition and not self._decided:
                self.observe(partition.popleft())
        env, agent, episode = (kinds.fields() for kinds in self._kinds)
        return InfoSchema(env, agent, episode, decided=self._decided)

    def release(self) -> list[tuple[Chunk, int]]:
        """Give back the held chunks with their partitions, in the order in which they came."""
        held, self._held = self._held, []
        self._unseen = [deque() for _ in self._unseen]
        return held

    def _next_in_order(self) -> Chunk | None:
        for partition in self._unseen:
            if partition and (len(self._unseen) == 1 or int(partition[0].numbers[0]) == self._next_number):
                return partition.popleft()
        return None


class _Kinds:
    """The kinds met at each path, and whether all values of each are exact as float64."""

    def __init__(self) -> None:
        self._met: dict[InfoPath, dict[str, bool]] = {}

    def add(self, table: InfoTable) -> None:
        for column in table.columns:
            kinds = self._met.setdefault(column.path, {})
            kinds[column.kind] = kinds.get(column.kind, True) and _exact_as_float64(column.values)

    def fields(self) -> tuple[InfoField, ...]:
        chosen = ((path, choose_kind(kinds)) for path, kinds in self._met.items())
        columns = [InfoField(path, kind) for path, kind in chosen if kind is not None]
        columns.sort(key=lambda column: (column.key, column.path))
        # Keys may contain dots: of several paths with one dotted key, the first has the column.
        return tuple({column.key: column for column in reversed(columns)}.values())[::-1]


def choose_kind(kinds: Mapping[str, bool]) -> str | None:
    """Return the kind of the column for values of all `kinds` at one path; None where they have none in common.

    JSON values never have a column, so they do not count. Integers and floats of one shape join in the widest of their
    sort; both together in float64, if every integer is exact in it.

    Args:
        kinds: The kinds met, and whether all values of each are exact as float64.
    """
    typed = [kind for kind in kinds if kind != JSON]
    if len(typed) <= 1:
        return typed[0] if typed else None
    if STRING in typed:
        return None
    types = [kind_type(kind) for kind in typed]
    if len({shape for _, shape in types}) > 1:
        return None
    dtype = _common_dtype([dtype for dtype, _ in types], exact=all(kinds[kind] for kind in typed))
    return None if dtype is None else dtype.name + typed[0].removeprefix(types[0][0].name)


def _common_dtype(dtypes: list[np.dtype[Any]], *, exact: bool) -> np.dtype[Any] | None:
    sorts = {dtype.kind for dtype in dtypes}
    if sorts == {"f"}:
        return np.result_type(*dtypes)
    if sorts <= set(_INTEGERS):
        common = np.result_type(*dtypes)
        return common if common.kind in _INTEGERS else None
    return None if "b" in sorts or not exact else np.dtype(np.float64)


def _exact_as_float64(values: Array) -> bool:
    if values.dtype == object:
        return False
    return values.dtype.kind not in _INTEGERS or bool(fits(values, np.dtype(np.float64)).all())
