"""An episode as a dataset's reader would give it, had it been written to that dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.decoding import decode_batch
from rollout_cli.dataset.episodes import EpisodeFacts, EpisodeRows, encode_episodes
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema, infos_from_features
from rollout_cli.dataset.steps import Piece, encode_steps
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch


def as_stored(chunk: Chunk, env_spec: EnvSpec, features: Mapping[str, Any]) -> EpisodeBatch:
    """Return whole episodes in the types of a dataset's columns, so that they can be compared with stored ones.

    Args:
        chunk: The episodes.
        env_spec: The dataset's spaces.
        features: The `features` of its info.json.
    """
    spaces = SpaceSchema.of(env_spec)
    schema = DatasetSchema.of(spaces, infos_from_features(features), {})
    ids = np.zeros(chunk.n_episodes, np.int64)
    steps, _ = encode_steps(schema, [Piece(chunk, ids, chunk.last_observations)])
    facts = EpisodeFacts(chunk, ids, chunk.lengths, (chunk.rewards,))
    own, _ = encode_episodes(schema, EpisodeRows.of([facts]), root_seed=0, place=(0, 0), first_row=0)
    return decode_batch(spaces, steps, own)
