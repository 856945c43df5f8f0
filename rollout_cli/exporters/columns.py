"""HDF5 files of columns with one row per step: D4RL's format, and `ReplayBuffer.from_data` of Tianshou.

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
    """Write arrays with one row per step; `columns` returns the arrays of a batch of episodes."""
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
        # `qlearning_dataset` drops the step of a timeout; a step with both flags would lose its terminal.
        "timeouts": at_ends(batch.lengths, batch.truncated & ~batch.terminated),
    }


def _tianshou(batch: EpisodeBatch) -> Arrays:
    """Return the arguments of `from_data`, as arrays that need no unpickling."""
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
