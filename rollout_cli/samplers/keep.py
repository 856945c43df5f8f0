"""Judge: which finished episodes of a worker an EXPRESSION keeps; the others are never sent."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np

from rollout_cli.episodes.chunk import Chunk, concatenate, episode_returns
from rollout_cli.episodes.expression import Expression, of_one_kind
from rollout_cli.episodes.infos import INFO_GROUPS, InfoTable, all_masked
from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import UsageError
from rollout_cli.samplers.plan import contiguous_ranges

FACTS = ("return", "length", "terminated", "truncated", "seed", "episode_number")
"""The columns of `meta/episodes` that an episode has wherever, and whenever, it is run."""

_INFO_PREFIXES = tuple(f"{group}." for group in INFO_GROUPS)


def keep_expression(text: str) -> Expression:
    """Return an expression that workers can evaluate.

    Raises:
        UsageError: If it is not of the language, or names what is no fact of an episode by itself.
    """
    expression = Expression(text)
    for name in expression.names:
        if name not in FACTS and not name.startswith(_INFO_PREFIXES):
            raise expression.no_column(name, [*FACTS, *(f"{prefix}KEY" for prefix in _INFO_PREFIXES)])
    # The rest of what can be wrong shows up as it is evaluated.
    columns = dict.fromkeys(expression.names, all_masked((1,), np.dtype(np.float64)))
    expression.evaluate(columns | dict.fromkeys(FACTS, np.ma.zeros(1)), 1)
    return expression


class Judge:
    """Judges the episodes of one worker; `UsageError` says that the expression cannot be used on them."""

    def __init__(self, text: str) -> None:
        self._expression = keep_expression(text)
        self._unmet = set(self._expression.names).difference(FACTS)
        self._met: set[str] = set()

    def judge(self, chunk: Chunk) -> tuple[Chunk | None, Array, Mapping[str, UsageError]]:
        """Judge the whole episodes of a chunk.

        Returns:
            Those kept, None for none: in memory of their own, unless all are. The numbers of the others,
            rising int64 (N,). Of each info that the expression names and no episode has had so far, what is
            wrong.
        """
        for group in INFO_GROUPS:
            for column in getattr(chunk, f"{group}s").columns:
                self._met.add(f"{group}.{'.'.join(column.path)}")
        self._unmet -= self._met
        present = [*FACTS, *sorted(self._met)]
        unmet = {name: self._expression.no_column(name, present) for name in sorted(self._unmet)}
        is_kept = self._expression.evaluate(_columns(chunk, self._expression.names), chunk.n_episodes)
        return _selected(chunk, is_kept), chunk.numbers[~is_kept], unmet


def _columns(chunk: Chunk, names: tuple[str, ...]) -> dict[str, Array]:
    """Return columns of a chunk's episodes as a dataset has them; of infos of steps, the last step's."""
    facts = {
        "return": episode_returns([chunk.rewards], chunk.lengths),
        "length": chunk.lengths,
        "terminated": chunk.terminated,
        "truncated": chunk.truncated,
        "seed": chunk.seeds,
        "episode_number": chunk.numbers,
    }
    columns: dict[str, Array] = {}
    for name in names:
        group, _, key = name.partition(".")
        if name in facts:
            columns[name] = np.ma.asarray(facts[name])
            continue
        table: InfoTable = getattr(chunk, f"{group}s")
        rows = np.arange(chunk.n_episodes) if group == "episode_info" else np.cumsum(chunk.lengths) - 1
        named = [column for column in table.columns if ".".join(column.path) == key]
        # Of several paths with one dotted key the first has the name in a dataset; here the last one counts.
        named.sort(key=lambda column: column.path, reverse=True)
        arrays = InfoTable(table.n_rows, tuple(named)).to_arrays()
        values = arrays.get(key, np.full(table.n_rows, None, object))
        columns[name] = np.ma.asarray(of_one_kind(name, values[rows]))
    return columns


def _selected(chunk: Chunk, is_kept: Array) -> Chunk | None:
    runs = contiguous_ranges(np.flatnonzero(is_kept))
    if not runs:
        return None
    if is_kept.all():
        return chunk
    pieces = [chunk.episodes(run.start, run.stop) for run in runs]
    # A view would keep the memory of all episodes, those rejected too.
    return concatenate(pieces) if len(pieces) > 1 else copy.deepcopy(pieces[0])
