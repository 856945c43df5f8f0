"""Complete episodes in the public API: garage's `EpisodeBatch`, with gymnasium's two flags for the end.

Observations and actions of Dict and Tuple spaces are trees (dicts and tuples) of arrays.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.chunk import concatenate as concatenate_chunks
from rollout_cli.episodes.infos import INFO_GROUPS, InfoArrays, all_masked, concatenate_arrays
from rollout_cli.episodes.notebook import html_table, shape_of
from rollout_cli.episodes.spaces import (
    Array,
    DType,
    Shape,
    Space,
    SpaceRows,
    Tree,
    are_alike,
    map_tree,
    space_leaves,
    unflatten,
)

__all__ = ["EnvSpec", "EpisodeBatch", "StepType", "TrajectoryBatch", "Tree", "derive_step_types"]


class StepType(enum.IntEnum):
    """The position of a step in its episode; stored as uint8.

    `FIRST` is 0, `MID` 1, `TERMINAL` 2 (the last step of a terminated episode), and `TIMEOUT` 3 (the last step
    of a truncated episode that is not terminated). TERMINAL and TIMEOUT take precedence over FIRST.

    Example:
        >>> batch = rollout_cli.load("data").to_episode_batch()
        >>> int((batch.step_types == rollout_cli.StepType.TERMINAL).sum())
        3
    """

    FIRST = 0
    MID = 1
    TERMINAL = 2
    TIMEOUT = 3


def derive_step_types(lengths: Array, terminated: Array, truncated: Array) -> Array:
    """Return the step types of flat episodes, uint8 (T,).

    TERMINAL takes precedence over TIMEOUT, and both take precedence over FIRST.
    """
    ends = np.cumsum(lengths)
    step_types = np.full(int(lengths.sum()), StepType.MID, np.uint8)
    nonempty = lengths > 0
    step_types[(ends - lengths)[nonempty]] = StepType.FIRST
    step_types[ends[nonempty & truncated] - 1] = StepType.TIMEOUT
    step_types[ends[nonempty & terminated] - 1] = StepType.TERMINAL
    return step_types


def at_ends(lengths: Array, flags: Any) -> Array:
    """Return flags of flat episodes, bool (N,), as flags of rows, bool (T,), at the last row of each episode."""
    row_flags = np.zeros(int(lengths.sum()), np.bool_)
    row_flags[np.cumsum(lengths) - 1] = flags
    return row_flags


def following(values: Array, last: Array, ends: Any) -> Array:
    """Return the next value of each row of flat episodes: the next row, or `last` for the rows `ends`."""
    next_values = np.roll(values, -1, axis=0)
    next_values[ends] = last
    return next_values


@dataclass(frozen=True, slots=True)
class EnvSpec:  # noqa: PLW1641 - spaces have no hash
    """The spaces of an environment and its time limit.

    Attributes:
        observation_space, action_space: The gymnasium spaces.
        max_episode_length: The number of steps after which an episode is truncated; None for no limit.

    Example:
        >>> spec = rollout_cli.load("data").env_spec
        >>> spec.observation_space.shape, spec.action_space, spec.max_episode_length
        ((4,), Discrete(2), 500)
    """

    observation_space: Space
    action_space: Space
    max_episode_length: int | None = None

    def __eq__(self, other: object) -> bool:
        """Compare spaces by their stored form: a custom space may not be equal to its copy."""
        return (
            isinstance(other, EnvSpec)
            and self.max_episode_length == other.max_episode_length
            and are_alike(self.observation_space, other.observation_space)
            and are_alike(self.action_space, other.action_space)
        )

    def difference(self, other: EnvSpec) -> str:
        """Describe the first difference from a spec that is not equal, with both values in one line."""
        name = "time limit"
        values: list[object] = [self.max_episode_length, other.max_episode_length]
        for space in ("observation_space", "action_space"):
            if not are_alike(getattr(self, space), getattr(other, space)):
                name = space
                values = [getattr(self, space), getattr(other, space)]
                break
        found, expected = (" ".join(repr(value).split()) for value in values)
        return f"{name} {found:.200}, expected {expected:.200}"


_STEP_FIELDS = ("observations", "actions", "rewards", "step_types", "env_infos", "agent_infos")
_EPISODE_ARRAYS = ("lengths", "terminated", "truncated", "numbers", "seeds")
_EPISODE_FIELDS = ("last_observations", *_EPISODE_ARRAYS, "episode_infos")
_DTYPES = {
    "rewards": np.float64,
    "step_types": np.uint8,
    "terminated": np.bool_,
    "truncated": np.bool_,
    **dict.fromkeys(("lengths", "numbers", "seeds"), np.int64),
}

_SINGULARS = {name: name.removesuffix("s") for name in ("last_observations", *_EPISODE_ARRAYS)}
_LIST_KEYS = {*_STEP_FIELDS, "episode_infos", *_SINGULARS.values()}
"""The keys of an episode in `to_list`: a field with one value per episode has a singular name."""


def _padded(name: str, description: str) -> property:
    """Return a property with a field padded to (N, longest episode, …); padding is zero, masked, or None."""

    def padded(batch: EpisodeBatch) -> Tree:
        valids = batch.valids

        def pad(leaf: Array) -> Array:
            rows = np.zeros((*valids.shape, *leaf.shape[1:]), leaf.dtype)
            if isinstance(leaf, np.ma.MaskedArray):
                rows = all_masked(rows.shape, leaf.dtype)
            elif leaf.dtype == object:
                rows[:] = "" if isinstance(leaf[0], str) and not name.endswith("infos") else None
            rows[valids] = leaf
            return rows

        return map_tree(pad, getattr(batch, name))

    return property(padded, doc=f"Return {description}.")


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeBatch:
    """N episodes with T steps in total, stored flat: the rows of each episode are contiguous.

    Attributes:
        env_spec: Spaces and time limit of the environment.
        observations: Tree of arrays (T, *shape), the observation before each action.
        last_observations: Tree of arrays (N, *shape), the observation after the last step of each episode.
        actions: Tree of arrays (T, *shape).
        rewards: float64 (T,).
        env_infos, agent_infos: By dotted key, arrays of length T, masked if some steps lack the key.
        episode_infos: The infos of `env.reset`, by dotted key, arrays of length N.
        step_types: uint8 (T,), see `StepType`.
        lengths: int64 (N,), each at least 1.
        terminated, truncated: bool (N,), the flags of the last step; both may be true.
        numbers: Episode numbers, int64 (N,).
        seeds: The seeds passed to `env.reset`, int64 (N,).

    Raises:
        ValueError: On construction, if a field has the wrong type, shape or values.

    Example:
        >>> batch = rollout_cli.load("data").to_episode_batch()
        >>> batch.lengths.tolist(), batch.observations.shape, batch.padded_rewards.shape
        ([37, 18, 12], (67, 4), (3, 37))
        >>> [len(episode.rewards) for episode in batch.split()]
        [37, 18, 12]
    """

    env_spec: EnvSpec
    episode_infos: InfoArrays
    observations: Tree
    last_observations: Tree
    actions: Tree
    rewards: Array
    env_infos: InfoArrays
    agent_infos: InfoArrays
    step_types: Array
    lengths: Array
    terminated: Array
    truncated: Array
    numbers: Array
    seeds: Array

    def __post_init__(self) -> None:
        _check_field("lengths", self.lengths, np.size(self.lengths), self.env_spec)
        if len(self.lengths) == 0 or self.lengths.min() < 1:
            raise ValueError(f"lengths is {self.lengths}, expected at least one episode of at least one step")
        for names, n_rows in ((_STEP_FIELDS, int(self.lengths.sum())), (_EPISODE_FIELDS, len(self.lengths))):
            for name in names:
                _check_field(name, getattr(self, name), n_rows, self.env_spec)
        expected = derive_step_types(self.lengths, self.terminated, self.truncated)
        wrong = np.flatnonzero(self.step_types != expected)
        if len(wrong):
            row = wrong[0]
            raise ValueError(f"step_types[{row}] is {self.step_types[row]}, expected {expected[row]}")

    def __repr__(self) -> str:
        counts = f"{len(self.lengths):,} episodes, {len(self.rewards):,} steps"
        return f"<EpisodeBatch: {counts}, mean return {self.returns.mean():.6g}>"

    def _repr_html_(self) -> str:
        return html_table(
            "EpisodeBatch",
            {
                "episodes": f"{len(self.lengths):,}",
                "steps": f"{len(self.rewards):,}",
                "mean return": f"{self.returns.mean():.6g}",
                "mean length": f"{self.lengths.mean():.6g}",
                "observations": shape_of(self.observations),
                "actions": shape_of(self.actions),
                "env_infos": ", ".join(self.env_infos),
                "agent_infos": ", ".join(self.agent_infos),
            },
        )

    @classmethod
    def _unchecked(cls, **fields: Any) -> EpisodeBatch:
        """Build a batch from fields that are known to be valid."""
        batch = object.__new__(cls)
        batch.__dict__.update(fields)
        return batch

    @classmethod
    def from_chunks(cls, env_spec: EnvSpec, chunks: Sequence[Chunk]) -> EpisodeBatch:
        """Build a batch from at least one chunk."""
        chunk = concatenate_chunks(chunks)
        infos = {f"{group}s": getattr(chunk, f"{group}s").to_arrays() for group in INFO_GROUPS}
        return cls(
            env_spec=env_spec,
            observations=unflatten(env_spec.observation_space, chunk.observations),
            last_observations=unflatten(env_spec.observation_space, chunk.last_observations),
            actions=unflatten(env_spec.action_space, chunk.actions),
            rewards=chunk.rewards,
            step_types=derive_step_types(chunk.lengths, chunk.terminated, chunk.truncated),
            **infos,
            **{name: getattr(chunk, name) for name in _EPISODE_ARRAYS},
        )

    @classmethod
    def concatenate(cls, *batches: EpisodeBatch) -> EpisodeBatch:
        """Return one batch with the episodes of all `batches`, in order.

        Raises:
            ValueError: If `batches` is empty, or the spaces differ.
        """
        if not batches:
            raise ValueError("no batches to concatenate, expected at least one")
        spec = batches[0].env_spec
        for batch in batches:
            if replace(batch.env_spec, max_episode_length=spec.max_episode_length) != spec:
                raise ValueError(f"the spaces differ: {spec} and {batch.env_spec}")
        fields = {}
        for name in (*_STEP_FIELDS, *_EPISODE_FIELDS):
            parts = [getattr(batch, name) for batch in batches]
            if name.endswith("infos"):
                sized = "lengths" if name == "episode_infos" else "rewards"
                fields[name] = concatenate_arrays(parts, [len(getattr(batch, sized)) for batch in batches])
            else:
                fields[name] = map_tree(lambda *leaves: np.concatenate(leaves), *parts)
        return cls._unchecked(env_spec=spec, **fields)

    @classmethod
    def from_list(cls, env_spec: EnvSpec, episodes: Sequence[Mapping[str, Any]]) -> EpisodeBatch:
        """Build a batch from the result of `to_list`, one dictionary per episode.

        Raises:
            ValueError: If `episodes` is empty, or an episode has the wrong keys or invalid fields.
        """
        rows = SpaceRows(env_spec.observation_space)
        batches = []
        for episode in episodes:
            if differing_keys := sorted(episode.keys() ^ _LIST_KEYS):
                raise ValueError(
                    f"an episode has the keys {sorted(episode)}, expected {sorted(_LIST_KEYS)}: "
                    f"missing or unknown: {differing_keys}"
                )
            fields = {name: episode[_SINGULARS.get(name, name)] for name in (*_STEP_FIELDS, *_EPISODE_FIELDS)}
            fields |= {name: map_tree(_as_row, fields[name]) for name in _SINGULARS}
            if any(leaf.kind == "sequence" for leaf in rows.leaves):
                fields["last_observations"] = rows.stack([episode["last_observation"]])
            batches.append(cls(env_spec=env_spec, **fields))
        return cls.concatenate(*batches)

    def to_list(self) -> list[dict[str, Any]]:
        """Return one dictionary per episode, with its rows as trees and arrays, and its other values."""
        episodes = []
        for episode in self.split():
            fields = {name: getattr(episode, name) for name in (*_STEP_FIELDS, "episode_infos")}
            fields["last_observation"] = map_tree(itemgetter(0), episode.last_observations)
            fields |= {_SINGULARS[name]: getattr(episode, name)[0].item() for name in _EPISODE_ARRAYS}
            episodes.append(fields)
        return episodes

    def split(self) -> list[EpisodeBatch]:
        """Return one batch per episode; arrays are views."""
        episodes = []
        for index, (start, stop) in enumerate(pairwise([0, *np.cumsum(self.lengths).tolist()])):
            parts = dict.fromkeys(_STEP_FIELDS, slice(start, stop))
            parts |= dict.fromkeys(_EPISODE_FIELDS, slice(index, index + 1))
            fields = {name: map_tree(itemgetter(part), getattr(self, name)) for name, part in parts.items()}
            episodes.append(self._unchecked(env_spec=self.env_spec, **fields))
        return episodes

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.lengths)

    @property
    def returns(self) -> Array:
        """The sum of each episode's rewards, float64 (N,)."""
        return np.asarray(np.add.reduceat(self.rewards, np.cumsum(self.lengths) - self.lengths))

    @property
    def next_observations(self) -> Tree:
        """The observation after each step, tree of arrays (T, *shape)."""
        follow = partial(following, ends=np.cumsum(self.lengths) - 1)
        return map_tree(follow, self.observations, self.last_observations)

    @property
    def terminals(self) -> Array:
        """True for the last step of a terminated episode, bool (T,)."""
        return np.asarray(self.step_types == StepType.TERMINAL)

    @property
    def timeouts(self) -> Array:
        """True for the last step of an episode that is truncated and not terminated, bool (T,).

        The last step of an episode with both flags is only in `terminals`, because d3rlpy and the D4RL loaders
        reject steps with both.
        """
        return np.asarray(self.step_types == StepType.TIMEOUT)

    @property
    def valids(self) -> Array:
        """True for the steps in padded arrays, False for padding, bool (N, longest episode)."""
        return np.asarray(np.arange(self.lengths.max()) < self.lengths[:, None])

    padded_observations = _padded(
        "observations",
        "observations padded with zeros or empty strings, tree of arrays (N, longest episode, *shape)",
    )
    padded_next_observations = _padded("next_observations", "next observations, padded like observations")
    padded_actions = _padded("actions", "actions, padded like observations")
    padded_rewards = _padded("rewards", "rewards padded with zeros, float64 (N, longest episode)")
    padded_step_types = _padded(
        "step_types",
        "step types padded with zeros, uint8 (N, longest episode); `valids` distinguishes padding from FIRST",
    )
    padded_env_infos = _padded("env_infos", "env infos, padded with masked values, or None in object arrays")
    padded_agent_infos = _padded("agent_infos", "agent infos, padded like env infos")

    @property
    def observations_list(self) -> list[Tree]:
        """The observations of each episode, a tree of arrays (length, *shape)."""
        return [episode.observations for episode in self.split()]

    @property
    def actions_list(self) -> list[Tree]:
        """The actions of each episode, a tree of arrays (length, *shape)."""
        return [episode.actions for episode in self.split()]


