"""Hashes of the values of a batch: of its arrays, not of the bytes of files."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

_ARRAYS = ("lengths", "terminated", "truncated", "numbers", "seeds", "rewards", "step_types")
_TREES = ("observations", "last_observations", "actions")
_INFOS = ("env_infos", "agent_infos", "episode_infos")


def value_hashes(batch: Any) -> dict[str, str]:
    """Return a short hash of each array of an EpisodeBatch, by its place there."""
    arrays = {name: getattr(batch, name) for name in _ARRAYS}
    for name in _TREES:
        arrays |= dict(_leaves(getattr(batch, name), name))
    for name in _INFOS:
        arrays |= {f"{name}.{key}": values for key, values in getattr(batch, name).items()}
    return {name: _hash(values) for name, values in sorted(arrays.items())}


def _leaves(tree: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(tree, dict | tuple):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [leaf for key, child in pairs for leaf in _leaves(child, f"{name}.{key}")]
    return [(name, tree)]


def _hash(values: Any) -> str:
    shown = f"{values.dtype} {values.shape} {np.ma.getmaskarray(values).any()}"
    plain = values.dtype != object and not isinstance(values, np.ma.MaskedArray)
    content = np.ascontiguousarray(values).tobytes() if plain else repr(values.tolist()).encode()
    return sha256(shown.encode() + content).hexdigest()[:16]
