"""D4RL's HDF5 format: https://github.com/Farama-Foundation/D4RL/wiki/Tasks#using-the-datasets."""

from __future__ import annotations

from collections.abc import Mapping

from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.exporters.format import Array, Export, Format, at_ends
from rollout_cli.exporters.hdf5 import write_columns


def write(export: Export) -> None:
    """Write one column a field, as `get_dataset(h5path=...)` of D4RL's environments reads them."""
    write_columns(export, _columns)


def _columns(batch: EpisodeBatch) -> Mapping[str, Array]:
    return {
        "observations": batch.observations,
        "actions": batch.actions,
        "rewards": batch.rewards,
        "next_observations": batch.next_observations,
        "terminals": at_ends(batch, batch.terminated),
        # Both would be a timeout to `qlearning_dataset`, which leaves the step out: the end would be lost.
        "timeouts": at_ends(batch, batch.truncated & ~batch.terminated),
    }


FORMAT = Format("d4rl", "D4RL and its kin", write, suffixes=(".hdf5", ".h5"), both_ends=False)