TrajectoryBatch = EpisodeBatch
"""The older name of `EpisodeBatch` in garage."""


def _as_row(value: Any) -> Array:
    return np.asarray(value, dtype=object if isinstance(value, str) else None)[None]


def _check_field(name: str, value: Any, n_rows: int, env_spec: EnvSpec) -> None:
    """Raise ValueError unless a field has the right types and shapes."""
    form = map_tree(_form, value)
    if name.endswith("infos"):
        expected: Any = f"a dict of arrays of length {n_rows}"
        fits = isinstance(value, dict) and all(
            isinstance(values, np.ndarray) and values.shape[:1] == (n_rows,) for values in value.values()
        )
    elif name in _DTYPES:
        expected = _array_form(np.dtype(_DTYPES[name]), (n_rows,))
        fits = form == expected
    else:
        space = env_spec.action_space if name == "actions" else env_spec.observation_space
        forms = (_array_form(leaf.dtype, (n_rows, *leaf.shape)) for leaf in space_leaves(space))
        expected = unflatten(space, forms)
        fits = form == expected
    if not fits:
        raise ValueError(f"{name} is {form}, expected {expected}")


def _form(leaf: Any) -> str:
    """Return the type and shape of a leaf, for messages."""
    if not isinstance(leaf, np.ndarray):
        return f"a {type(leaf).__name__}"
    if leaf.dtype == object and not all(isinstance(value, str | np.ndarray) for value in leaf.flat):
        return f"object of shape {leaf.shape}"
    return _array_form(leaf.dtype, leaf.shape)


def _array_form(dtype: DType, shape: Shape) -> str:
    return f"{'str' if dtype.kind == 'O' else dtype} of shape {shape}"
