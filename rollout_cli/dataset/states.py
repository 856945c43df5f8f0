"""Simulator states that a run with `store_state` recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.infos import STATE
from rollout_cli.episodes.spaces import Array


def stored_states(run: Mapping[str, Any], episode: EpisodeBatch) -> Array | None:
    """Return the states after the reset and each step, (T + 1, ...); None if they are not stored.

    Args:
        run: The record of the episode's run: an info with the same key of another run is not a state.
        episode: A batch of one episode.
    """
    groups = (episode.episode_infos, episode.env_infos)
    if not run.get("collector", {}).get("store_state") or any(STATE not in group for group in groups):
        return None
    return np.array([state for group in groups for state in group[STATE]])
