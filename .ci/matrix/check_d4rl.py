"""D4RL's `OfflineEnv.get_dataset`, `sequence_dataset` and `qlearning_dataset`, by their own code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gymnasium
import numpy as np
from values import episodes, run, same


def check(dataset: Path, exported: Path) -> str:
    # Its code asks for the old gym, of which the loader takes a base class and a colour.
    gymnasium.utils.colorize = str
    sys.modules |= {"gym": gymnasium, "gym.utils": gymnasium.utils}
    os.environ["D4RL_SUPPRESS_IMPORT_ERROR"] = "1"
    sys.stdout = sys.stderr
    import d4rl
    from d4rl.offline_env import OfflineEnv

    expected = episodes(dataset)
    env = OfflineEnv()
    env.observation_space = gymnasium.spaces.Box(-1, 1, expected[0].observations.shape[1:])
    env.action_space = gymnasium.spaces.Box(-1, 1, expected[0].actions.shape[1:])
    read = env.get_dataset(h5path=str(exported))
    sequences = list(d4rl.sequence_dataset(env, dict(read)))
    assert len(sequences) == len(expected)
    for ours, theirs in zip(expected, sequences, strict=True):
        ends = np.arange(ours.length) == ours.length - 1
        same("observations", ours.observations[:-1], theirs["observations"])
        same("next_observations", ours.observations[1:], theirs["next_observations"])
        same("actions", ours.actions, theirs["actions"])
        same("rewards", ours.rewards, theirs["rewards"])
        same("terminals", ends & ours.terminated, theirs["terminals"])
        same("timeouts", ends & ours.truncated & (not ours.terminated), theirs["timeouts"])
        for name in ("observations", "actions"):
            assert theirs[name].dtype == getattr(ours, name).dtype, name
    # It leaves out the last step of each truncated episode, and the last row of the file.
    kept = [each.length - (not each.terminated) for each in expected]
    kept[-1] = expected[-1].length - 1
    learning = d4rl.qlearning_dataset(env, dict(read))
    chosen = [each.observations[:count] for each, count in zip(expected, kept, strict=True)]
    same("q-learning", np.concatenate(chosen).astype(np.float32), learning["observations"])
    return ""


run(check, "d4rl")
