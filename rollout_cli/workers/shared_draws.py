"""SharedDraws: does code draw from generators that all rows of a worker share?"""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import numpy as np

from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.workers.checks import BadValueError

_FIRST, _ONE_OF = 8, 256
"""A look costs as much as many a step, so it looks at the first steps, and at one of many from then on."""

_SEED_ROWS_HINT = "let it offer seed_rows(mask, seeds), and draw each row's numbers from a generator of its own"
_ENV_HINT = "run one environment a worker and more workers, or let it draw from self.np_random"


class SharedDraws:
    """Looks at the global generators, and at the policy's own, around the calls of some steps.

    Attributes:
        reason: Why episodes cannot be reproduced; empty while nobody was seen to draw.

    Args:
        policy: The policy, where it draws for all rows at once; None where each row has its own.
        root: The run's root seed.
    """

    def __init__(self, policy: Any, root: int) -> None:
        self.reason = ""
        self._policy, self._root = policy, root
        self._steps = 0
        self._own: list[Any] = []
        self._before: tuple[Any, ...] = ()
        self._between: tuple[Any, ...] = ()

    def is_due(self) -> bool:
        """Count a step; return whether it is one to look at."""
        self._steps += 1
        return self._steps <= _FIRST or self._steps % _ONE_OF == 0

    def begin(self) -> None:
        """Look before the policy acts."""
        if self._policy is not None and self._steps <= _FIRST:
            # It may make a generator as late as in its first step.
            seeder = EpisodeSeeder(self._root)
            seeder.watch(policy=self._policy)
            self._own = seeder.generators
        self._before = (*_global_states(), *map(_state, self._own))

    def policy_acted(self) -> None:
        """Look after the policy acted."""
        self._between = _global_states()
        if (*self._between, *map(_state, self._own)) != self._before:
            self.reason = f"the policy draws from a random generator that all rows share: {_SEED_ROWS_HINT}"

    def env_stepped(self, *, may_refuse: bool) -> None:
        """Look after the environment's step.

        Raises:
            BadValueError: If it drew, in one of the first steps, and `may_refuse`: a run of hours is not given up.
        """
        if _global_states() == self._between:
            return
        self.reason = "the environment draws from a global random generator, which all rows share"
        if may_refuse and self._steps <= _FIRST:
            raise BadValueError(self.reason, _ENV_HINT)


def _global_states() -> tuple[Any, ...]:
    torch: Any = sys.modules.get("torch")
    default = getattr(torch, "default_generator", None)
    return random.getstate(), pickle.dumps(np.random.get_state()), None if default is None else _state(default)


def _state(generator: Any) -> Any:
    """Return a generator's state, to compare."""
    if hasattr(generator, "manual_seed"):
        return generator.get_state().numpy().tobytes()
    return pickle.dumps(generator)
