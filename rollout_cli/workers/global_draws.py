"""GlobalDraws: does code draw from the global random generators, which all rows of a worker share?"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from rollout_cli.workers.checks import BadValueError

_FIRST, _ONE_OF = 8, 256
"""A look costs as much as many a step, so it looks at the first steps, and at one of many from then on."""


class GlobalDraws:
    """Looks at the generators around the calls of some steps.

    Attributes:
        reason: Why episodes cannot be reproduced; empty while nobody was seen to draw.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._steps = 0
        self._before: tuple[Any, ...] = ()
        self._between: tuple[Any, ...] = ()

    def is_due(self) -> bool:
        """Count a step; return whether it is one to look at."""
        self._steps += 1
        return self._steps <= _FIRST or self._steps % _ONE_OF == 0

    def begin(self) -> None:
        """Look before the policy acts."""
        self._before = _states()

    def policy_acted(self) -> None:
        """Look after the policy acted."""
        self._between = _states()
        if self._between != self._before:
            self.reason = "the policy draws from a global random generator, which all rows share"

    def env_stepped(self, *, may_refuse: bool) -> None:
        """Look after the environment's step.

        Raises:
            BadValueError: If it drew, in one of the first steps, and `may_refuse`: a run of hours is not given up.
        """
        if _states() == self._between:
            return
        self.reason = "the environment draws from a global random generator, which all rows share"
        if may_refuse and self._steps <= _FIRST:
            hint = "run one environment a worker and more workers, or let it draw from self.np_random"
            raise BadValueError(self.reason, hint)


def _states() -> tuple[Any, ...]:
    kind, keys, position, *rest = np.random.get_state(legacy=True)
    torch: Any = sys.modules.get("torch")
    default = getattr(torch, "default_generator", None)
    of_torch = None if default is None else default.get_state().numpy().tobytes()
    return random.getstate(), kind, np.asarray(keys).tobytes(), position, rest, of_torch
