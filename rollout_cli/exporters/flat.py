"""Episodes whose spaces are made flat, for formats that hold one array of observations and one of actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.batch import Tree
from rollout_cli.episodes.spaces import Leaf, Space, map_tree, space_leaves, tree_leaves
from rollout_cli.errors import UsageError
from rollout_cli.exporters.source import EpisodeLike, EpisodeSource, MemoryEpisode

Array = npt.NDArray[Any]


class FlatSource:
    """The episodes of a source; Dict, Tuple and Text are vectors, as `gymnasium.spaces.flatten` makes them.

    The leaves of Dict and Tuple lie side by side. One of choices (Discrete, MultiDiscrete) has a number for
    each choice, 1 for the one that was made. A text is the places of its characters in its space's alphabet.
    All other spaces stay as they are.
    """

    def __init__(self, source: EpisodeSource) -> None:
        self._source, self.info = source, source.info
        spec = source.env_spec
        self.env_spec = replace(
            spec,
            observation_space=_flat_space(spec.observation_space),
            action_space=_flat_space(spec.action_space),
        )

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[EpisodeLike]:
        spec, flat = self._source.env_spec, self.env_spec
        observe = partial(_flat, spec.observation_space, flat.observation_space)
        for episode in self._source:
            last = map_tree(lambda value: np.asarray(value)[None], episode.last_observation)
            yield MemoryEpisode(
                id=episode.id,
                number=episode.number,
                seed=episode.seed,
                terminated=episode.terminated,
                truncated=episode.truncated,
                observations=observe(episode.observations),
                actions=_flat(spec.action_space, flat.action_space, episode.actions),
                rewards=episode.rewards,
                last_observation=map_tree(itemgetter(0), observe(last)),
                recorded=episode,
            )


def is_nested(space: Space) -> bool:
    """Return whether a space has more than one leaf, or names for them."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def _flat_space(space: Space) -> Space:
    return spaces.flatten_space(space) if _changes(space) else space


def _changes(space: Space) -> bool:
    return is_nested(space) or isinstance(space, spaces.Text)


def _flat(space: Space, flat_space: Space, tree: Tree) -> Tree:
    """Return values (T, *shape) of a space as those of its flat form."""
    if not _changes(space):
        return tree
    parts = map(_side_by_side, space_leaves(space), tree_leaves(tree))
    return np.concatenate(list(parts), axis=1, dtype=flat_space.dtype)


def _side_by_side(leaf: Leaf, values: Array) -> Array:
    """Return the values (T, *shape) of a leaf as (T, n)."""
    space: Any = leaf.space
    if leaf.kind == "text":
        try:
            return np.array([spaces.flatten(space, text) for text in values])
        except (KeyError, IndexError) as error:
            raise _outside(leaf) from error
    if leaf.kind not in {"discrete", "multi_discrete"}:
        return values.reshape(len(values), -1)
    counts = np.ravel(space.n if leaf.kind == "discrete" else space.nvec)
    chosen = (values - space.start).reshape(len(values), -1)
    if ((chosen < 0) | (chosen >= counts)).any():
        raise _outside(leaf)
    return np.concatenate([chosen[:, [at]] == np.arange(count) for at, count in enumerate(counts)], axis=1)


def _outside(leaf: Leaf) -> UsageError:
    where = f" {leaf.name!r}" if leaf.path else ""
    return UsageError(
        f"some value of the {type(leaf.space).__name__} space{where} is outside of it: it has no flat form",
        hint="leave these episodes out: rollout verify names the columns",
    )
