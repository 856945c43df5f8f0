"""Sampling what torch modules give, for rows that share no randomness. Torch is never imported here."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.policies.row_draws import NormalDraws

Array = npt.NDArray[Any]


def choose(logits: Array, noise: Array | None) -> Array | None:
    """Return for each row a category drawn from the softmax of its logits, (n,); the likeliest without noise.

    The likeliest after adding Gumbel noise is such a draw. It takes half as long as going through the softmax.

    Args:
        logits: (n, number of categories).
        noise: Independent numbers of the standard Gumbel distribution, of the same shape.

    Returns:
        The categories; None where a row's logits have no softmax: a NaN, infinity, or nothing but -infinity.
    """
    scores = logits if noise is None else logits + noise
    # A sum of squares loses no NaN and no infinity, and takes a third of looking for the highest of each row.
    if not math.isfinite(np.vdot(scores, scores)) and not _have_softmax(logits):
        return None
    return np.asarray(scores.argmax(axis=1))


def _have_softmax(logits: Array) -> bool:
    # A NaN counts as the highest.
    return bool(np.isfinite(np.maximum.reduce(logits, 1)).all())


def sample(distribution: Any, draws: Any) -> Any:
    """Return a sample of a torch Distribution of n rows.

    Normal ones, also Independent or transformed (as tanh does), take row j from row j's generator. All others sample
    themselves, from torch's global generator.

    Args:
        distribution: What is sampled.
        draws: The rows' NormalDraws; any others are not used.
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
    if kind is known.Normal and isinstance(draws, NormalDraws) and distribution.loc.shape[:1] == (len(draws),):
        loc = distribution.loc
        return loc + distribution.scale * torch.from_numpy(draws.normal(tuple(loc.shape[1:]))).to(loc)
    return distribution.sample()
