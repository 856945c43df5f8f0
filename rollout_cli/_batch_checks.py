"""The checks of an EpisodeBatch, all vectorised; each error names the field and prints both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli.spaces import Leaf, flatten, space_leaves

if TYPE_CHECKING:
    from rollout_cli.episode_batch import EnvSpec, EpisodeBatch


def check_batch(batch: EpisodeBatch) -> None:
    """Check that all fields of `batch` fit each other and its spaces.

    Raises:
        ValueError: At the first field that does not fit.
    """
    _check_lengths(batch)
    n_episodes, n_steps = len(batch.lengths), int(batch.lengths.sum())
    _check_tree("observations", batch.observations, batch.env_spec.observation_space, n_steps)
    _check_tree("last_observations", batch.last_observations, batch.env_spec.observation_space, n_episodes)
    _check_tree("actions", batch.actions, batch.env_spec.action_space, n_steps)
    for name in ("rewards", "step_types"):
        _check_shape(name, getattr(batch, name), (n_steps,))
    for name in ("terminated", "truncated", "numbers", "seeds"):
        _check_shape(name, getattr(batch, name), (n_episodes,))
    for name, rows in (("env_infos", n_steps), ("agent_infos", n_steps), ("episode_infos", n_episodes)):
        for key, values in getattr(batch, name).items():
            _check_shape(f"{name}[{key!r}]", values, (rows, *values.shape[1:]))
    _check_step_types(batch)


def check_same_spaces(specs: Sequence[EnvSpec]) -> None:
    """Check that batches to be joined come from environments with equal spaces.

    Raises:
        ValueError: If two differ.
    """
    for spec in specs[1:]:
        for name in ("observation_space", "action_space"):
            if getattr(spec, name) != getattr(specs[0], name):
                raise ValueError(f"{name} differs: {getattr(specs[0], name)} and {getattr(spec, name)}")


def _check_lengths(batch: EpisodeBatch) -> None:
    if batch.lengths.ndim != 1 or batch.lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths must be one row of integers, but is {batch.lengths.dtype}{batch.lengths.shape}")
    if len(batch.lengths) == 0:
        raise ValueError("lengths is empty: a batch holds at least one episode")
    if int(batch.lengths.min()) < 1:
        at = int(batch.lengths.argmin())
        raise ValueError(f"lengths[{at}] is {batch.lengths[at]}: an episode has at least one step")


def _check_shape(name: str, values: Any, expected: tuple[int, ...]) -> None:
    if tuple(values.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(values.shape)}, expected {expected}")


def _check_tree(name: str, tree: Any, space: Any, rows: int) -> None:
    try:
        columns = flatten(space, tree)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{name} does not have the structure of {space}: {error!r} is missing") from error
    for leaf, values in zip(space_leaves(space), columns, strict=True):
        field = f"{name}.{leaf.name}" if leaf.path else name
        _check_shape(field, values, (rows, *leaf.shape))
        _check_values(field, leaf, values)


def _check_values(field: str, leaf: Leaf, values: Any) -> None:
    if leaf.kind == "text":
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{field} must hold texts")
    elif values.dtype != leaf.dtype:
        raise ValueError(f"{field} has dtype {values.dtype}, expected {leaf.dtype}")


def _check_step_types(batch: EpisodeBatch) -> None:
    from rollout_cli.episode_batch import derive_step_types

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
