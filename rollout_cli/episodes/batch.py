"""Whole episodes as the public API gives them: garage's `EpisodeBatch`, for gymnasium's two ways of ending.

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
    """Where in its episode a step stands; stored as uint8."""

    FIRST = 0
    MID = 1
    TERMINAL = 2
    TIMEOUT = 3


def derive_step_types(lengths: Array, terminated: Array, truncated: Array) -> Array:
    """Return the step types of flat episodes, uint8 (T,): TERMINAL wins over TIMEOUT, an end over FIRST."""
    ends = np.cumsum(lengths)
    step_types = np.full(int(lengths.sum()), StepType.MID, np.uint8)
    nonempty = lengths > 0
    step_types[(ends - lengths)[nonempty]] = StepType.FIRST
    step_types[ends[nonempty & truncated] - 1] = StepType.TIMEOUT
    step_types[ends[nonempty & terminated] - 1] = StepType.TERMINAL
    return step_types


def at_ends(lengths: Array, flags: Any) -> Array:
    """Return flags of flat episodes, bool (N,), as flags of their rows, bool (T,), set at the last ones."""
    row_flags = np.zeros(int(lengths.sum()), np.bool_)
    row_flags[np.cumsum(lengths) - 1] = flags
    return row_flags


def following(values: Array, last: Array, ends: Any) -> Array:
    """Return what followed each row of flat episodes: the row after it, and `last` behind the rows `ends`."""
    next_values = np.roll(values, -1, axis=0)
    next_values[ends] = last
    return next_values


@dataclass(frozen=True, slots=True)
class EnvSpec:  # noqa: PLW1641 - spaces have no hash
    """The spaces of an environment, and the steps after which its episodes are truncated (None: no limit)."""

    observation_space: Space
    action_space: Space
    max_episode_length: int | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether they are the same to a dataset: a space need not be equal to a copy of itself."""
        return (
            isinstance(other, EnvSpec)
            and self.max_episode_length == other.max_episode_length
            and are_alike(self.observation_space, other.observation_space)
            and are_alike(self.action_space, other.action_space)
        )


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
"""The keys of an episode in a list: a field of one value has a singular there."""


