"""One episode as arrays: their spaces, if none are given, and the episode as a chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable, tabulate
from rollout_cli.episodes.spaces import Array, Leaf, SpaceRows, tree_leaves
from rollout_cli.errors import ArgumentError
from rollout_cli.sources.loading import first_line

Infos = Sequence[Mapping[Any, Any]] | Mapping[str, Any]
"""One dictionary a step, or by key an array with a value a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeArrays:
    """An episode of T steps; trees of arrays are an array, or dicts and tuples of trees."""

    observations: Any  # Tree of arrays (T + 1, *shape); the last one follows the last action.
    actions: Any  # Tree of arrays (T, *shape).
    rewards: Any  # Real numbers (T,); None if they are unknown, which is stored as nan.
    terminated: bool
    truncated: bool
    env_infos: Infos = ()
    agent_infos: Infos = ()
    episode_info: Mapping[Any, Any] | None = None
    seed: int | None = None
    wall_time: float = 0.0


def inferred_space(name: str, tree: Any) -> spaces.Space[Any]:
    """Return the space of a tree of arrays (n, *shape): a Box for each array, unbounded but for uint8.

    Raises:
        ArgumentError: If an array has no dtype of numbers, or may hold a choice among n: the data do not say n.
    """
    if isinstance(tree, Mapping):
        return spaces.Dict({key: inferred_space(f"{name}[{key!r}]", tree[key]) for key in tree})
    if isinstance(tree, tuple):
        return spaces.Tuple([inferred_space(f"{name}[{place}]", part) for place, part in enumerate(tree)])
    array = _array(0, name, tree)
    if array.dtype.kind not in "fui" or (array.dtype.kind in "ui" and array.ndim == 1):
        raise ArgumentError(
            f"the space of {name} cannot be inferred from an array of dtype {array.dtype} and shape {array.shape}",
            code="space-unknown",
            hint="pass the space, for example action_space=gymnasium.spaces.Discrete(4)",
        )
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, array.shape[1:], array.dtype.type)
    limits = np.iinfo(array.dtype)
    return spaces.Box(limits.min, limits.max, array.shape[1:], array.dtype.type)


def chunk_of(number: int, episode: EpisodeArrays, observations: SpaceRows, actions: SpaceRows) -> Chunk:
    """Return episode `number` as a chunk.

    Raises:
        ArgumentError: If an array has another shape or type than its space, or the lengths disagree.
    """
    rewards = _rewards(number, episode)
    for name in ("terminated", "truncated"):
        if not isinstance(getattr(episode, name), bool | np.bool_):
            raise _wrong(number, name, repr(getattr(episode, name)), "a bool: how the last step ended")
    if not (episode.terminated or episode.truncated):
        raise _wrong(number, "terminated", "False, and so is truncated", "True for at least one")
    length = len(rewards)
    seen = _columns(number, "observations", observations, episode.observations, length + 1)
    return Chunk(
        numbers=np.array([number], np.int64),
        seeds=np.array([_seed(number, episode.seed)], np.int64),
        lengths=np.array([length], np.int64),
        terminated=np.array([bool(episode.terminated)]),
        truncated=np.array([bool(episode.truncated)]),
        workers=np.zeros(1, np.int32),
        wall_times=np.array([float(episode.wall_time)]),
        observations=tuple(column[:-1] for column in seen),
        actions=_columns(number, "actions", actions, episode.actions, length),
        rewards=rewards.astype(np.float64),
        last_observations=tuple(column[-1:] for column in seen),
        env_infos=_table(number, "env_infos", episode.env_infos, length),
        agent_infos=_table(number, "agent_infos", episode.agent_infos, length),
        episode_infos=tabulate([episode.episode_info or {}]),
    )


def _rewards(number: int, episode: EpisodeArrays) -> Array:
    """Return the rewards, (T,); unknown ones are nan, and nan is not a reward."""
    if episode.rewards is None:
        return np.full(len(tree_leaves(episode.actions)[0]), np.nan)
    rewards = _array(number, "rewards", episode.rewards)
    if rewards.ndim != 1 or len(rewards) == 0 or rewards.dtype.kind not in "fiub":
        raise _wrong(number, "rewards", rewards, "real numbers of shape (T,) with T > 0")
    if np.isnan(rewards.astype(np.float64)).any():
        raise _wrong(number, "rewards", "an array with nan", "real numbers")
    return rewards


def _columns(number: int, name: str, rows: SpaceRows, tree: Any, n_rows: int) -> tuple[Array, ...]:
    """Return a column for each leaf of the space, as copies: the caller may change its arrays later."""
    try:
        parts = rows.columns(tree)
    except (KeyError, IndexError, TypeError) as error:
        raise _wrong(number, name, f"a {type(tree).__name__}", "the structure of its space") from error
    return tuple(
        _column(number, f"{name}.{leaf.name}".rstrip("."), leaf, part, n_rows)
        for leaf, part in zip(rows.leaves, parts, strict=True)
    )


def _column(number: int, name: str, leaf: Leaf, values: Any, n_rows: int) -> Array:
    if leaf.dtype == object:
        column = np.fromiter(_objects(leaf, values), object)  # Not `np.array`, which joins equal shapes.
        if len(column) != n_rows:
            raise _wrong(number, name, f"{len(column)} values", f"{n_rows}")
        return column
    given = _array(number, name, values)
    expected = f"{leaf.dtype} of shape {(n_rows, *leaf.shape)}"
    if given.shape != (n_rows, *leaf.shape) or not _fits(given, leaf):
        raise _wrong(number, name, given, expected)
    column = given.astype(leaf.dtype, order="C", copy=True)
    if leaf.dtype.kind != "f" and not np.array_equal(column, given):
        raise _wrong(number, name, "values that change as " + str(leaf.dtype), expected)
    return column


def _array(number: int, name: str, values: Any) -> Array:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise _wrong(number, name, f"a {type(values).__name__} ({first_line(error)})", "an array") from error


def _fits(given: Array, leaf: Leaf) -> bool:
    return np.can_cast(given.dtype, leaf.dtype, "same_kind") or (
        given.dtype.kind in "biu" and leaf.dtype.kind in "iu"
    )


def _objects(leaf: Leaf, values: Any) -> list[Any]:
    """Return strings, or the arrays (k, *shape) of a Sequence."""
    if leaf.kind != "sequence":
        return [str(value) for value in values]
    element = leaf.element
    return [np.array(value, element.dtype).reshape(-1, *element.shape) for value in values]


def _table(number: int, name: str, infos: Infos, length: int) -> InfoTable:
    if isinstance(infos, Mapping):
        by_key = infos
        for key, values in by_key.items():
            if len(values) != length:
                raise _wrong(number, f"{name}[{key!r}]", f"{len(values)} values", f"{length}, one a step")
        infos = []
        for step in range(length):
            infos.append({key: values[step] for key, values in by_key.items()})
    if len(infos) not in {0, length}:
        raise _wrong(number, name, f"{len(infos)} dictionaries", f"{length}, one a step")
    return tabulate(infos or [{}] * length)


def _seed(number: int, seed: int | None) -> int:
    if seed is None:
        return -1
    if not 0 <= seed < 1 << 63:
        raise _wrong(number, "seed", str(seed), "None, or an int from 0 to 2**63 - 1")
    return int(seed)


def _wrong(number: int, name: str, found: object, expected: str) -> ArgumentError:
    what = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else found
    return ArgumentError(f"{name} of episode {number} is {what}, expected {expected}", code="episode-array")
