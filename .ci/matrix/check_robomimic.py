"""robomimic's `SequenceDataset`, as its training loop reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from values import episodes, run, same


def check(dataset: Path, exported: Path) -> str:
    from robomimic.utils import obs_utils
    from robomimic.utils.dataset import SequenceDataset
    from robomimic.utils.file_utils import get_env_metadata_from_dataset

    expected = episodes(dataset)
    names = expected[0].observations if isinstance(expected[0].observations, dict) else {"flat": None}
    obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": list(names)}})
    assert get_env_metadata_from_dataset(str(exported))["env_type"] == 2
    read = SequenceDataset(
        hdf5_path=str(exported),
        obs_keys=list(names),
        dataset_keys=("actions", "rewards", "dones"),
        hdf5_cache_mode="all",
        load_next_obs=True,
    )
    assert len(read) == sum(each.length for each in expected)
    rows = iter(range(len(read)))
    for ours in expected:
        for step in range(ours.length):
            row = read[next(rows)]
            for name in names:
                mine = ours.observations[name] if name != "flat" else ours.observations
                same(f"obs {step}", np.atleast_1d(mine[step]), row["obs"][name][0])
                same(
                    f"next_obs {step}",
                    np.atleast_1d(mine[step + 1]),
                    row["next_obs"][name][0],
                )
            same("actions", np.ravel(ours.actions[step]).astype(np.float32), row["actions"][0])
            same("rewards", ours.rewards[step].astype(np.float32), row["rewards"][0])
            same("dones", ours.terminated and step == ours.length - 1, row["dones"][0])
    return "float32 actions and rewards"


run(check, "robomimic")
