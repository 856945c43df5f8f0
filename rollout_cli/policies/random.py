"""The built-in policy `random`: actions drawn as the action space's own `sample` draws them, but in blocks.

A call of `space.sample()` costs more than a step of a small environment. Here a block of actions is drawn at once, from
a generator that is set anew for each episode, so that an episode's actions are a pure function of its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.generators import FoundGenerator
from rollout_cli.policies.base import PolicySource, Tree
from rollout_cli.policies.rows import count_rows, rows_of
from rollout_cli.spaces import Leaf, space_leaves, unflatten

Array = npt.NDArray[Any]
Draw = Callable[[np.random.Generator, int], Array]
"""Draws a column (rows, *shape)."""

BLOCK_ROWS = 64
BLOCK_BYTES = 16_384
"""A block is shorter where its rows are large: a batch holds one block for each of its rows."""


class RandomPolicy:
    """Draws actions from an action space.

    Args:
        action_space: Any space that has columns; it is only read, never drawn from.
    """

    # Without a __dict__ the generators below are not found and seeded a second time beside `seed`.
    __slots__ = ("_blocks", "_generator", "_rows", "_samples")

    row_wise = True

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self._blocks = _Blocks(action_space)
        self._generator = np.random.Generator(np.random.PCG64())
        self._samples: Iterator[Any] = iter(())
        self._rows: _Rows | None = None

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Return the next action and no info."""
        for action in self._samples:
            return action, {}
        self._samples = iter(self._blocks.samples(self._generator))
        return next(self._samples), {}

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        """Return each row's next action, a tree of arrays (n, *shape), and no infos."""
        return self._sized_rows(count_rows(observations)).draw(), {}

    def seed(self, seed: int) -> None:
        """Begin the actions that belong to `seed`."""
        set_generator(self._generator, seed)
        self._samples = iter(())

    def seed_rows(self, mask: Array, seeds: Any) -> None:
        """Begin the actions that belong to `seeds[j]` in each row j where `mask`, bool (n,), is true."""
        rows = self._sized_rows(len(mask))
        for row in np.flatnonzero(mask).tolist():
            set_generator(rows.generators[row], int(seeds[row]))
        rows.forget(mask)

    def reset(self, do_resets: Array | None = None) -> None:
        """Drop what is left of the blocks that were drawn ahead."""
        if do_resets is not None:
            self._sized_rows(len(do_resets)).forget(do_resets)
            return
        self._samples = iter(())
        if self._rows is not None:
            self._rows.forget(np.ones(len(self._rows.generators), bool))

    def get_param_values(self) -> dict[str, Any]:
        """Return nothing: there are no parameters."""
        return {}

    def set_param_values(self, params: Any) -> None:
        """Refuse parameters.

        Raises:
            PolicyError: If there are any.
        """
        if len(params):
            raise PolicyError("the random policy has no parameters to set", hint="send a whole policy instead")

    def _sized_rows(self, n_rows: int) -> _Rows:
        if self._rows is None or len(self._rows.generators) != n_rows:
            self._rows = _Rows(self._blocks, n_rows)
        return self._rows


def set_generator(generator: np.random.Generator, seed: int) -> None:
    """Put `generator` into the state that belongs to `seed`: a tenth of what building a seeded one costs."""
    FoundGenerator("actions", generator).seed(seed, 0)


class _Blocks:
    """Draws blocks of one action space."""

    __slots__ = ("_draws", "_leaves", "_space", "n_rows")

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = space
        self._leaves = space_leaves(space)
        self._draws = [_leaf_draw(leaf) for leaf in self._leaves]
        row_bytes = sum(leaf.row_bytes for leaf in self._leaves)
        self.n_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))

    def columns(self, generator: np.random.Generator) -> list[Array]:
        """Return the next block as one array a leaf, (n_rows, *shape)."""
        return [draw(generator, self.n_rows) for draw in self._draws]

    def samples(self, generator: np.random.Generator) -> list[Any]:
        """Return the next block as a list of samples."""
        columns = zip(self._leaves, self.columns(generator), strict=True)
        return _assemble(self._space, iter([rows_of(leaf.kind, column) for leaf, column in columns]), self.n_rows)

    def empty(self, n_rows: int) -> list[Array]:
        """Return room for a block in each of `n_rows` rows: arrays (n_rows, block, *shape)."""
        return [np.empty((n_rows, self.n_rows, *leaf.shape), leaf.dtype) for leaf in self._leaves]

    def tree(self, columns: list[Array]) -> Tree:
        """Return one array a leaf as the space's tree."""
        return unflatten(self._space, columns)


def _assemble(space: spaces.Space[Any], columns: Iterator[list[Any]], n_rows: int) -> list[Any]:
    """Return lists of leaves as one list of samples; each node is built for all rows at once."""
    if isinstance(space, spaces.Dict):
        parts = [_assemble(child, columns, n_rows) for child in space.spaces.values()]
        keys = list(space.spaces)
        return [dict(zip(keys, row, strict=True)) for row in zip(*parts, strict=True)] if parts else [{}] * n_rows
    if isinstance(space, spaces.Tuple):
        parts = [_assemble(child, columns, n_rows) for child in space.spaces]
        return list(zip(*parts, strict=True)) if parts else [()] * n_rows
    return next(columns)


