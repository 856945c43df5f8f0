"""RLlib's recorded episodes: https://docs.ray.io/en/latest/rllib/rllib-offline.html."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from rollout_cli.dataset.batches import grouped
from rollout_cli.episodes.plain import Fields
from rollout_cli.episodes.spaces import Space, Tree, map_tree
from rollout_cli.errors import UnsupportedSpaceError, UsageError
from rollout_cli.exporters.format import ALL, Export, Format
from rollout_cli.exporters.parquet import ParquetFiles
from rollout_cli.exporters.source import EpisodeLike, EpisodeSource, with_last
from rollout_cli.sources.loading import needing

_ROW_GROUP_BYTES = 32 << 20
_MOST_BYTES = (1 << 31) - 1
"""The maximum bytes of a value in a binary column."""

_UNUSED = (
    "agent_id",
    "module_id",
    "multi_agent_episode_id",
    "extra_model_outputs",
    "_observation_space",
    "_action_space",
    "_start_time",
    "_last_step_time",
)


def write(export: Export) -> None:
    """Write Parquet files with one `SingleAgentEpisode` per row, for `input_read_episodes=True`."""
    for space in (export.env_spec.observation_space, export.env_spec.action_space):
        _check_keys(space)
    with ParquetFiles(lambda number: export.path / f"episodes-{number:05}.parquet") as data:
        for items in grouped(_packed(export.source), len, _ROW_GROUP_BYTES):
            rows = [pa.array([item], pa.binary()) for item in items]
            data.write(pa.table({"item": pa.chunked_array(rows)}))


def _check_keys(space: Space) -> None:
    """Raise UnsupportedSpaceError for an integer key of a Dict space: msgpack writes it, but RLlib fails."""
    children: Iterable[Space] = ()
    if isinstance(space, spaces.Tuple):
        children = space.spaces
    elif isinstance(space, spaces.Dict):
        children = space.values()
        for key in space:
            if not isinstance(key, str):
                raise UnsupportedSpaceError(
                    f"rllib cannot store a Dict space with the key {key!r}, expected a string",
                    code="format-key",
                    hint="flatten the space to a vector: {set=flatten=true}; "
                    "or wrap the environment to rename the key",
                )
    for child in children:
        _check_keys(child)


def _packed(source: EpisodeSource) -> Iterator[bytes]:
    with needing("msgpack"):
        import msgpack  # noqa: PLC0415 - an optional package
    with needing("msgpack-numpy"):
        import msgpack_numpy  # noqa: PLC0415 - as above

    for index, episode in enumerate(source):
        item = msgpack.packb(_state(episode, index), default=msgpack_numpy.encode)
        if len(item) > _MOST_BYTES:
            raise UsageError(
                f"rllib cannot store episode {index} of {len(item):,} bytes, expected at most {_MOST_BYTES:,}",
                code="episode-too-large",
                hint="read the dataset with RLlib directly: docs/use/rllib.md",
            )
        yield item


def _state(episode: EpisodeLike, index: int) -> Fields:
    """Return the state of a finalized `SingleAgentEpisode`, in the form of its `get_state`."""
    observations = map_tree(with_last, episode.observations, episode.last_observation)
    return dict.fromkeys(_UNUSED) | {
        "id_": str(index),  # If ids repeat, RLlib keeps only the last episode.
        "observations": _buffer(map_tree(_numpy, observations)),
        "actions": _buffer(map_tree(_numpy, episode.actions)),
        "rewards": _buffer(episode.rewards),
        "infos": _buffer([{}] * (len(episode) + 1)),
        "is_terminated": episode.terminated,
        "is_truncated": episode.truncated,
        "t_started": 0,
        "t": len(episode),
        "custom_data": {},
    }


def _buffer(data: Tree) -> Fields:
    return {"data": data, "lookback": 0, "finalized": not isinstance(data, list), "space": None}


def _numpy(values: Any) -> Any:
    # Object arrays would be pickled.
    return values.astype(np.str_) if values.dtype == object else values


FORMAT = Format("rllib", "RLlib: whole episodes", write, leaves=ALL, nested=True)
