"""A generator that stands in for torch's, which the tests do without."""

from __future__ import annotations

import random
from typing import Any


class StandInGenerator:
    """What torch's default generator offers, on Python's generator."""

    def __init__(self) -> None:
        self._random = random.Random()  # Of any state: whoever forgets to seed it is found out.

    def manual_seed(self, seed: int) -> None:
        self._random.seed(seed)

    def get_state(self) -> Any:
        return self._random.getstate()

    def set_state(self, state: Any) -> None:
        self._random.setstate(state)

    def draw(self) -> float:
        return self._random.random()
