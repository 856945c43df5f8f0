"""Two controllers of CartPole that stand for two checkpoints of one training run."""  # noqa: INP001

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Expert:
    """Pushes the cart below the pole, with noise that stands for the sampling of a trained policy.

    Args:
        noise: Its standard deviation, in the unit of the pole's tilt and turn.
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
    """The same controller, earlier in its training: it makes about a third of the expert's return."""

    def __init__(self) -> None:
        super().__init__(noise=0.75)
