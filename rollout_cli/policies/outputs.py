"""What a network's output means as actions: its shape, and a draw from logits."""

from __future__ import annotations

import numpy as np

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import PolicyError
from rollout_cli.policies.noise import Floats


def draw_categories(logits: Array, noise: Floats | None, shape: tuple[int, int]) -> Array:
    """Return a category of each row's softmax, int64 (n,).

    Args:
        logits: Floats (n, number of categories).
        noise: Gumbel noise of this shape; None for the likeliest category.
        shape: The shape that the logits must have.

    Raises:
        PolicyError: If they have another shape, or are neither finite nor -inf, for never.
    """
    check_shape("logits", logits, shape)
    # A NaN counts as the highest.
    if not np.isfinite(logits.max(axis=1)).all():
        raise PolicyError(f"the module gave logits {logits}", hint="logits must be finite, or -inf for never")
    # The likeliest after adding Gumbel noise is a draw from the softmax.
    return np.asarray((logits if noise is None else logits + noise).argmax(axis=1))


def check_shape(noun: str, values: Array, expected: tuple[int, ...]) -> None:
    """Raise PolicyError where actions or logits have another shape than `expected`."""
    if values.shape != expected:
        raise PolicyError(
            f"the module gave {noun} of shape {values.shape}, expected {expected}",
            hint="its output must have one row an observation",
        )
