"""The built-in policy `random`, which samples many actions at once, with the distribution of `space.sample()`.

A call of `space.sample()` costs more than a step of a small environment.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Leaf, Space, SpaceRows, Tree, count_rows
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.noise import RowStreams, SeededPolicy, Words, uniform
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos
from rollout_cli.seeding.seeds import draw_root_seed

_BLOCK_STEPS = 64
_BLOCK_WORDS = 2_048
"""The maximum number of words in a block: large actions get blocks of fewer steps."""


class RandomPolicy(SeededPolicy):
    """Samples actions of a space without changing the space's generator. `reset` does not restart the streams."""

    row_wise = acts_within_space = True

    def __init__(self, action_space: Space) -> None:
        rows = SpaceRows(action_space)
        makers = [*filter(None, map(_column_maker, rows.leaves))]
        make: Any = partial(_CountedStream, rows, makers)
        if len(makers) < len(rows.leaves):
            make = partial(_SampledStream, rows, action_space)
        super().__init__(None, make)
        self._ahead: list[Any] = []  # In reverse order: the last action is next.

    def get_action(self, observation: Any) -> ActionAndInfo:  # noqa: ARG002
        if not self._ahead:
            self._ahead = self.streams.single.block()[::-1]
        return self._ahead.pop(), {}

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        return self.streams.sized(count_rows(observations)).draw(), {}

    def seed(self, seed: int) -> None:
        self._ahead = []
        super().seed(seed)


class _CountedStream(RowStreams):
    """The actions of n rows, a function of (seed, step); each leaf has a maker of columns (k, *shape)."""

    def __init__(self, rows: SpaceRows, makers: Sequence[Callable[[Words], Array]], n_rows: int) -> None:
        super().__init__(n_rows)
        self._rows = rows
        self._makers = makers
        self._edges = [0, *accumulate(math.prod(leaf.shape) for leaf in rows.leaves)]
        self._block_steps = max(1, min(_BLOCK_STEPS, _BLOCK_WORDS // max(1, self._edges[-1])))

    def draw(self) -> Tree:
        """Return the next action of each row, a tree of arrays (n, *shape)."""
        return self._actions(self.words(self._edges[-1]))

    def block(self) -> list[Any]:
        """Return a block of the next actions of a stream with one row."""
        words = self.words(self._edges[-1] * self._block_steps)
        return self._rows.split(self._actions(words.reshape(self._block_steps, self._edges[-1])))

    def _actions(self, words: Words) -> Tree:
        if len(self._makers) == 1:
            return self._rows.tree([self._makers[0](words)])
        columns = zip(self._makers, pairwise(self._edges), strict=True)
        return self._rows.tree([make(words[:, low:high]) for make, (low, high) in columns])


class _SampledStream:
    """The actions of n rows, sampled with one copy of the space per row.

    For strings, unbounded boxes and custom spaces.
    """

    def __init__(self, rows: SpaceRows, space: Space, n_rows: int) -> None:
        self._rows = rows
        self._copies = [copy.deepcopy(space) for _ in range(n_rows)]
        for space_copy in self._copies:
            space_copy.seed(draw_root_seed())

    def __len__(self) -> int:
        return len(self._copies)

    def seed(self, rows: Any, seeds: Any) -> None:
        indices = np.arange(len(self))[rows]
        for row, seed in zip(indices.tolist(), np.broadcast_to(seeds, len(indices)).tolist(), strict=True):
            self._copies[row].seed(seed)

    def draw(self) -> Tree:
        return self._rows.stack([space_copy.sample() for space_copy in self._copies])

    def block(self) -> list[Any]:
        return self._rows.split(self.draw())


_HALF = np.uint64(32)
_WIDEST_SPAN = 2**32
"""The maximum number of integers that 32 bits of a word can choose from; larger ranges use `_SampledStream`."""


def _column_maker(leaf: Leaf) -> Callable[[Words], Array] | None:
    """Return the function from words (k, size) to a leaf's column (k, *shape); None if the leaf has none."""
    if leaf.bounds is None:
        return None
    low, high = leaf.bounds
    if leaf.dtype.kind == "f":
        if not np.isfinite([low, high]).all():
            return None
        return partial(_uniform_column, leaf, low.astype(float), high.astype(float))
    # Python integers, because the span of all 64-bit integers does not fit a numpy integer.
    lows = np.asarray(low, object)
    spans = np.asarray(np.asarray(high, object) - lows + 1, object)
    if max(spans.ravel().tolist(), default=1) > _WIDEST_SPAN:
        return None
    offsets = np.asarray(lows % 2**64).astype(np.uint64) if lows.any() else None
    return partial(_integer_column, leaf, offsets, spans.astype(np.uint64))


def _uniform_column(leaf: Leaf, low: Array, high: Array, words: Words) -> Array:
    share = uniform(words).reshape(len(words), *leaf.shape)
    # Two products instead of one, because the difference of the bounds may overflow a float.
    return np.asarray(np.clip(low * (1.0 - share) + high * share, low, high), leaf.dtype)


def _integer_column(leaf: Leaf, offsets: Words | None, spans: Words, words: Words) -> Array:
    numbers = words.reshape(len(words), *leaf.shape) >> _HALF
    numbers *= spans
    numbers >>= _HALF
    if offsets is not None:
        numbers += offsets  # Modulo 2**64, like the offsets of negative bounds.
    return numbers.view(np.int64).astype(leaf.dtype, copy=False)


class RandomSource:
    """The source of the built-in random policy.

    Raises:
        PolicyLoadError: An argument is given, as in `random:3`.
    """

    def __init__(self, argument: str, options: Keywords) -> None:
        if argument or options:
            raise PolicyLoadError(
                f"the random policy takes no arguments, got {argument or options!r}",
                code="policy-options",
                hint="use `random`",
            )

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> RandomPolicy:
        """Return the policy; raise PolicyLoadError if it must be deterministic."""
        if deterministic:
            raise PolicyLoadError(
                "the random policy has no deterministic mode",
                code="policy-not-deterministic",
                hint="omit {deterministic=True}",
            )
        return RandomPolicy(env_spec.action_space)

    def describe(self) -> Record:
        """Return the record, which has neither file nor options."""
        return {"scheme": "random", "path": None, "sha256": None, "options": {}}
