"""Episodes whose nested spaces are made flat, for formats that hold one array of observations and of actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree
from rollout_cli.episodes.spaces import Leaf, Space, space_leaves, tree_leaves
from rollout_cli.exporters.source import EpisodeLike, EpisodeSource

Array = npt.NDArray[Any]


class FlatSource:
    """The episodes of a source; Dict and Tuple spaces are vectors, as `gymnasium.spaces.flatten` makes them.

    Their leaves lie side by side, and one of choices (Discrete, MultiDiscrete) has a number for each choice,
    1 for the one that was made. All other spaces stay as they are.
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
        return (_FlatEpisode(episode, self._source.env_spec, self.env_spec) for episode in self._source)


@dataclass(frozen=True, eq=False)
class _FlatEpisode:
    episode: EpisodeLike
    spec: EnvSpec
    flat_spec: EnvSpec

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def id(self) -> int:
        return self.episode.id

    @property
    def number(self) -> int:
        return self.episode.number

    @property
    def seed(self) -> int:
        return self.episode.seed

    @property
    def terminated(self) -> bool:
        return self.episode.terminated

    @property
    def truncated(self) -> bool:
        return self.episode.truncated

    @property
    def rewards(self) -> Array:
        return self.episode.rewards

    @property
    def observations(self) -> Tree:
        return _flat(self.spec.observation_space, self.flat_spec.observation_space, self.episode.observations)

    @property
    def actions(self) -> Tree:
        return _flat(self.spec.action_space, self.flat_spec.action_space, self.episode.actions)

    @property
    def last_observation(self) -> Tree:
        return self.batch.last_observations[0]

    @property
    def batch(self) -> EpisodeBatch:
        batch, observed = self.episode.batch, self.spec.observation_space
        return replace(
            batch,
            env_spec=self.flat_spec,
            observations=self.observations,
            actions=self.actions,
            last_observations=_flat(observed, self.flat_spec.observation_space, batch.last_observations),
        )


def is_nested(space: Space) -> bool:
    """Return whether a space has more than one leaf, or names for them."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def _flat_space(space: Space) -> Space:
    return spaces.flatten_space(space) if is_nested(space) else space


def _flat(space: Space, flat_space: Space, tree: Tree) -> Tree:
    """Return values (T, *shape) of a space as those of its flat form."""
    if not is_nested(space):
        return tree
    parts = map(_side_by_side, space_leaves(space), tree_leaves(tree))
    return np.concatenate(list(parts), axis=1, dtype=flat_space.dtype)


def _side_by_side(leaf: Leaf, values: Array) -> Array:
    """Return the values (T, *shape) of a leaf as (T, n)."""
    if leaf.kind not in {"discrete", "multi_discrete"}:
        return values.reshape(len(values), -1)
    space: Any = leaf.space
    counts = np.ravel(space.n if leaf.kind == "discrete" else space.nvec)
    chosen = (values - space.start).reshape(len(values), -1)
    return np.concatenate(
        [np.eye(count, dtype=np.int8)[chosen[:, at]] for at, count in enumerate(counts)], axis=1
    )
