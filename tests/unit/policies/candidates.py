"""A policy that offers get_action alone, the spaces it is asked in, and observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec

ENV_SPEC = EnvSpec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4))
OBSERVATION = np.array([0.1, 0.2, 0.3], np.float32)
BATCH = np.array([[0.1, 0.2, 0.3], [0.9, 0.0, 0.0]], np.float32)


class Lone:
    """Offers get_action alone."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        first = float(observation[0])
        info: dict[str, Any] = {"first": first}
        if first > 0.5:
            info["big"] = 1
        return np.int64(first > 0.5), info
