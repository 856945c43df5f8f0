"""Batches of episodes with infos of all sorts, of few steps each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from tests.helpers.chunks import episode

BOX = EnvSpec(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))
TREE = EnvSpec(
    spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2,), np.float32),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.Text(3))),
        }
    ),
    spaces.MultiDiscrete([2, 3]),
)
LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def info(number: int, step: int) -> Mapping[Any, Any]:
    """Return one full value, one that some steps lack, one of changing type, a text and a vector."""
    sparse = {"sparse": step, "vector": np.full(2, step), "text": "t"} if (number + step) % 2 else {}
    return {"full": float(step), "mixed": step if step % 2 else "odd", **sparse}


def make(lengths: list[int], spec: EnvSpec = TREE) -> EpisodeBatch:
    """Return a batch whose episodes 0, 1, 2, … end by: termination, truncation, both, and so on."""
    chunks = [
        episode(at, length, spec=spec, env_info=info, agent_info=info, episode_info=info)
        for at, length in enumerate(lengths)
    ]
    return EpisodeBatch.from_chunks(spec, chunks)
