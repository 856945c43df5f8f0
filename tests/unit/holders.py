"""What holds random generators, and the paths by which they are found."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_cli.generators import GeneratorSet


def rng() -> np.random.Generator:
    return np.random.default_rng()


def paths_below(item: Any) -> list[str]:
    return GeneratorSet({"policy": item}).paths


class Holder:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)
