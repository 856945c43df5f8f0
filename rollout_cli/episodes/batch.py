"""EpisodeBatch and StepType: whole episodes as the public API gives them.

The fields and methods are those of garage's `EpisodeBatch`, for gymnasium's two ways of ending: `terminated` and
`truncated`. Observations and actions of Dict and Tuple spaces are trees (dicts and tuples) of arrays.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.chunk import concatenate as concatenate_chunks
from rollout_cli.episodes.info_arrays import concatenate_infos, pad_info
from rollout_cli.episodes.spaces import map_tree, space_leaves, unflatten

__all__ = ["EnvSpec", "EpisodeBatch", "StepType", "Tree", "derive_step_types"]

Array = npt.NDArray[Any]
Tree = Any
"""An array, or a dict or tuple of trees."""


class StepType(enum.IntEnum):
    """Where in its episode a step stands; stored as uint8."""

    FIRST = 0
    MID = 1
    TERMINAL = 2
    TIMEOUT = 3


def derive_step_types(lengths: Array, terminated: Array, truncated: Array) -> Array:
    """Return the step types of flat episodes, uint8 (sum of lengths,).

    TERMINAL wins over TIMEOUT, and an ending wins over FIRST in an episode of one step. An episode that neither
    terminated nor was truncated ends with MID.
    """
    ends = np.cumsum(lengths)
    out = np.full(int(ends[-1]) if len(ends) else 0, StepType.MID, np.uint8)
    nonempty = lengths > 0
    out[(ends - lengths)[nonempty]] = StepType.FIRST
    out[ends[nonempty & truncated] - 1] = StepType.TIMEOUT
    out[ends[nonempty & terminated] - 1] = StepType.TERMINAL
    return out


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The spaces of an environment, and the steps after which its episodes are truncated (None: no limit)."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_episode_length: int | None = None


_STEP_FIELDS = {"rewards": np.float64, "step_types": np.uint8}
_EPISODE_FIELDS = {
    "lengths": np.int64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "numbers": np.int64,
    "seeds": np.int64,
}
_IN_LISTS = dict(zip(_EPISODE_FIELDS, ("length", "terminated", "truncated", "number", "seed"), strict=True))
_INFO_ROWS = {"env_infos": "rewards", "agent_infos": "rewards", "episode_infos": "lengths"}
"""By info field, another field with as many rows."""

_LIST_KEYS = {"observations", "actions", "last_observation", *_STEP_FIELDS, *_INFO_ROWS, *_IN_LISTS.values()}


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """N episodes in T rows, flat: T is the sum of `lengths`, and every episode's rows follow one another.

    Attributes:
        env_spec: Spaces and limit of the environment.
        observations: Tree of arrays (T, *shape): what the policy saw at each step.
        last_observations: Tree of arrays (N, *shape): what followed each episode's last step.
        actions: Tree of arrays (T, *shape).
        rewards: float64 (T,).
        env_infos: By dotted key, one array of length T each (masked where some steps lack the key).
        agent_infos: The same, of the policy.
        episode_infos: The same, of `env.reset`, length N.
        step_types: uint8 (T,), see `StepType`.
        lengths: int64 (N,), each at least 1.
        terminated: bool (N,): whether the episode ended by its own rules.
        truncated: bool (N,): whether it was cut off; both may be true.
        numbers: Episode numbers, int64 (N,).
        seeds: The seeds given to `env.reset`, int64 (N,).

    Raises:
        ValueError: On construction, where fields do not fit each other; it names the field and prints both sides.
    """

    env_spec: EnvSpec
    episode_infos: Mapping[str, Array]
    observations: Tree
    last_observations: Tree
    actions: Tree
    rewards: Array
    env_infos: Mapping[str, Array]
    agent_infos: Mapping[str, Array]
    step_types: Array
    lengths: Array
    terminated: Array
    truncated: Array
    numbers: Array
    seeds: Array

    def __post_init__(self) -> None:
        n_episodes, n_steps = _count(self.lengths)
        _check_tree("observations", self.observations, self.env_spec.observation_space, n_steps)
        _check_tree("last_observations", self.last_observations, self.env_spec.observation_space, n_episodes)
        _check_tree("actions", self.actions, self.env_spec.action_space, n_steps)
        for fields, n_rows in ((_STEP_FIELDS, n_steps), (_EPISODE_FIELDS, n_episodes)):
            for name, dtype in fields.items():
                _check_array(name, getattr(self, name), (n_rows,), dtype)
        for name, other in _INFO_ROWS.items():
            for key, values in getattr(self, name).items():
                _check_array(f"{name}[{key!r}]", values, (len(getattr(self, other)), *np.shape(values)[1:]))
        _check_step_types(self)

    @classmethod
    def _unchecked(cls, **fields: Any) -> EpisodeBatch:
        """Build a batch from parts of batches that were checked when they were built."""
        batch = object.__new__(cls)
        batch.__dict__.update(fields)
        return batch

    @classmethod
    def from_chunks(cls, env_spec: EnvSpec, chunks: Sequence[Chunk]) -> EpisodeBatch:
        """Build a batch from at least one chunk; the parts of one episode follow one another."""
        chunk = concatenate_chunks(chunks)
        return cls(
            env_spec=env_spec,
            episode_infos=chunk.episode_infos.to_arrays(),
            observations=unflatten(env_spec.observation_space, chunk.observations),
            last_observations=unflatten(env_spec.observation_space, chunk.last_observations),
            actions=unflatten(env_spec.action_space, chunk.actions),
            rewards=chunk.rewards,
            env_infos=chunk.env_infos.to_arrays(),
            agent_infos=chunk.agent_infos.to_arrays(),
            step_types=derive_step_types(chunk.lengths, chunk.terminated, chunk.truncated),
            **{name: getattr(chunk, name) for name in _EPISODE_FIELDS},
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
        for batch in batches[1:]:
            for name in ("observation_space", "action_space"):
                space, other = getattr(spec, name), getattr(batch.env_spec, name)
                if space != other:
                    raise ValueError(f"{name} differs: {space} and {other}")
        fields: dict[str, Any] = {"env_spec": spec}
        for name in ("observations", "last_observations", "actions"):
            first, *others = (getattr(batch, name) for batch in batches)
            fields[name] = map_tree(lambda *leaves: np.concatenate(leaves), first, *others)
        for name in (*_STEP_FIELDS, *_EPISODE_FIELDS):
            fields[name] = np.concatenate([getattr(batch, name) for batch in batches])
        for name, other in _INFO_ROWS.items():
            sizes = [len(getattr(batch, other)) for batch in batches]
            fields[name] = concatenate_infos([getattr(batch, name) for batch in batches], sizes)
        return cls._unchecked(**fields)

    @classmethod
    def from_list(cls, env_spec: EnvSpec, episodes: Sequence[Mapping[str, Any]]) -> EpisodeBatch:
        """Build a batch from what `to_list` gives: one dictionary an episode, with its own fields.

        Raises:
            ValueError: If there is no episode, or one's fields are not those of `to_list` or do not fit each other.
        """
        return cls.concatenate(*(cls(env_spec=env_spec, **_from_entry(episode)) for episode in episodes))

    def to_list(self) -> list[dict[str, Any]]:
        """Return one dictionary an episode: trees and arrays of its own rows, and its own values for the rest."""
        out = []
        for episode in self.split():
            entry = {name: getattr(episode, name) for name in ("observations", "actions", *_STEP_FIELDS)}
            entry |= {name: dict(getattr(episode, name)) for name in _INFO_ROWS}
            entry["last_observation"] = map_tree(lambda leaf: leaf[0], episode.last_observations)
            entry |= {singular: getattr(episode, name)[0].item() for name, singular in _IN_LISTS.items()}
            out.append(entry)
        return out

    def split(self) -> list[EpisodeBatch]:
        """Return one batch an episode; arrays are views."""
        edges = pairwise([0, *np.cumsum(self.lengths).tolist()])
        return [self._episode(at, slice(start, stop)) for at, (start, stop) in enumerate(edges)]

    def _episode(self, at: int, steps: slice) -> EpisodeBatch:
        own = slice(at, at + 1)
        fields: dict[str, Any] = {"env_spec": self.env_spec}
        for name in ("observations", "actions"):
            fields[name] = map_tree(lambda leaf: leaf[steps], getattr(self, name))
        fields["last_observations"] = map_tree(lambda leaf: leaf[own], self.last_observations)
        fields |= {name: getattr(self, name)[steps] for name in _STEP_FIELDS}
        fields |= {name: getattr(self, name)[own] for name in _EPISODE_FIELDS}
        for name, other in _INFO_ROWS.items():
            rows = own if other == "lengths" else steps
            fields[name] = {key: values[rows] for key, values in getattr(self, name).items()}
        return self._unchecked(**fields)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.lengths)

    @property
    def next_observations(self) -> Tree:
        """Return the observation after each step, tree of arrays (T, *shape)."""
        ends = np.cumsum(self.lengths) - 1

        def shift(leaf: Array, last: Array) -> Array:
            out = np.empty_like(leaf)
            out[:-1] = leaf[1:]
            out[ends] = last
            return out

        return map_tree(shift, self.observations, self.last_observations)

    @property
    def valids(self) -> Array:
        """Return where the padded arrays hold a step, bool (N, longest episode)."""
        return np.asarray(np.arange(int(self.lengths.max())) < self.lengths[:, None])

    @property
    def padded_observations(self) -> Tree:
        """Return observations padded with zeros (empty texts), tree of arrays (N, longest episode, *shape)."""
        return map_tree(self._pad, self.observations)

    @property
    def padded_next_observations(self) -> Tree:
        """Return next observations padded likewise."""
        return map_tree(self._pad, self.next_observations)

    @property
    def padded_actions(self) -> Tree:
        """Return actions padded likewise."""
        return map_tree(self._pad, self.actions)

    @property
    def padded_rewards(self) -> Array:
        """Return rewards padded with zeros, (N, longest episode)."""
        return self._pad(self.rewards)

    @property
    def padded_step_types(self) -> Array:
        """Return step types padded with zeros, (N, longest episode); `valids` tells padding from FIRST."""
        return self._pad(self.step_types)

    @property
    def padded_env_infos(self) -> dict[str, Array]:
        """Return the env infos padded (masked and object arrays with what they have for none), (N, longest, ...)."""
        return {key: pad_info(values, self.valids) for key, values in self.env_infos.items()}

    @property
    def padded_agent_infos(self) -> dict[str, Array]:
        """Return the agent infos padded likewise."""
        return {key: pad_info(values, self.valids) for key, values in self.agent_infos.items()}

    @property
    def observations_list(self) -> list[Tree]:
        """Return one tree of arrays an episode."""
        return [episode.observations for episode in self.split()]

    @property
    def actions_list(self) -> list[Tree]:
        """Return one tree of arrays an episode."""
        return [episode.actions for episode in self.split()]

    def _pad(self, leaf: Array) -> Array:
        valids = self.valids
        out = np.full((*valids.shape, *leaf.shape[1:]), "" if leaf.dtype == object else 0, leaf.dtype)
        out[valids] = leaf
        return out


def _from_entry(episode: Mapping[str, Any]) -> dict[str, Any]:
    if episode.keys() != _LIST_KEYS:
        odd = sorted(episode.keys() ^ _LIST_KEYS)
        raise ValueError(f"an episode has the keys {sorted(episode)}, expected {sorted(_LIST_KEYS)}: see {odd}")
    fields = dict(episode)
    for name, singular in _IN_LISTS.items():
        fields[name] = np.array([fields.pop(singular)])
    fields["last_observations"] = map_tree(_one_row, fields.pop("last_observation"))
    return fields


def _one_row(value: Any) -> Array:
    return np.asarray(value, dtype=object if isinstance(value, str) else None)[None]


# Checks: each names the field that does not fit, and prints both sides.


def _count(lengths: Any) -> tuple[int, int]:
    """Check the lengths; return how many episodes and steps they stand for."""
    _check_array("lengths", lengths, (np.size(lengths),), np.int64)
    if len(lengths) == 0:
        raise ValueError("lengths is empty: a batch holds at least one episode")
    at = int(lengths.argmin())
    if lengths[at] < 1:
        raise ValueError(f"lengths[{at}] is {lengths[at]}: an episode has at least one step")
    return len(lengths), int(lengths.sum())


def _check_array(name: str, values: Any, shape: tuple[int, ...], dtype: Any = None) -> None:
    is_array = isinstance(values, np.ndarray)
    if not is_array or values.shape != shape or (dtype is not None and values.dtype != dtype):
        expected = f"shape {shape}" if dtype is None else f"{np.dtype(dtype)} of shape {shape}"
        raise ValueError(f"{name} is {_what(values)}, expected {expected}")


def _what(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} of shape {values.shape}"
    return f"a {type(values).__name__}"


def _check_tree(name: str, tree: Any, space: gymnasium.Space[Any], rows: int) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(tree, dict) or tree.keys() != space.spaces.keys():
            keys = f"a dict of {list(tree)}" if isinstance(tree, dict) else _what(tree)
            raise ValueError(f"{name} is {keys}, expected a dict of {list(space.spaces)}")
        for key, child in space.spaces.items():
            _check_tree(f"{name}.{key}", tree[key], child, rows)
        return
    if isinstance(space, spaces.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            parts = f"a tuple of {len(tree)}" if isinstance(tree, tuple) else _what(tree)
            raise ValueError(f"{name} is {parts}, expected a tuple of {len(space.spaces)}")
        for at, child in enumerate(space.spaces):
            _check_tree(f"{name}.{at}", tree[at], child, rows)
        return
    (leaf,) = space_leaves(space)
    _check_array(name, tree, (rows, *leaf.shape), leaf.dtype)
    if leaf.kind == "text":
        others = [row for row, value in enumerate(tree) if not isinstance(value, str)]
        if others:
            raise ValueError(f"{name}[{others[0]}] is a {type(tree[others[0]]).__name__}, expected a text")


def _check_step_types(batch: EpisodeBatch) -> None:
    expected = derive_step_types(batch.lengths, batch.terminated, batch.truncated)
    wrong = np.flatnonzero(batch.step_types != expected)
    if len(wrong):
        row = int(wrong[0])
        episode = int(np.searchsorted(np.cumsum(batch.lengths), row, side="right"))
        raise ValueError(
            f"step_types[{row}] is {int(batch.step_types[row])}, but the lengths and flags of episode {episode} "
            f"(terminated {bool(batch.terminated[episode])}, truncated {bool(batch.truncated[episode])}) "
            f"give {int(expected[row])}"
        )