class _Rows:
    """The generator and the block of each row of a batch."""

    __slots__ = ("_blocks", "_columns", "_next", "_numbers", "generators")

    def __init__(self, blocks: _Blocks, n_rows: int) -> None:
        self._blocks = blocks
        self.generators = [np.random.Generator(np.random.PCG64()) for _ in range(n_rows)]
        self._columns = blocks.empty(n_rows)
        self._numbers = np.arange(n_rows)
        self._next = np.full(n_rows, blocks.n_rows)

    def forget(self, mask: Array) -> None:
        """Drop the blocks of the rows where `mask` is true."""
        self._next[mask] = self._blocks.n_rows

    def draw(self) -> Tree:
        """Return every row's next action, a tree of arrays (n, *shape)."""
        for row in np.flatnonzero(self._next == self._blocks.n_rows).tolist():
            for column, block in zip(self._columns, self._blocks.columns(self.generators[row]), strict=True):
                column[row] = block
            self._next[row] = 0
        taken = [column[self._numbers, self._next] for column in self._columns]
        self._next += 1
        return self._blocks.tree(taken)


class _Range(NamedTuple):
    """Numbers between two bounds, both included; a bound is a number or an array that the shape broadcasts."""

    low: Any
    high: Any
    shape: tuple[int, ...]
    dtype: Any


def _leaf_draw(leaf: Leaf) -> Draw:
    space: Any = leaf.space
    if isinstance(space, spaces.Box):
        bounded = np.all(space.bounded_below & space.bounded_above)
        return _range_draw(_box_range(space)) if bounded else partial(_draw_unbounded, space)
    if isinstance(space, spaces.Text):
        return partial(_draw_texts, space.min_length, space.max_length, "".join(sorted(space.character_set)))
    low: Any
    high: Any
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    else:
        low, high = 0, 1
    return _range_draw(_Range(low, high, leaf.shape, leaf.dtype))


def _range_draw(bounds: _Range) -> Draw:
    return partial(_draw_uniform if np.dtype(bounds.dtype).kind == "f" else _draw_integers, bounds)


def _box_range(space: spaces.Box) -> _Range:
    return _Range(_bound(space.low), _bound(space.high), space.shape, space.dtype)


def _bound(bound: Array) -> Any:
    """Return a bound that is one everywhere as a number: numpy draws such arrays twice as fast."""
    return bound.flat[0].item() if bound.size and np.all(bound == bound.flat[0]) else bound


def _draw_integers(bounds: _Range, generator: np.random.Generator, rows: int) -> Array:
    low, high, shape, dtype = bounds
    return generator.integers(low, high, size=(rows, *shape), dtype=dtype, endpoint=True)


def _draw_uniform(bounds: _Range, generator: np.random.Generator, rows: int) -> Array:
    low, high, shape, dtype = bounds
    return generator.uniform(low, high, size=(rows, *shape)).astype(dtype)


def _draw_unbounded(space: spaces.Box, generator: np.random.Generator, rows: int) -> Array:
    """Draw as Box does: normal without bounds, exponential from a single bound, uniform between two."""
    below, above = space.bounded_below.ravel(), space.bounded_above.ravel()
    low, high = space.low.ravel(), space.high.ravel()
    only_low, only_high, both = below & ~above, above & ~below, below & above
    whole = np.dtype(space.dtype).kind != "f"
    draws = generator.normal(size=(rows, below.size))
    draws[:, only_low] = low[only_low] + generator.exponential(size=(rows, int(only_low.sum())))
    # An integer is the floor of a draw, so the highest one needs an interval that is one longer.
    top = high[only_high].astype(np.float64) + whole
    draws[:, only_high] = top - generator.exponential(size=(rows, int(only_high.sum())))
    out = (np.clip(np.floor(draws), low, high) if whole else draws).astype(space.dtype)
    out[:, both] = _range_draw(_Range(low[both], high[both], (int(both.sum()),), space.dtype))(generator, rows)
    return out.reshape(rows, *space.shape)


def _draw_texts(shortest: int, longest: int, characters: str, generator: np.random.Generator, rows: int) -> Array:
    out = np.empty(rows, object)
    for row, length in enumerate(generator.integers(shortest, longest, size=rows, endpoint=True).tolist()):
        out[row] = "".join(characters[at] for at in generator.integers(0, len(characters), size=length).tolist())
    return out


@dataclass(frozen=True, slots=True)
class RandomSource(PolicySource):
    """The source of the built-in random policy."""

    @property
    def label(self) -> str:
        """Return `random`."""
        return "random"

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> RandomPolicy:
        """Build the policy for the action space of `env_spec`.

        Raises:
            PolicyLoadError: If it is to be deterministic.
        """
        if deterministic:
            raise PolicyLoadError("the random policy has no deterministic mode", hint="leave --deterministic away")
        return RandomPolicy(env_spec.action_space)

    def describe(self) -> dict[str, Any]:
        """Return what a dataset records of it."""
        return {"spec": "random", "path": None, "sha256": None}


def policy_source(rest: str) -> PolicySource:
    """Return the source that `random` names.

    Raises:
        PolicyLoadError: If anything follows, as in `random:3`.
    """
    if rest:
        raise PolicyLoadError(f"the random policy takes nothing after its name, but got {rest!r}", hint="use `random`")
    return RandomSource()
