"""The checks of an EpisodeBatch, all vectorised; each error names the field and prints both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollout_cli.spaces import Leaf, flatten, space_leaves
from rollout_cli.step_types import derive_step_types

if TYPE_CHECKING:
    from rollout_cli.episode_batch import EnvSpec, EpisodeBatch

_STEP_DTYPES = {"rewards": np.float64, "step_types": np.uint8}
_EPISODE_DTYPES = {
    "terminated": np.bool_,
    "truncated": np.bool_,
    "numbers": np.int64,
    "seeds": np.int64,
    "first_steps": np.int64,
}


def check_batch(batch: EpisodeBatch) -> None:
    """Check that all fields of `batch` fit each other and its spaces.

    Raises:
        ValueError: At the first field that does not fit.
    """
    _check_lengths(batch.lengths)
    n_episodes, n_steps = len(batch.lengths), int(batch.lengths.sum())
    _check_tree("observations", batch.observations, batch.env_spec.observation_space, n_steps)
    _check_tree("last_observations", batch.last_observations, batch.env_spec.observation_space, n_episodes)
    _check_tree("actions", batch.actions, batch.env_spec.action_space, n_steps)
    for dtypes, rows in ((_STEP_DTYPES, n_steps), (_EPISODE_DTYPES, n_episodes)):
        for name, dtype in dtypes.items():
            _check_array(name, getattr(batch, name), (rows,), dtype)
    for name, rows in (("env_infos", n_steps), ("agent_infos", n_steps), ("episode_infos", n_episodes)):
        for key, values in getattr(batch, name).items():
            _check_rows(f"{name}[{key!r}]", values, rows)
    _check_first_steps(batch.first_steps)
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


def _check_lengths(lengths: Any) -> None:
    if not isinstance(lengths, np.ndarray) or lengths.ndim != 1 or lengths.dtype != np.int64:
        raise ValueError(f"lengths is {_what(lengths)}, expected int64 of shape (episodes,)")
    if len(lengths) == 0:
        raise ValueError("lengths is empty: a batch holds at least one episode")
    if int(lengths.min()) < 1:
        at = int(lengths.argmin())
        raise ValueError(f"lengths[{at}] is {lengths[at]}: an episode has at least one step")


def _check_array(name: str, values: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if not isinstance(values, np.ndarray) or values.shape != shape or values.dtype != dtype:
        raise ValueError(f"{name} is {_what(values)}, expected {np.dtype(dtype)} of shape {shape}")


def _check_rows(name: str, values: Any, rows: int) -> None:
    if not isinstance(values, np.ndarray) or values.shape[:1] != (rows,):
        raise ValueError(f"{name} is {_what(values)}, expected shape {(rows, *np.shape(values)[1:])}")


def _what(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} of shape {values.shape}"
    return f"a {type(values).__name__}"


def _check_tree(name: str, tree: Any, space: gymnasium.Space[Any], rows: int) -> None:
    _check_structure(name, tree, space)
    for leaf, values in zip(space_leaves(space), flatten(space, tree), strict=True):
        field = f"{name}.{leaf.name}" if leaf.path else name
        _check_array(field, values, (rows, *leaf.shape), leaf.dtype)
        _check_texts(field, leaf, values)


def _check_structure(name: str, tree: Any, space: gymnasium.Space[Any]) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(tree, dict) or tree.keys() != space.spaces.keys():
            keys = f"a dict of {list(tree)}" if isinstance(tree, dict) else _what(tree)
            raise ValueError(f"{name} is {keys}, expected a dict of {list(space.spaces)}")
        for key, child in space.spaces.items():
            _check_structure(f"{name}.{key}", tree[key], child)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            parts = f"a tuple of {len(tree)}" if isinstance(tree, tuple) else _what(tree)
            raise ValueError(f"{name} is {parts}, expected a tuple of {len(space.spaces)}")
        for at, child in enumerate(space.spaces):
            _check_structure(f"{name}.{at}", tree[at], child)


def _check_texts(field: str, leaf: Leaf, values: Any) -> None:
    if leaf.kind == "text":
        wrong = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            raise ValueError(f"{field}[{wrong}] is a {type(values[wrong]).__name__}, expected a text")


def _check_first_steps(first_steps: Any) -> None:
    if int(first_steps.min()) < 0:
        at = int(first_steps.argmin())
        raise ValueError(f"first_steps[{at}] is {first_steps[at]}: the first step of an episode is step 0")


def _check_step_types(batch: EpisodeBatch) -> None:
    expected = derive_step_types(batch.lengths, batch.terminated, batch.truncated, batch.first_steps)
    wrong = np.flatnonzero(batch.step_types != expected)
    if len(wrong):
        row = int(wrong[0])
        episode = int(np.searchsorted(np.cumsum(batch.lengths), row, side="right"))
        first = f", first step {batch.first_steps[episode]}" if batch.first_steps[episode] else ""
        raise ValueError(
            f"step_types[{row}] is {int(batch.step_types[row])}, but the lengths and flags of episode {episode} "
            f"(terminated {bool(batch.terminated[episode])}, truncated {bool(batch.truncated[episode])}{first}) "
            f"give {int(expected[row])}"
        )
