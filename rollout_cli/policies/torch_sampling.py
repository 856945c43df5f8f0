"""Sampling what torch modules give, for rows that share no randomness. Torch is never imported here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.policies.row_draws import RowDraws

Array = npt.NDArray[Any]


def choose(logits: Array, highest: Array, places: Array) -> Array:
    """Return for each row the category whose share of the softmax covers its place.

    Args:
        logits: (n, number of categories).
        highest: The highest of each row (n,), finite.
        places: (n,) in [0, 1).
    """
    weights = np.subtract(logits, highest[:, None], dtype=np.float64)
    np.exp(weights, out=weights)
    edges = np.add.accumulate(weights, 1, out=weights)
    places *= edges[:, -1]
    # The last edge is left out: a place just under 1 may round up to it.
    return np.asarray(np.add.reduce(edges[:, :-1] <= places[:, None], 1))


def sample(distribution: Any, draws: RowDraws) -> Any:
    """Return a sample of a torch Distribution of n rows.

    Normal ones, also Independent or transformed (as tanh does), take row j from row j's generator. All others sample
    themselves, from torch's global generator.
    """
    torch = sys.modules["torch"]
    known = torch.distributions
    kind = type(distribution)  # Not isinstance, for a subclass may sample in a way of its own.
    if kind is known.Independent:
        return sample(distribution.base_dist, draws)
    if kind is known.TransformedDistribution:
        value = sample(distribution.base_dist, draws)
        for transform in distribution.transforms:
            value = transform(value)
        return value
    if kind is known.Normal and distribution.loc.shape[:1] == (len(draws),):
        loc = distribution.loc
        return loc + distribution.scale * torch.from_numpy(draws.normal(tuple(loc.shape[1:]))).to(loc)
    return distribution.sample()
