"""HDF5 files of columns with one row per step, of all episodes: D4RL's format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import LAST_OBSERVATION, SEEDS, Foreign, Format, with_unknown_last
from rollout_cli.importers.hdf5 import array_of, has_members, hdf5_file, member
from rollout_cli.recording.arrays import EpisodeArrays

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_INFOS = "infos"


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a file of D4RL. An episode ends at `terminals` or `timeouts`; steps after the last end are truncated."""
    with hdf5_file(path) as file:
        terminals = array_of(file, "terminals").astype(bool).ravel()
        timeouts = np.zeros_like(terminals)
        if "timeouts" in file:
            timeouts = array_of(file, "timeouts").astype(bool).ravel()
        if len(terminals) == 0 or timeouts.shape != terminals.shape:
            raise DatasetFormatError(
                f"{path} has {len(terminals)} terminals and {len(timeouts)} timeouts, expected one of each a step",
                code="import-damaged",
            )
        unknown = [SEEDS]
        if "next_observations" not in file:
            unknown.append(LAST_OBSERVATION)
        if "timeouts" not in file:
            unknown.append("timeouts: an episode without a terminal is one with the next episode")
        yield Foreign(episodes=_episodes(file, terminals, timeouts), unknown=tuple(unknown))


def _episodes(file: Any, terminals: Any, timeouts: Any) -> Iterator[EpisodeArrays]:
    stops = np.flatnonzero(terminals | timeouts) + 1
    if len(stops) == 0 or stops[-1] != len(terminals):
        stops = np.append(stops, len(terminals))
    observations, actions, rewards = (member(file, name) for name in _REQUIRED[:3])
    start = 0
    for stop in stops.tolist():
        seen = observations[start:stop]
        if "next_observations" in file:
            seen = np.concatenate([seen, member(file, "next_observations")[stop - 1 : stop]])
        else:
            seen = with_unknown_last(seen)
        yield EpisodeArrays(
            observations=seen,
            actions=actions[start:stop],
            rewards=rewards[start:stop],
            terminated=bool(terminals[stop - 1]),
            truncated=not terminals[stop - 1],
            env_infos=_infos(file, start, stop),
        )
        start = stop


def _infos(file: Any, start: int, stop: int) -> dict[str, Any]:
    """Return the columns of the group `infos`, such as `qpos`."""
    if _INFOS not in file:
        return {}
    group = member(file, _INFOS)
    return {name: member(group, name)[start:stop] for name in group if hasattr(group[name], "dtype")}


D4RL = Format("d4rl", "D4RL and its kin", lambda path: has_members(path, *_REQUIRED), read)
