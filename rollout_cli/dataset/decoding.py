"""From the rows of both tables to an EpisodeBatch."""

from __future__ import annotations

import pyarrow as pa

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.features import SpaceColumn
from rollout_cli.dataset.info_columns import decode_infos
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.spaces import unflatten


def decode_batch(spaces: SpaceSchema, steps: pa.Table, own: pa.Table) -> EpisodeBatch:
    """Return episodes from their rows of `data` and of `meta/episodes`.

    Raises:
        ValueError: If the rows do not fit each other.
        KeyError: If a column is missing.
    """
    spec = spaces.env_spec
    return EpisodeBatch(
        env_spec=spec,
        observations=unflatten(spec.observation_space, _decode(spaces.observation, steps)),
        actions=unflatten(spec.action_space, _decode(spaces.action, steps)),
        last_observations=unflatten(spec.observation_space, _decode(spaces.last_observation, own)),
        rewards=_numbers(steps, "reward"),
        step_types=_numbers(steps, "step_type"),
        env_infos=decode_infos("env_info", steps),
        agent_infos=decode_infos("agent_info", steps),
        episode_infos=decode_infos("episode_info", own),
        lengths=_numbers(own, "length"),
        terminated=_numbers(own, "terminated"),
        truncated=_numbers(own, "truncated"),
        numbers=_numbers(own, "episode_number"),
        seeds=_numbers(own, "seed"),
    )


def _decode(columns: tuple[SpaceColumn, ...], table: pa.Table) -> list[Array]:
    return [_writable(column.decode(table)) for column in columns]


def _numbers(table: pa.Table, name: str) -> Array:
    return _writable(table[name].combine_chunks().to_numpy(zero_copy_only=False))


def _writable(values: Array) -> Array:
    return values if values.flags.writeable else values.copy()
