"""The schema window: which info keys become columns, decided by the first episodes of the run alone.

Info dictionaries may hold anything at any step, but all shards of a dataset must have one schema, whichever worker ran
what. So the columns are those met in the shortest prefix of episodes 0, 1, 2, … with at least `WINDOW_STEPS` steps;
what comes later under another key or type goes to the row's JSON remainder.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.columns import kind_arrow_type
from rollout_cli.dataset.info_types import choose_kind, exact_as_float64
from rollout_cli.infos import InfoPath, InfoTable

WINDOW_STEPS = 1_000
"""Steps after which, at an episode's end, the window closes."""


@dataclass(frozen=True, slots=True)
class InfoField:
    """One info column.

    Attributes:
        path: Keys from the root of the info dictionary.
        kind: The kind of its values, as in `rollout_cli.infos`; never `json`.
    """

    path: InfoPath
    kind: str

    @property
    def key(self) -> str:
        """Return the dotted path."""
        return ".".join(self.path)

    @property
    def arrow_type(self) -> pa.DataType:
        """Return the column's Arrow type."""
        return kind_arrow_type(self.kind)


@dataclass(frozen=True, slots=True)
class InfoSchema:
    """The info columns of a dataset, each group sorted by dotted key.

    Attributes:
        env: Columns of the infos of `env.step`.
        agent: Columns of the policy's infos.
        episode: Columns of the infos of `env.reset`.
        closed: Whether the window had all its steps.
    """

    env: tuple[InfoField, ...]
    agent: tuple[InfoField, ...]
    episode: tuple[InfoField, ...]
    closed: bool


class SchemaWindow:
    """Watches the first episodes until it knows the info columns.

    Args:
        min_steps: Steps that the window needs.
    """

    def __init__(self, min_steps: int = WINDOW_STEPS) -> None:
        self._min_steps = min_steps
        self._steps = 0
        self._closed = False
        self._env, self._agent, self._episode = _Kinds(), _Kinds(), _Kinds()

    @property
    def closed(self) -> bool:
        """Return whether the columns are decided."""
        return self._closed

    def observe(self, chunk: Chunk) -> None:
        """Take in the next episodes, or the next part of one; what lies behind the window is not looked at."""
        if self._closed:
            return
        ends = self._steps + np.cumsum(chunk.lengths)
        whole = chunk.part is None or chunk.part.is_last
        inside = min(int(np.searchsorted(ends, self._min_steps)) + 1, chunk.n_episodes)
        self._add(chunk.episodes(0, inside))
        self._steps = int(ends[inside - 1])
        self._closed = whole and self._steps >= self._min_steps

    def result(self) -> InfoSchema:
        """Return the columns of what was observed so far."""
        return InfoSchema(self._env.fields(), self._agent.fields(), self._episode.fields(), self._closed)

    def _add(self, chunk: Chunk) -> None:
        self._env.add(chunk.env_infos)
        self._agent.add(chunk.agent_infos)
        self._episode.add(chunk.episode_infos)


class _Kinds:
    """The kinds met at each path, and whether all values of each are exact as float64."""

    def __init__(self) -> None:
        self._met: dict[InfoPath, dict[str, bool]] = {}

    def add(self, table: InfoTable) -> None:
        for column in table.columns:
            kinds = self._met.setdefault(column.path, {})
            kinds[column.kind] = kinds.get(column.kind, True) and exact_as_float64(column.values)

    def fields(self) -> tuple[InfoField, ...]:
        chosen = ((path, choose_kind(kinds)) for path, kinds in self._met.items())
        columns = sorted((InfoField(path, kind) for path, kind in chosen if kind is not None), key=_order)
        # Keys may contain dots: of several paths with one dotted key, the first has the column.
        return tuple({column.key: column for column in reversed(columns)}.values())[::-1]


def _order(column: InfoField) -> tuple[str, InfoPath]:
    return column.key, column.path