def _padded(name: str, description: str) -> property:
    """Return the property of a field as rows of episodes; padding is zero, masked, or None among objects."""

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
    """N episodes in T rows, flat: T is the sum of `lengths`, and every episode's rows follow one another.

    Attributes:
        env_spec: Spaces and limit of the environment.
        observations: Tree of arrays (T, *shape): what the policy saw at each step.
        last_observations: Tree of arrays (N, *shape): what followed each episode's last step.
        actions: Tree of arrays (T, *shape).
        rewards: float64 (T,).
        env_infos, agent_infos: By dotted key, one array of length T each (masked where some steps lack the
            key).
        episode_infos: The same, of `env.reset`, length N.
        step_types: uint8 (T,), see `StepType`.
        lengths: int64 (N,), each at least 1.
        terminated, truncated: bool (N,): whether it ended by its own rules, and whether it was cut off; or
            both.
        numbers: Episode numbers, int64 (N,).
        seeds: The seeds given to `env.reset`, int64 (N,).

    Raises:
        ValueError: On construction, where fields do not fit each other; it names the field and prints both
            sides.
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
            raise ValueError(
                f"lengths is {self.lengths}: a batch has one episode at least, and each has one step"
            )
        for names, n_rows in ((_STEP_FIELDS, int(self.lengths.sum())), (_EPISODE_FIELDS, len(self.lengths))):
            for name in names:
                _check_field(name, getattr(self, name), n_rows, self.env_spec)
        expected = derive_step_types(self.lengths, self.terminated, self.truncated)
        wrong = np.flatnonzero(self.step_types != expected)
        if len(wrong):
            row = wrong[0]
            raise ValueError(
                f"step_types[{row}] is {self.step_types[row]}, but lengths and flags give {expected[row]}"
            )

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
        """Build a batch of checked fields."""
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
        """Return the episodes of `batches` after one another.

        Raises:
            ValueError: If there is no batch, or their environments' spaces differ.
        """
        if not batches:
            raise ValueError("there is no batch to concatenate")
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
        """Build a batch from what `to_list` gives: one dictionary an episode, with its own fields.

        Raises:
            ValueError: If there is no episode, or one's fields are not those of `to_list` or do not fit each
                other.
        """
        rows = SpaceRows(env_spec.observation_space)
        batches = []
        for episode in episodes:
            if differing_keys := sorted(episode.keys() ^ _LIST_KEYS):
                raise ValueError(
                    f"an episode has the keys {sorted(episode)}, expected {sorted(_LIST_KEYS)}: "
                    f"see {differing_keys}"
                )
            fields = {name: episode[_SINGULARS.get(name, name)] for name in (*_STEP_FIELDS, *_EPISODE_FIELDS)}
            fields |= {name: map_tree(_as_row, fields[name]) for name in _SINGULARS}
            if any(leaf.kind == "sequence" for leaf in rows.leaves):
                fields["last_observations"] = rows.stack([episode["last_observation"]])
            batches.append(cls(env_spec=env_spec, **fields))
        return cls.concatenate(*batches)

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dictionary an episode: trees and arrays of its own rows, and its own other values."""
        episodes = []
        for episode in self.split():
            fields = {name: getattr(episode, name) for name in (*_STEP_FIELDS, "episode_infos")}
            fields["last_observation"] = map_tree(itemgetter(0), episode.last_observations)
            fields |= {_SINGULARS[name]: getattr(episode, name)[0].item() for name in _EPISODE_ARRAYS}
            episodes.append(fields)
        return episodes

    def split(self) -> list[EpisodeBatch]:
        """Return one batch an episode; arrays are views."""
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
        """Which steps ended an episode by its own rules, bool (T,): the last one of a terminated episode."""
        return np.asarray(self.step_types == StepType.TERMINAL)

    @property
    def timeouts(self) -> Array:
        """Which steps were cut off, bool (T,): the last one of an episode that is truncated alone.

        One that is terminated too is in `terminals` alone, since d3rlpy and the loaders of D4RL take no step
        that is both.
        """
        return np.asarray(self.step_types == StepType.TIMEOUT)

    @property
    def valids(self) -> Array:
        """Where the padded arrays hold a step, bool (N, longest episode)."""
        return np.asarray(np.arange(self.lengths.max()) < self.lengths[:, None])

    padded_observations = _padded(
        "observations",
        "observations padded with zeros (empty texts), tree of arrays (N, longest episode, *shape)",
    )
    padded_next_observations = _padded("next_observations", "next observations padded likewise")
    padded_actions = _padded("actions", "actions padded likewise")
    padded_rewards = _padded("rewards", "rewards padded with zeros, (N, longest episode)")
    padded_step_types = _padded(
        "step_types", "step types padded with zeros; `valids` tells padding from FIRST"
    )
    padded_env_infos = _padded(
        "env_infos", "env infos padded, with what masked and object arrays have for no value"
    )
    padded_agent_infos = _padded("agent_infos", "agent infos padded likewise")

    @property
    def observations_list(self) -> list[Tree]:
        """One tree of arrays an episode."""
        return [episode.observations for episode in self.split()]

    @property
    def actions_list(self) -> list[Tree]:
        """One tree of arrays an episode."""
        return [episode.actions for episode in self.split()]


TrajectoryBatch = EpisodeBatch
"""Its older name."""


def _as_row(value: Any) -> Array:
    return np.asarray(value, dtype=object if isinstance(value, str) else None)[None]


def _check_field(name: str, value: Any, n_rows: int, env_spec: EnvSpec) -> None:
    """Raise ValueError unless a field has its form, of which the message shows both trees."""
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
    """Return type and shape of a leaf in words."""
    if not isinstance(leaf, np.ndarray):
        return f"a {type(leaf).__name__}"
    if leaf.dtype == object and not all(isinstance(value, str | np.ndarray) for value in leaf.flat):
        return f"object of shape {leaf.shape}"
    return _array_form(leaf.dtype, leaf.shape)


def _array_form(dtype: DType, shape: Shape) -> str:
    return f"{'text' if dtype.kind == 'O' else dtype} of shape {shape}"
