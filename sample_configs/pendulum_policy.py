"""A behavior policy for Pendulum-v1: energy-based swing-up, balancing at the top, and noise."""  # noqa: INP001

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_NEAR_TOP = 0.9
"""Cosine of the angle above which the controller balances instead of swinging up."""


class NoisyController:
    """Demonstrates a policy with a random generator, and with infos in addition to its actions."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def get_action(
        self, observation: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Return a noisy torque, and the torque without noise as an info."""
        cosine, sine, velocity = observation
        missing_energy = 15.0 - (0.5 * velocity**2 + 15.0 * cosine)
        pushes = 2.0 if missing_energy * velocity >= 0.0 else -2.0
        near_top = cosine > _NEAR_TOP
        torque = -12.0 * sine - 3.0 * velocity if near_top else pushes
        noisy = torque + self.rng.normal(scale=0.3)
        return np.clip([noisy], -2.0, 2.0).astype(np.float32), {"torque": float(torque)}
