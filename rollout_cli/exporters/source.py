"""The input of exporters: the episodes of a dataset, optionally with flattened spaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from rollout_cli.dataset.reader import Episode
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree, derive_step_types
from rollout_cli.episodes.plain import Document
from rollout_cli.episodes.spaces import Array, Leaf, Space, SpaceRows, map_tree, space_leaves, tree_leaves
from rollout_cli.errors import UnsupportedSpaceError, UsageError

_MOST_CHARACTERS = 1 << 16
"""The maximum length of a Text space that can be flattened: the vector has one number per character."""


class EpisodeSource(Protocol):
    """Complete episodes with their origin: a `Dataset`, or another source derived from one."""

    @property
    def env_spec(self) -> EnvSpec: ...
    @property
    def info(self) -> Document: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[EpisodeLike]: ...


@dataclass(frozen=True, eq=False)
class MemoryEpisode:
    """One episode whose fields are in memory, with the attributes of a dataset's `Episode`."""

    number: int
    seed: int
    terminated: bool
    truncated: bool
    observations: Tree
    actions: Tree
    rewards: Array
    last_observation: Tree
    recorded: EpisodeBatch | EpisodeLike
    source: int = 0

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def batch(self) -> EpisodeBatch:
        """The recorded episode as an `EpisodeBatch`."""
        return self.recorded if isinstance(self.recorded, EpisodeBatch) else self.recorded.batch

    @property
    def episode_infos(self) -> Mapping[str, Array]:
        """The infos of `env.reset` by key, arrays (1, ...)."""
        return self.recorded.episode_infos


EpisodeLike = Episode | MemoryEpisode


def with_last(values: Array, last: Any) -> Array:
    """Return `values` (T, *shape) followed by `last`, (T + 1, *shape)."""
    return np.concatenate([values, np.asarray(last, values.dtype)[None]])


def row_bytes(spec: EnvSpec) -> int:
    """Return the bytes of an observation and an action, without strings."""
    return sum(leaf.row_bytes for _, leaf in leaves_of(spec))


def leaves_of(spec: EnvSpec) -> Iterator[tuple[str, Leaf]]:
    """Yield the leaves of both spaces, each with its field: `observations` or `actions`."""
    for field, space in (("observations", spec.observation_space), ("actions", spec.action_space)):
        for leaf in space_leaves(space):
            yield field, leaf


def joined_episodes(spec: EnvSpec, episodes: Sequence[EpisodeLike]) -> EpisodeBatch:
    """Return episodes as one batch, without their infos."""

    def values(name: str) -> list[Any]:
        return [getattr(episode, name) for episode in episodes]

    def joined(name: str) -> Tree:
        return map_tree(lambda *parts: np.concatenate(parts), *values(name))

    lengths = np.fromiter(map(len, episodes), np.int64)
    terminated = np.array(values("terminated"))
    truncated = np.array(values("truncated"))
    return EpisodeBatch(
        env_spec=spec,
        episode_infos={},
        observations=joined("observations"),
        last_observations=SpaceRows(spec.observation_space).stack(values("last_observation")),
        actions=joined("actions"),
        rewards=joined("rewards"),
        env_infos={},
        agent_infos={},
        step_types=derive_step_types(lengths, terminated, truncated),
        lengths=lengths,
        terminated=terminated,
        truncated=truncated,
        numbers=np.array(values("number")),
        seeds=np.array(values("seed")),
    )


class FlatSource:
    """The episodes of a source with Dict, Tuple and Text spaces as vectors, like `gymnasium.spaces.flatten`.

    The leaves of Dict and Tuple are concatenated. Discrete and MultiDiscrete leaves are one-hot. A string becomes
    the indices of its characters in the alphabet of its space. All other spaces are unchanged.
    """

    def __init__(self, source: EpisodeSource) -> None:
        self._source = source
        self.info = source.info
        spec = source.env_spec
        self.env_spec = replace(
            spec,
            observation_space=_flat_space(spec.observation_space),
            action_space=_flat_space(spec.action_space),
        )

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[EpisodeLike]:
        spec = self._source.env_spec
        observe = partial(_flat, spec.observation_space, self.env_spec.observation_space)
        for episode in self._source:
            last = map_tree(lambda value: np.asarray(value)[None], episode.last_observation)
            yield MemoryEpisode(
                number=episode.number,
                seed=episode.seed,
                terminated=episode.terminated,
                truncated=episode.truncated,
                observations=observe(episode.observations),
                actions=_flat(spec.action_space, self.env_spec.action_space, episode.actions),
                rewards=episode.rewards,
                last_observation=map_tree(itemgetter(0), observe(last)),
                recorded=episode,
                source=episode.source,
            )


def is_nested(space: Space) -> bool:
    """Return True if a space is a Dict or a Tuple."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def _flat_space(space: Space) -> Space:
    for leaf in space_leaves(space):
        if leaf.kind == "sequence":
            raise UnsupportedSpaceError(
                f"cannot flatten a Sequence space, such as {leaf.name!r}",
                code="space-not-flat",
                hint="export to hf, without flatten",
            )
        if isinstance(leaf.space, spaces.Text) and leaf.space.max_length > _MOST_CHARACTERS:
            raise UnsupportedSpaceError(
                f"cannot flatten strings of up to {leaf.space.max_length:,} characters, such as {leaf.name!r}",
                code="space-not-flat",
                hint="wrap the environment to remove them, or export to minari without flatten",
            )
    return spaces.flatten_space(space) if _is_flattened(space) else space


def _is_flattened(space: Space) -> bool:
    return is_nested(space) or isinstance(space, spaces.Text)


def _flat(space: Space, flat_space: Space, tree: Tree) -> Tree:
    """Return values (T, *shape) of a space, flattened."""
    if not _is_flattened(space):
        return tree
    parts = map(_as_columns, space_leaves(space), tree_leaves(tree))
    return np.concatenate(list(parts), axis=1, dtype=flat_space.dtype)


def _as_columns(leaf: Leaf, values: Array) -> Array:
    """Return the values (T, *shape) of a leaf as columns, (T, n)."""
    space: Any = leaf.space
    if leaf.kind == "text":
        try:
            return np.array([spaces.flatten(space, string) for string in values])
        except (KeyError, IndexError) as error:
            raise _outside_space(leaf) from error
    if leaf.kind not in {"discrete", "multi_discrete"}:
        return values.reshape(len(values), -1)
    counts = np.ravel(space.n if leaf.kind == "discrete" else space.nvec)
    chosen = (values - space.start).reshape(len(values), -1)
    if ((chosen < 0) | (chosen >= counts)).any():
        raise _outside_space(leaf)
    return np.concatenate(
        [chosen[:, [index]] == np.arange(count) for index, count in enumerate(counts)], axis=1
    )


def _outside_space(leaf: Leaf) -> UsageError:
    part = f" {leaf.name!r}" if leaf.path else ""
    return UsageError(
        f"cannot flatten a value outside the {type(leaf.space).__name__} space{part}",
        code="value-outside-space",
        hint="leave these episodes out: rollout verify lists the columns",
    )
