"""d3rlpy's HDF5 format, version 2.1: https://d3rlpy.readthedocs.io."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollout_cli.importers.format import (
    LAST_OBSERVATION,
    SEEDS,
    Foreign,
    Format,
    integer_actions,
    with_unknown_last,
)
from rollout_cli.importers.hdf5 import array_of, has_members, hdf5_file
from rollout_cli.recording.arrays import EpisodeArrays


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a file of `ReplayBuffer.dump`.

    d3rlpy takes a next observation from the next row. So the last row of an episode that did not terminate is
    its last observation, and that of a terminated episode is unknown.
    """
    with hdf5_file(path) as file:
        n_episodes = int(array_of(file, "num_episodes"))
        yield Foreign(episodes=_episodes(file, n_episodes), unknown=(SEEDS, LAST_OBSERVATION))


def _episodes(file: Any, n_episodes: int) -> Iterator[EpisodeArrays]:
    for index in range(n_episodes):
        terminated = bool(array_of(file, f"terminated_{index}"))
        rewards = array_of(file, f"rewards_{index}").ravel()
        observations = _observations(file, index)
        actions = integer_actions(array_of(file, f"actions_{index}"))
        if terminated:
            observations = with_unknown_last(observations)
        elif len(rewards) == 1:  # One row and no next one: d3rlpy has no transition of it.
            continue
        else:
            rewards = rewards[:-1]
            actions = actions[:-1]
        yield EpisodeArrays(
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=not terminated,
        )


def _observations(file: Any, index: int) -> Any:
    """Return an array, or a tuple of arrays, which has a member each."""
    name = f"observations_{index}"
    if name in file:
        return array_of(file, name)
    parts: list[Any] = []
    while f"{name}_{len(parts)}" in file:
        parts.append(array_of(file, f"{name}_{len(parts)}"))
    return tuple(parts) if parts else array_of(file, name)


FORMAT = Format(
    "d3rlpy", "d3rlpy", lambda path: has_members(path, "num_episodes", "terminated_0", "rewards_0"), read
)
