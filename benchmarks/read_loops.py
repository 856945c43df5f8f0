"""Loops that read a dataset in the reading cases: `python -m benchmarks.read_loops MODE KIND STEPS OUTPUT`.

Its output has the format of the other tools' drivers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.arrays import KINDS, cache, flat, groups
from benchmarks.peers.driver import Clock, main, read
from rollout_cli import EnvSpec, load
from rollout_cli.dataset.folder import OutputFolder
from rollout_cli.dataset.metadata import DatasetSettings
from rollout_cli.dataset.reader import Episode
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable

BATCH, WINDOW = 256, 20


def prepared(name: str) -> Path:
    """Return a dataset of a kind of episodes, which the first call writes."""
    path, kind = cache() / name, KINDS[name]
    if path.is_dir():
        return path
    low, high = (0, 255) if kind.dtype == "u1" else (-np.inf, np.inf)
    spec = EnvSpec(spaces.Box(low, high, kind.shape, np.dtype(kind.dtype)), spaces.Discrete(2), kind.length)
    unfinished, first = cache() / f"{name}.unfinished", 0
    with DatasetWriter(
        OutputFolder(unfinished, overwrite=True), DatasetSettings(spec, [{"root_seed": 0}])
    ) as writer:
        for observations, actions, rewards in groups(kind):
            count = len(observations)
            numbers = np.arange(first, first + count)
            writer.write(
                Chunk(
                    numbers=numbers,
                    seeds=numbers,
                    lengths=np.full(count, kind.length, np.int64),
                    terminated=np.ones(count, bool),
                    truncated=np.zeros(count, bool),
                    workers=np.zeros(count, np.int32),
                    wall_times=np.full(count, 1e-3),
                    observations=(observations[:, :-1].reshape(-1, *kind.shape),),
                    actions=(actions.reshape(-1),),
                    rewards=rewards.reshape(-1),
                    last_observations=(observations[:, -1],),
                    env_infos=InfoTable(actions.size),
                    agent_infos=InfoTable(actions.size),
                    episode_infos=InfoTable(count),
                )
            )
            first += count
        writer.close(status="complete")
    return unfinished.rename(path)


def episodes(name: str, steps: int, clock: Clock) -> int:
    """Read complete episodes in order, repeatedly."""
    dataset, taken = load(prepared(name)), 0
    with clock:
        while taken < steps:
            for episode in dataset:
                read_all(episode)
                taken += len(episode)
                if taken >= steps:
                    break
    return taken


def read_all(episode: Episode) -> tuple[Any, ...]:
    """Access all fields of an episode."""
    flags = episode.terminated, episode.truncated
    return (episode.observations, episode.actions, episode.rewards, episode.last_observation, *flags)


def items(name: str, count: int, clock: Clock) -> int:
    """Read episodes at random indices; all row groups are in memory."""
    dataset = load(prepared(name))
    for episode in dataset:
        read_all(episode)
    places = np.random.default_rng(0).integers(len(dataset), size=count).tolist()
    with clock:
        for place in places:
            read_all(dataset[place])
    return count


def transitions(name: str, steps: int, clock: Clock) -> int:
    """Read batches of random transitions."""
    return _take(load(prepared(name)).transitions(), steps // BATCH, BATCH, clock)


def windows(name: str, steps: int, clock: Clock) -> int:
    """Read batches of random windows without padding."""
    return _take(
        load(prepared(name)).windows(WINDOW, pad=None), steps // BATCH // WINDOW, BATCH * WINDOW, clock
    )


def _take(flat_dataset: Any, batches: int, steps: int, clock: Clock) -> int:
    rng = np.random.default_rng(0)
    places = [rng.integers(len(flat_dataset), size=BATCH) for _ in range(batches)]
    with clock:
        for some in places:
            flat_dataset[some]
    return batches * steps


def numpy_transitions(name: str, steps: int, clock: Clock) -> int:
    """Read the same rows from plain arrays with `take`."""
    columns, rng = (
        [values for key, values in flat(KINDS[name]).items() if key != "episodes"],
        np.random.default_rng(0),
    )
    places = [rng.integers(len(columns[0]), size=BATCH) for _ in range(steps // BATCH)]
    with clock:
        for some in places:
            [values.take(some, 0) for values in columns]
    return len(places) * BATCH


def numpy_windows(name: str, steps: int, clock: Clock) -> int:
    """Read windows from plain arrays with `take`; `starts` are their first rows."""
    kind, rng = KINDS[name], np.random.default_rng(0)
    arrays = flat(kind)
    columns = [arrays[key] for key in ("observations", "actions", "rewards")]
    firsts = np.flatnonzero(np.arange(len(columns[0])) % kind.length <= kind.length - WINDOW)
    places = [rng.choice(firsts, BATCH) for _ in range(steps // BATCH // WINDOW)]
    with clock:
        for some in places:
            rows = some[:, None] + np.arange(WINDOW)
            [values.take(rows, 0) for values in columns]
    return len(places) * BATCH * WINDOW


def opened(name: str, count: int, clock: Clock) -> int:
    """Open a dataset repeatedly, after a first call that imports the libraries."""
    path = prepared(name)
    load(path)
    with clock:
        for _ in range(count):
            load(path)
    return count


def stream(name: str, steps: int, clock: Clock) -> int:
    """Read the complete dataset once, an episode at a time."""
    del steps
    with clock:
        return sum(len(read_all(episode)[2]) for episode in load(prepared(name)))


def shuffled(name: str, steps: int, clock: Clock) -> int:
    """Read the complete dataset once, in shuffled batches."""
    del steps
    with clock:
        return sum(len(batch["rewards"]) for batch in load(prepared(name)).iter_batches(BATCH, shuffle=0))


def in_memory(name: str, steps: int, clock: Clock) -> int:
    """Load all transitions into memory."""
    del steps
    with clock:
        return len(load(prepared(name)).transitions())


MODES = (
    episodes,
    items,
    transitions,
    windows,
    numpy_transitions,
    numpy_windows,
    opened,
    stream,
    shuffled,
    in_memory,
)

if __name__ == "__main__":
    main("rollout-collect", {mode.__name__: partial(read, mode) for mode in MODES})
