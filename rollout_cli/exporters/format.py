"""A format as a value: who reads it, what it holds, and what a dataset loses in it."""

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
"""The observations and actions that are in memory together; an episode is held whole, however long it is."""


@dataclass(frozen=True, eq=False)
class Export:
    """What an exporter is given.

    Attributes:
        source: The episodes; their spaces are ones that the format holds.
        path: What to write, a file or a folder: it does not exist, and its parent does.
        target: Where that goes once it is whole: the path that the user named.
        losses: What the format does not hold of these episodes, a sentence each.
    """

    source: EpisodeSource
    path: Path
    target: Path
    losses: tuple[str, ...]

    @property
    def env_spec(self) -> EnvSpec:
        """The environment's spaces and limit."""
        return self.source.env_spec

    @cached_property
    def lengths(self) -> Array:
        """The steps of each episode, int64 (N,)."""
        return np.fromiter(map(len, self.source), np.int64)

    @property
    def n_steps(self) -> int:
        """How many steps the episodes have."""
        return int(self.lengths.sum())

    @property
    def size(self) -> int:
        """The bytes of all observations and actions, texts not counted."""
        return self.n_steps * row_bytes(self.env_spec)

    def blocks(self) -> Iterator[EpisodeBatch]:
        """Yield the episodes in order, many in one batch, without their infos: for formats of flat rows."""
        most_steps = max(1, _BLOCK_BYTES // max(row_bytes(self.env_spec), 64))
        for episodes in grouped(self.source, len, most_steps):
            yield joined_episodes(self.env_spec, episodes)

    @property
    def env_id(self) -> str:
        """The id of the environment, or "unknown"."""
        return str(self.run.get("env_source", {}).get("spec", "unknown"))

    @property
    def env_kwargs(self) -> Document:
        """The keyword arguments that the environment was made with."""
        return dict(self.run.get("env", {}).get("kwargs", {}))

    @property
    def run(self) -> Document:
        """The record of the run that the first episode is of."""
        sources: Sequence[Document] = self.source.info.get("sources", ())
        return sources[next(iter(self.source)).source] if sources else {}


@dataclass(frozen=True, slots=True)
class Format:
    """A format that datasets are exported to.

    Attributes:
        name: What `--to` takes.
        title: Who reads it, in a few words.
        write: `write(export, **options)`; its keyword arguments are the options of `--set`, of the types that
            they are annotated with: classes, or unions of them.
        leaves: The kinds of leaves that it holds.
        nested: Whether it holds Dict and Tuple spaces.
        nested_observations: Which of them it holds, of observations alone.
        suffixes: What the name of its file ends with, one of these; a format of none is a folder.
        last_observation: Whether it holds the observation after an episode's last step.
        ends_apart: Whether it holds which of `terminated` and `truncated` ended an episode.
        both_ends: Whether it holds that both did.
        float64: Whether its readers give float64 numbers as they are.
        float64_rewards: Whether they give float64 rewards as they are.
        start: Whether it holds the start of Discrete actions, or their values as they are.
        infos: Whether it holds infos.
        never: Other fields that it does not hold.
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

    @property
    def options(self) -> Fields:
        """The options of `write`, and the types of their values."""
        parameters = inspect.signature(self.write, eval_str=True).parameters.values()
        return {item.name: item.annotation for item in parameters if item.kind is item.KEYWORD_ONLY}

    def check(self, spec: EnvSpec) -> None:
        """Raise UnsupportedSpaceError, which names the space, where the format does not hold it."""
        for field, space in (("observations", spec.observation_space), ("actions", spec.action_space)):
            is_held = self.nested or (field == "observations" and isinstance(space, self.nested_observations))
            if is_nested(space) and not is_held:
                raise UnsupportedSpaceError(
                    f"{self.name} does not hold the {type(space).__name__} space of {field}",
                    code="format-space",
                    hint="make it a vector: {set=flatten=true}",
                )
            for leaf in space_leaves(space):
                if leaf.kind not in self.leaves:
                    part = f" {leaf.name!r}" if leaf.path else ""
                    raise UnsupportedSpaceError(
                        f"{self.name} does not hold the {type(leaf.space).__name__} space of {field}{part}",
                        code="format-space",
                        hint="make it a vector: {set=flatten=true}; or export to hf, which holds all spaces",
                    )

    def losses(self, source: EpisodeSource) -> Iterator[str]:
        """Yield what the format does not hold of these episodes, a few words each."""
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
            yield f"the start of the actions, {start}: here they begin at 0"
        if not self.infos and _has_infos(source):
            yield "infos"

    def _float32_fields(self, source: EpisodeSource) -> Iterator[str]:
        """Yield what readers give as float32 though some of it has more digits."""
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
    """Return whether there is a column of infos, or anything in those of the first episodes."""
    if any(name.split(".")[0] in INFO_GROUPS and "." in name for name in source.info.get("features", ())):
        return True
    batch = next(iter(source)).batch
    return bool(batch.env_infos or batch.agent_infos or batch.episode_infos)


def check_keys(name: str, spec: EnvSpec, reserved: Collection[str] = ()) -> None:
    """Raise UnsupportedSpaceError for a key of a Dict space that cannot name a file, or is `reserved`."""
    hint = "make the space a vector: {set=flatten=true}; or wrap the environment to rename the key"
    paths = [(field, *map(str, leaf.path)) for field, leaf in leaves_of(spec)]
    for _, *keys in paths:
        for key in keys:
            if "/" in key or "\0" in key or not key.strip(".") or key in reserved:
                raise UnsupportedSpaceError(
                    f"{name} does not hold a Dict space with the key {key!r}", code="format-key", hint=hint
                )
    if len(set(paths)) < len(paths):
        raise UnsupportedSpaceError(
            f"{name} does not hold a Dict space with a key and its text", code="format-key", hint=hint
        )
