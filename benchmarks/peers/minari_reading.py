"""Minari's datasets in HDF5, read in order."""
# /// script
# dependencies = ["minari[create,hdf5]", "pillow"]
# ///

from __future__ import annotations

import os
from functools import partial

import numpy as np
from gymnasium import spaces

from benchmarks.arrays import KINDS, cache, groups
from benchmarks.peers.driver import Clock, main, read


def episodes(name: str, steps: int, clock: Clock) -> int:
    """Read complete episodes in order; the first call creates the dataset."""
    folder, kind = cache() / f"minari-{name}", KINDS[name]
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    # Minari reads the path when it is imported.
    import minari  # noqa: PLC0415
    from minari.data_collector import EpisodeBuffer  # noqa: PLC0415

    names = [str(path.parent.parent.name) for path in folder.glob("*/data/metadata.json")]
    dataset_id = "reading-v0"
    if dataset_id not in names:
        low, high = (0, 255) if kind.dtype == "u1" else (-1e9, 1e9)
        buffers = [
            EpisodeBuffer(
                id=None,
                observations=seen,
                actions=done,
                rewards=gained,
                terminations=[False] * (kind.length - 1) + [True],
                truncations=[False] * kind.length,
            )
            for group in groups(kind)
            for seen, done, gained in zip(*group, strict=True)
        ]
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            observation_space=spaces.Box(low, high, kind.shape, np.dtype(kind.dtype).type),
            action_space=spaces.Discrete(2),
            data_format="hdf5",
        )
    dataset, taken = minari.load_dataset(dataset_id), 0
    with clock:
        while taken < steps:
            for episode in dataset.iterate_episodes():
                taken += len(episode.rewards)
                if taken >= steps:
                    break
    return taken


if __name__ == "__main__":
    main("minari", {"episodes": partial(read, episodes)})
