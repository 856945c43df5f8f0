"""Check an export to imitation: `check_imitation.py DATASET EXPORTED`, with imitation installed."""

import json
import sys

import numpy as np
from imitation.data import rollout, serialize

import rollout_cli


def cast(values):
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


dataset, exported = sys.argv[1:]
episodes = list(rollout_cli.load(dataset))
loaded = serialize.load_with_rewards(exported)
assert len(loaded) == len(episodes)
for episode, trajectory in zip(episodes, loaded, strict=True):
    observations = np.concatenate([episode.observations, np.asarray(episode.last_observation)[None]])
    np.testing.assert_array_equal(trajectory.obs, cast(observations), strict=True)
    np.testing.assert_array_equal(trajectory.acts, cast(episode.actions), strict=True)
    np.testing.assert_array_equal(trajectory.rews, episode.rewards, strict=True)
    assert trajectory.terminal
    assert len(trajectory.infos) == len(episode)
    assert trajectory.infos[-1] == {"terminated": episode.terminated, "truncated": episode.truncated}
transitions = rollout.flatten_trajectories(loaded)
assert len(transitions) == sum(map(len, episodes))
print(json.dumps({"equal": True, "cast": "floats to float64, integers to int64"}))
