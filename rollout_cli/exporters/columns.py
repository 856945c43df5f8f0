"""HDF5 files of columns with a row a step: D4RL's, and those of Tianshou's `ReplayBuffer.from_data`.

See https://github.com/Farama-Foundation/D4RL/wiki/Tasks#using-the-datasets and https://tianshou.org.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rollout_cli.episodes.batch import EpisodeBatch, at_ends
from rollout_cli.episodes.spaces import Arrays
from rollout_cli.exporters.format import Export, Format
from rollout_cli.exporters.hdf5 import hdf5_file


def _write(columns: Callable[[EpisodeBatch], Arrays], export: Export) -> None:
    """Write a file of arrays with a row a step, many episodes at a time; `columns` gives those of a batch."""
    start = 0
    with hdf5_file(export) as file:
        for batch in export.blocks():
            stop = start + len(batch.rewards)
            for name, values in columns(batch).items():
                if name not in file:
                    file.create_dataset(name, (export.n_steps, *values.shape[1:]), values.dtype)
                file[name][start:stop] = values
            start = stop


def _d4rl(batch: EpisodeBatch) -> Arrays:
    """Return the columns that `get_dataset(h5path=...)` of D4RL's environments reads."""
    return {
        "observations": batch.observations,
        "actions": batch.actions,
        "rewards": batch.rewards,
        "next_observations": batch.next_observations,
        "terminals": at_ends(batch.lengths, batch.terminated),
        # Both would be a timeout to `qlearning_dataset`, which leaves the step out: the end would be lost.
        "timeouts": at_ends(batch.lengths, batch.truncated & ~batch.terminated),
    }


def _tianshou(batch: EpisodeBatch) -> Arrays:
    """Return the arguments of `from_data`, and nothing that a reader would have to unpickle."""
    return {
        "obs": batch.observations,
        "act": batch.actions,
        "rew": batch.rewards,
        "terminated": at_ends(batch.lengths, batch.terminated),
        "truncated": at_ends(batch.lengths, batch.truncated),
        "done": at_ends(batch.lengths, batch.terminated | batch.truncated),
        "obs_next": batch.next_observations,
    }


_SUFFIXES = (".hdf5", ".h5")
D4RL = Format("d4rl", "D4RL and its kin", partial(_write, _d4rl), suffixes=_SUFFIXES, both_ends=False)
TIANSHOU = Format("tianshou", "Tianshou's ReplayBuffer", partial(_write, _tianshou), suffixes=_SUFFIXES)
