"""The built-in policy `random`: actions distributed as the action space's own `sample` draws them.

A call of `space.sample()` costs more than a step of a small environment. Here actions are a function of the episode's
seed and the step: drawn in blocks for one environment, and for all rows at once for many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.generators import FoundGenerator
from rollout_cli.policies.base import PolicySource, Shortcut, Tree
from rollout_cli.policies.counted_draws import CountedDraws, multiples, stream_keys
from rollout_cli.policies.rows import count_rows, rows_of
from rollout_cli.seeding import draw_root_seed
from rollout_cli.spaces import unflatten

Array = npt.NDArray[Any]

BLOCK_STEPS = 64
BLOCK_BYTES = 16_384
"""A block has fewer steps where its rows are large."""

AHEAD_STEPS = 16
AHEAD_BYTES = 96 << 10
"""So many steps of all rows are drawn ahead at most."""


class RandomPolicy:
    """Draws actions from an action space.

    Args:
        action_space: Any space that has columns; it is only read, never drawn from.
    """

    __slots__ = (
        "_block",
        "_draws",
        "_is_leaf",
        "_next",
        "_prepared",
        "_rows",
        "_samples",
        "_seed",
        "_space",
        "shortcut",
    )

    row_wise = True
    hands_off = True
    """It leaves observations alone, and gives arrays that nobody else holds: neither need be copied."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self._space = action_space
        self._draws = CountedDraws(action_space)
        self._is_leaf = len(self._draws.leaves) == 1 and not self._draws.leaves[0].path
        steps = max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(1, self._draws.row_bytes)))
        self._block = np.arange(steps, dtype=np.uint64)
        self._samples: Iterator[Any] = iter(())
        self._rows: _Rows | None = None
        self._prepared: dict[int, list[Any]] = {}
        self.shortcut = Shortcut(self._act, _alone, self._prepare)
        self.seed(draw_root_seed())

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Return the next action and no info."""
        return self._act(observation), {}

    def _act(self, observation: Any) -> Any:  # noqa: ARG002
        for action in self._samples:
            return action
        self._samples = iter(self._next_block())
        return next(self._samples)

    def _next_block(self) -> list[Any]:
        keys, gammas = stream_keys(np.array([self._seed], np.uint64))
        columns = self._draws.columns(keys, gammas, self._block + np.uint64(self._next))
        self._next += len(self._block)
        rows = [rows_of(leaf.kind, column) for leaf, column in zip(self._draws.leaves, columns, strict=True)]
        return _assemble(self._space, iter(rows), len(self._block))

    def _prepare(self, seeds: Sequence[int]) -> None:
        """Draw the first block of each of these seeds in one pass, for `seed` to begin with.

        An episode that ends within its first block would otherwise spend as long on drawing it as on several steps.
        """
        if not self._is_leaf or self._draws.leaves[0].kind != "discrete":
            return  # Rows that are arrays are dear to keep, and their episodes are seldom short.
        keys, gammas = (np.repeat(words, len(self._block)) for words in stream_keys(np.array(seeds, np.uint64)))
        (column,) = self._draws.columns(keys, gammas, np.tile(self._block, len(seeds)))
        # What was prepared before and not used belongs to episodes that will not be run.
        self._prepared = dict(zip(seeds, column.reshape(len(seeds), -1).tolist(), strict=True))

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        """Return each row's next action, a tree of arrays (n, *shape), and no infos."""
        rows = self._rows
        if rows is None or type(observations) is not np.ndarray or len(observations) != rows.count:
            rows = self._sized_rows(count_rows(observations))
        columns = rows.draw(self._draws)
        return (columns[0] if self._is_leaf else unflatten(self._space, columns)), {}

    def seed(self, seed: int) -> None:
        """Begin the actions that belong to `seed`."""
        self._seed = seed
        samples = self._prepared.pop(seed, ())
        self._next = len(samples)
        self._samples = iter(samples)

    def seed_rows(self, mask: Array, seeds: Any) -> None:
        """Begin the actions that belong to `seeds[j]` in each row j where `mask`, bool (n,), is true."""
        begun = np.flatnonzero(mask)
        self.begin_rows(begun, np.asarray(seeds)[begun], len(mask))

    def begin_rows(self, begun: Array, seeds: Array, n_rows: int) -> None:
        """Do what `seed_rows` and `reset` do for some of `n_rows` rows (k,), from their seeds (k,)."""
        self._sized_rows(n_rows).begin(begun, seeds)

    def reset(self, do_resets: Array | None = None) -> None:
        """Drop what is left of the blocks that were drawn ahead."""
        if do_resets is not None:
            self._sized_rows(len(do_resets)).forget(do_resets, len(self._block))
            return
        if length_hint(self._samples) < len(self._block):  # Not where it was just seeded, with a block drawn ahead.
            self._samples = iter(())
        if self._rows is not None:
            self._rows.forget(np.ones(self._rows.count, bool), len(self._block))

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
        if self._rows is None or self._rows.count != n_rows:
            self._rows = _Rows(n_rows)
        return self._rows


