"""Formats as values: their readers, the spaces and fields that they store, and their losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.dataset.batches import grouped
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.infos import INFO_GROUPS
from rollout_cli.episodes.plain import Document, Fields
from rollout_cli.episodes.spaces import LeafKind, Space, space_leaves
from rollout_cli.errors import UnsupportedSpaceError
from rollout_cli.exporters.source import (
    EpisodeSource,
    is_nested,
    joined_episodes,
    leaves_of,
    row_bytes,
)

Array = npt.NDArray[Any]

NUMBERS: frozenset[LeafKind] = frozenset({"box", "discrete", "multi_discrete", "multi_binary"})
ALL: frozenset[LeafKind] = NUMBERS | {"text"}

_BLOCK_BYTES = 32 << 20
"""The observations and actions in memory at one time; a single episode may exceed this."""


@dataclass(frozen=True, eq=False)
class Export:
    """The input of an exporter.

    Attributes:
        source: The episodes, whose spaces the format can store.
        path: The file or folder to write; it does not exist, but its parent does.
        target: The user's output path, to which `path` is renamed when it is complete.
        losses: The data that the format cannot store, a few words each.
    """

    source: EpisodeSource
    path: Path
    target: Path
    losses: tuple[str, ...]

    @property
    def env_spec(self) -> EnvSpec:
        """The environment's spaces and time limit."""
        return self.source.env_spec

    @cached_property
    def lengths(self) -> Array:
        """The steps of each episode, int64 (N,)."""
        return np.fromiter(map(len, self.source), np.int64)

    @property
    def n_steps(self) -> int:
        """The number of steps of the episodes."""
        return int(self.lengths.sum())

    @property
    def size(self) -> int:
        """The bytes of all observations and actions, without strings."""
        return self.n_steps * row_bytes(self.env_spec)

    def blocks(self) -> Iterator[EpisodeBatch]:
        """Yield the episodes in order, several per batch, without infos, for formats of flat rows."""
        most_steps = max(1, _BLOCK_BYTES // max(row_bytes(self.env_spec), 64))
        for episodes in grouped(self.source, len, most_steps):
            yield joined_episodes(self.env_spec, episodes)

    @property
    def env_id(self) -> str:
        """The id of the environment, or "unknown"."""
        return str(self.run.get("env_source", {}).get("spec", "unknown"))

    @property
    def env_kwargs(self) -> Document:
        """The keyword arguments with which the environment was made."""
        return dict(self.run.get("env", {}).get("kwargs", {}))

    @property
    def run(self) -> Document:
        """The record of the first episode's run."""
        sources: Sequence[Document] = self.source.info.get("sources", ())
        return sources[next(iter(self.source)).source] if sources else {}


@dataclass(frozen=True, slots=True)
class Format:
    """An export format.

    Attributes:
        name: The value of `--to`.
        title: The readers of the format, in a few words.
        write: `write(export, **options)`. Its keyword-only arguments are the options of `--set`; their
            annotations are the accepted types, a class or a union of classes.
        leaves: The kinds of leaves that the format stores.
        nested: True if it stores Dict and Tuple spaces.
        nested_observations: The nested spaces that it stores for observations only.
        suffixes: The allowed suffixes of its file; empty if the output is a folder.
        last_observation: True if it stores the observation after an episode's last step.
        ends_apart: True if it distinguishes `terminated` and `truncated`.
        both_ends: True if it stores that an episode was both terminated and truncated.
        float64: True if its readers keep float64 precision.
        float64_rewards: True if its readers keep float64 precision of rewards.
        start: True if it stores the start of Discrete actions, or their values unchanged.
        infos: True if it stores infos.
        never: Other fields that it does not store.
        option_losses: Names of options, and the data that it does not store if the option is true.
    """

    name: str
    title: str
    write: Callable[..., None]
    leaves: frozenset[LeafKind] = NUMBERS
    nested: bool = False
    nested_observations: tuple[type[Space], ...] = ()
    suffixes: tuple[str, ...] = ()
    last_observation: bool = True
    ends_apart: bool = True
    both_ends: bool = True
    float64: bool = True
    float64_rewards: bool = True
    start: bool = True
    infos: bool = False
    never: tuple[str, ...] = ()
    option_losses: tuple[tuple[str, str], ...] = ()

    @property
    def options(self) -> Fields:
        """The options of `write`, with the types of their values."""
        parameters = inspect.signature(self.write, eval_str=True).parameters.values()
        return {item.name: item.annotation for item in parameters if item.kind is item.KEYWORD_ONLY}

    def check(self, spec: EnvSpec) -> None:
        """Raise UnsupportedSpaceError, which names the space, if the format cannot store the spaces."""
        for field, space in (("observations", spec.observation_space), ("actions", spec.action_space)):
            is_held = self.nested or (field == "observations" and isinstance(space, self.nested_observations))
            if is_nested(space) and not is_held:
                raise UnsupportedSpaceError(
                    f"{self.name} cannot store the {type(space).__name__} space of {field}",
                    code="format-space",
                    hint="flatten the space to a vector: {set=flatten=true}",
                )
            for leaf in space_leaves(space):
                if leaf.kind not in self.leaves:
                    part = f" {leaf.name!r}" if leaf.path else ""
                    raise UnsupportedSpaceError(
                        f"{self.name} cannot store the {type(leaf.space).__name__} space of {field}{part}",
                        code="format-space",
                        hint="flatten the space: {set=flatten=true}; or export to hf, which stores all spaces",
                    )

    def losses(self, source: EpisodeSource) -> Iterator[str]:
        """Yield the data of these episodes that the format cannot store, a few words each."""
        yield from self.never
        if not self.last_observation:
            yield "the observation after each episode's last step"
        if not self.ends_apart:
            yield "whether an episode was terminated or truncated"
        elif not self.both_ends and (count := sum(item.terminated and item.truncated for item in source)):
            yield f"that {count:,} of {len(source):,} episodes ended both ways, terminated and truncated"
        for field in self._float32_fields(source):
            yield f"the digits of {field} beyond float32"
        start = getattr(source.env_spec.action_space, "start", 0)
        if not self.start and np.any(start):
            yield f"the start of the actions, {start}: exported actions start at 0"
        if not self.infos and _has_infos(source):
            yield "infos"

    def _float32_fields(self, source: EpisodeSource) -> Iterator[str]:
        """Yield the fields with float64 precision that readers reduce to float32."""
        if not self.float64:
            yield from dict.fromkeys(
                field for field, leaf in leaves_of(source.env_spec) if leaf.dtype == np.float64
            )
        if not self.float64_rewards and any(
            not np.array_equal(episode.rewards.astype(np.float32), episode.rewards, equal_nan=True)
            for episode in source
        ):
            yield "rewards"


def _has_infos(source: EpisodeSource) -> bool:
    """Return True if a column of infos exists, or the first episode has infos."""
    if any(name.split(".")[0] in INFO_GROUPS and "." in name for name in source.info.get("features", ())):
        return True
    batch = next(iter(source)).batch
    return bool(batch.env_infos or batch.agent_infos or batch.episode_infos)


def check_keys(name: str, spec: EnvSpec, reserved: Collection[str] = ()) -> None:
    """Raise UnsupportedSpaceError for a Dict key that is not a valid file name, or is `reserved`."""
    hint = "flatten the space: {set=flatten=true}; or wrap the environment to rename the key"
    paths = [(field, *map(str, leaf.path)) for field, leaf in leaves_of(spec)]
    for _, *keys in paths:
        for key in keys:
            if "/" in key or "\0" in key or not key.strip(".") or key in reserved:
                raise UnsupportedSpaceError(
                    f"{name} cannot store a Dict space with the key {key!r}", code="format-key", hint=hint
                )
    if len(set(paths)) < len(paths):
        raise UnsupportedSpaceError(
            f"{name} cannot store a Dict space in which two keys have equal str()",
            code="format-key",
            hint=hint,
        )
