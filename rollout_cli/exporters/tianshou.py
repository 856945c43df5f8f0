"""Columns in HDF5, for `ReplayBuffer.from_data` of Tianshou: https://tianshou.org."""

from __future__ import annotations

from collections.abc import Mapping

from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.exporters.format import Array, Export, Format, at_ends
from rollout_cli.exporters.hdf5 import write_columns


def write(export: Export) -> None:
    """Write one column an argument of `from_data`, and nothing that a reader would have to unpickle."""
    write_columns(export, _columns)


def _columns(batch: EpisodeBatch) -> Mapping[str, Array]:
    return {
        "obs": batch.observations,
        "act": batch.actions,
        "rew": batch.rewards,
        "terminated": at_ends(batch, batch.terminated),
        "truncated": at_ends(batch, batch.truncated),
        "done": at_ends(batch, batch.terminated | batch.truncated),
        "obs_next": batch.next_observations,
    }


FORMAT = Format("tianshou", "Tianshou's ReplayBuffer", write, suffixes=(".hdf5", ".h5"))
