"""Judge: decides by the run's `keep` expression which finished episodes a worker sends."""

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
"""The columns of `meta/episodes` that depend only on the episode, not on its run."""

_INFO_PREFIXES = tuple(f"{group}." for group in INFO_GROUPS)


def keep_expression(text: str) -> Expression:
    """Return the parsed expression, checked so that workers can evaluate it.

    Raises:
        UsageError: If the syntax is invalid, or a name is neither in `FACTS` nor an info.
    """
    expression = Expression(text)
    for name in expression.names:
        if name not in FACTS and not name.startswith(_INFO_PREFIXES):
            raise expression.no_column(name, [*FACTS, *(f"{prefix}KEY" for prefix in _INFO_PREFIXES)])
    # Evaluating the expression on placeholder values finds type errors.
    columns = dict.fromkeys(expression.names, all_masked((1,), np.dtype(np.float64)))
    expression.evaluate(columns | dict.fromkeys(FACTS, np.ma.zeros(1)), 1)
    return expression


class Judge:
    """Judges the episodes of one worker; raises UsageError if the expression cannot be evaluated on them."""

    def __init__(self, text: str) -> None:
        self._expression = keep_expression(text)
        self._unmet = set(self._expression.names).difference(FACTS)
        self._met: set[str] = set()

    def judge(self, chunk: Chunk) -> tuple[Chunk | None, Array, Mapping[str, UsageError]]:
        """Judge the complete episodes of a chunk.

        Returns:
            The kept episodes or None, copied unless all are kept; the numbers of the rejected episodes,
            rising int64 (N,); and an error for each info that the expression names and no episode has had so
            far.
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
    """Return the named columns of a chunk's episodes, with dtypes as in a dataset; step infos are the last step's."""
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
        # If several paths have the same dotted key, a dataset uses the first one; `to_arrays` the last one.
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
    # A view would keep the memory of the rejected episodes alive.
    return concatenate(pieces) if len(pieces) > 1 else copy.deepcopy(pieces[0])
