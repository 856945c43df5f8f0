"""Two CartPole controllers that represent two checkpoints of one training run."""  # noqa: INP001

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Expert:
    """Keeps the cart under the pole, with noise that represents the sampling of a trained policy.

    Args:
        noise: Standard deviation of the noise added to the control signal.
    """

    def __init__(self, noise: float = 0.4) -> None:
        self.noise = noise
        self.rng = np.random.default_rng()

    def get_action(self, observation: npt.NDArray[np.float32]) -> tuple[int, dict[str, Any]]:
        """Return 1 to push to the right, 0 to the left."""
        position, velocity, tilt, turn = observation
        lean = 2.0 * tilt + turn + 0.1 * position + 0.2 * velocity
        return int(lean + self.rng.normal(scale=self.noise) > 0), {}


class Medium(Expert):
    """The same controller with more noise, like an earlier checkpoint: about a third of the expert's return."""

    def __init__(self) -> None:
        super().__init__(noise=0.75)
