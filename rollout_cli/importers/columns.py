"""HDF5 files of columns with one row per step, of all episodes: D4RL's format, and Tianshou's of `from_data`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import (
    LAST_OBSERVATION,
    SEEDS,
    Foreign,
    Format,
    spans,
    with_last,
    with_unknown_last,
)
from rollout_cli.importers.hdf5 import array_of, has_members, hdf5_file, member
from rollout_cli.recording.arrays import EpisodeArrays

_D4RL = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_TIANSHOU = ("obs", "act", "rew", "terminated", "truncated", "obs_next")
_N_REQUIRED = 4
_INFOS = "infos"


@contextmanager
def _read(names: tuple[str, ...], path: Path) -> Iterator[Foreign]:
    """Open a file with these columns. An episode ends at a flag; steps after the last end are truncated."""
    _, _, _, terminal, timeout, following = names
    with hdf5_file(path) as file:
        terminals = array_of(file, terminal).astype(bool).ravel()
        timeouts = np.zeros_like(terminals)
        if timeout in file:
            timeouts = array_of(file, timeout).astype(bool).ravel()
        if len(terminals) == 0 or timeouts.shape != terminals.shape:
            raise DatasetFormatError(
                f"{path} has {len(terminals)} {terminal} and {len(timeouts)} {timeout}, expected one of each a step",
                code="import-damaged",
            )
        unknown = [SEEDS]
        if following not in file:
            unknown.append(LAST_OBSERVATION)
        if timeout not in file:
            unknown.append(f"{timeout}: an episode without a terminal is one with the next episode")
        yield Foreign(episodes=_episodes(file, names, terminals, timeouts), unknown=tuple(unknown))


def _episodes(file: Any, names: tuple[str, ...], terminals: Any, timeouts: Any) -> Iterator[EpisodeArrays]:
    observations, actions, rewards = (member(file, name) for name in names[:3])
    following = names[-1]
    for start, stop in spans(terminals | timeouts):
        seen = observations[start:stop]
        yield EpisodeArrays(
            observations=with_last(seen, member(file, following)[stop - 1 : stop])
            if following in file
            else with_unknown_last(seen),
            actions=actions[start:stop],
            rewards=rewards[start:stop],
            terminated=bool(terminals[stop - 1]),
            truncated=bool(timeouts[stop - 1] or not terminals[stop - 1]),
            env_infos=_infos(file, start, stop),
        )


def _infos(file: Any, start: int, stop: int) -> dict[str, Any]:
    """Return the columns of the group `infos`, such as `qpos`."""
    if _INFOS not in file:
        return {}
    group = member(file, _INFOS)
    return {name: member(group, name)[start:stop] for name in group if hasattr(group[name], "dtype")}


def _format(name: str, title: str, names: tuple[str, ...]) -> Format:
    required = names[:_N_REQUIRED]
    return Format(name, title, lambda path: has_members(path, *required), partial(_read, names))


D4RL = _format("d4rl", "D4RL and its kin", _D4RL)
TIANSHOU = _format("tianshou", "Tianshou", _TIANSHOU)
