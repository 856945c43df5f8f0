"""Checks of the shapes and dtypes of a program's values; they trace the functions and run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from rollout_cli.envs.functional.rows import Row
from rollout_cli.episodes.spaces import Leaf, SpaceRows
from rollout_cli.workers.checks import BadValueError
from rollout_cli.workers.functional.program import Program


def reset_types(program: Program, observations: SpaceRows) -> Row:
    """Return the types of a row after a reset; BadValueError if the observation does not fit its space."""
    row: Row = jax.eval_shape(program.first, np.uint32(0))
    _check_leaves("observation", observations, row.observation)
    return row


def check_action(program: Program, actions: SpaceRows, params: Any, row: Row) -> None:
    """Raise BadValueError if the policy's action or infos have a wrong type."""
    action, infos = jax.eval_shape(program.act, params, row.key, row.observation)
    _check_leaves("action", actions, action)
    _check_infos(infos)


def check_step(program: Program, params: Any, row: Row) -> None:
    """Raise BadValueError if a value of a step has a wrong type, or the row's types change."""
    following, step = jax.eval_shape(program.next, params, row)
    for name, kinds, expected in (
        ("reward", "biuf", "a number"),
        ("terminated", "b", "a bool"),
        ("truncated", "b", "a bool"),
    ):
        value = getattr(step, name)
        if value.shape or value.dtype.kind not in kinds:
            raise BadValueError(
                f"{name} is {value.dtype}{value.shape}, expected {expected} without dimensions",
                "return one number for the reward, and arrays of dtype bool for the flags",
                code="step-value",
            )
    _check_infos(step.env_infos)
    for place, before, after in _pairs(row, following):
        if before != after:
            raise BadValueError(
                f"{place} is {after} after a step, expected {before} as after the reset",
                "return observations and states of one structure, with the same shapes and dtypes",
                code="state-type",
            )


def _pairs(before: Row, after: Row) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place and the types before and after a step of each leaf of observation and state."""
    for name in ("observation", "state"):
        old = getattr(before, name)
        new = getattr(after, name)
        yield f"the structure of the {name}", jax.tree.structure(old), jax.tree.structure(new)
        leaves = zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True)
        for (path, old_leaf), new_leaf in leaves:
            place = f"the {name}{jax.tree_util.keystr(path)}"
            yield place, f"{old_leaf.dtype}{old_leaf.shape}", f"{new_leaf.dtype}{new_leaf.shape}"


def _check_leaves(name: str, rows: SpaceRows, tree: Any) -> None:
    """Raise BadValueError unless a tree of shapes and dtypes fits a space."""
    try:
        columns = rows.columns(tree)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadValueError(
            f"the {name} lacks a part of its space ({error!r})",
            "return all keys and entries of the space, as dictionaries and tuples",
            code="value-structure",
        ) from error
    for leaf, value in zip(rows.leaves, columns, strict=True):
        if not _fits(leaf, value):
            where = f" at {leaf.name!r}" if leaf.path else ""
            found = f"{value.dtype}{value.shape}" if hasattr(value, "dtype") else type(value).__name__
            raise BadValueError(
                f"the {name}{where} is {found}, expected {leaf.space.dtype}{leaf.shape} of {leaf.space}",
                code="batch-shape",
            )


def _fits(leaf: Leaf, value: Any) -> bool:
    if not hasattr(value, "dtype") or value.shape != leaf.shape:
        return False
    # An integer that overflows would be recorded as another one.
    return np.can_cast(value.dtype, leaf.dtype, "safe" if leaf.dtype.kind in "iu" else "same_kind")


def _check_infos(infos: Any, path: str = "") -> None:
    """Raise BadValueError unless infos are nested dictionaries of arrays."""
    if isinstance(infos, dict):
        for key, value in infos.items():
            if f"_{key}" in infos:
                raise BadValueError(
                    f"the infos have the keys {key!r} and '_{key}', which is a mask in a batch of infos",
                    f"rename '_{key}'",
                    code="info-type",
                )
            _check_infos(value, f"{path}.{key}" if path else str(key))
    elif not path or not hasattr(infos, "dtype"):
        raise BadValueError(
            f"the infos{f' at {path!r}' if path else ''} are a {type(infos).__name__}, "
            "expected dictionaries of arrays",
            "return {} if a step has no infos",
            code="info-type",
        )