def _alone(action: Any) -> tuple[Any, dict[str, Any]]:
    return action, {}


class _Rows:
    """Where each row of a batch stands.

    Steps are drawn ahead while no row begins anew: twice as many each time, for a call costs more than a step's draws.

    Attributes:
        count: How many rows.
    """

    __slots__ = ("_ahead", "_further", "_gammas", "_keys", "_n_ahead", "_steps", "_taken", "count")

    def __init__(self, n_rows: int) -> None:
        self.count = n_rows
        self._keys, self._gammas = stream_keys(draw_root_seed() + np.arange(n_rows))
        self._steps = np.zeros(n_rows, np.uint64)
        """The step that each row's first one ahead is of."""
        self._ahead: list[list[Array]] = []
        """The columns of each step."""
        self._further = multiples(self._gammas, 0)
        self._n_ahead = self._taken = 0

    def draw(self, draws: CountedDraws) -> list[Array]:
        """Return the next step's columns (n, *shape)."""
        if self._taken == self._n_ahead:
            self._draw_ahead(draws)
        at = self._taken
        self._taken = at + 1
        return self._ahead[at]

    def _draw_ahead(self, draws: CountedDraws) -> None:
        self._steps += np.uint64(self._n_ahead)
        most = min(AHEAD_STEPS, AHEAD_BYTES // max(1, self.count * draws.row_bytes))
        count = max(1, min(2 * self._n_ahead, most))
        # Never those of rows that began since: these are drawn one step ahead first, and then two.
        if len(self._further) != count:
            self._further = multiples(self._gammas, count)
        columns = draws.next_columns(self._keys, self._gammas, self._steps, self._further)
        by_step = [column.reshape(count, self.count, *column.shape[1:]) for column in columns]
        self._ahead = list(map(list, zip(*by_step, strict=True)))
        self._n_ahead, self._taken = count, 0

    def _stand(self) -> None:
        """Drop what was drawn ahead."""
        self._steps += np.uint64(self._taken)
        self._n_ahead = self._taken = 0

    def begin(self, begun: Array, seeds: Array) -> None:
        """Begin the actions that belong to `seeds` in some rows (k,)."""
        self._stand()
        self._keys[begun], self._gammas[begun] = stream_keys(seeds)
        self._steps[begun] = 0

    def forget(self, mask: Array, block: int) -> None:
        """Go on with the next block, as one row alone would, where `mask` is true; a row that was just seeded stays."""
        self._stand()
        begun = np.flatnonzero(mask)
        size = np.uint64(block)
        self._steps[begun] = (self._steps[begun] + size - np.uint64(1)) // size * size


def set_generator(generator: np.random.Generator, seed: int) -> None:
    """Put `generator` into the state that belongs to `seed`: a tenth of what building a seeded one costs."""
    FoundGenerator("actions", generator).seed(seed, 0)


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
