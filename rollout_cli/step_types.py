"""StepType: where in its episode a step stands."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class StepType(enum.IntEnum):
    """Where in its episode a step stands; stored as uint8."""

    FIRST = 0
    MID = 1
    TERMINAL = 2
    TIMEOUT = 3


def derive_step_types(lengths: Array, terminated: Array, truncated: Array, first_steps: Array | None = None) -> Array:
    """Return the step types of flat episodes, uint8 (sum of lengths,).

    Terminal wins over timeout, and an ending wins over FIRST in an episode of one step. An episode that neither
    terminated nor was truncated (a fragment) ends with MID, and one whose `first_steps` is above 0 begins with it.
    """
    ends = np.cumsum(lengths)
    out = np.full(int(ends[-1]) if len(ends) else 0, StepType.MID, np.uint8)
    nonempty = lengths > 0
    begins = nonempty if first_steps is None else nonempty & (first_steps == 0)
    out[(ends - lengths)[begins]] = StepType.FIRST
    out[ends[nonempty & truncated] - 1] = StepType.TIMEOUT
    out[ends[nonempty & terminated] - 1] = StepType.TERMINAL
    return out
