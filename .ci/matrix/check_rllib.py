"""Check an export to RLlib: `check_rllib.py DATASET EXPORTED`, with ray[rllib] and msgpack-numpy installed."""

import json
import sys

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet as pq
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import rollout_cli


def same(name, expected, actual):
    if isinstance(expected, dict | tuple):
        assert len(actual) == len(expected), name
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            same(f"{name}.{key}", expected[key], actual[key])
    elif expected.dtype == object:
        assert actual.tolist() == expected.tolist(), name
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=name, strict=True)


def with_last(values, last):
    if isinstance(values, dict):
        return {key: with_last(values[key], last[key]) for key in values}
    if isinstance(values, tuple):
        return tuple(map(with_last, values, last))
    return np.concatenate([values, np.asarray(last, values.dtype)[None]])


dataset, exported = sys.argv[1:]
episodes = list(rollout_cli.load(dataset))
# As OfflinePreLearner reads `input_read_episodes`.
states = pq.read_table(exported)["item"].to_pylist()
loaded = [
    SingleAgentEpisode.from_state(msgpack.unpackb(state, object_hook=msgpack_numpy.decode)) for state in states
]
assert len({episode.id_ for episode in loaded}) == len(loaded) == len(episodes)
for episode, other in zip(episodes, loaded, strict=True):
    assert len(other) == len(episode)
    assert (other.is_terminated, other.is_truncated) == (episode.terminated, episode.truncated)
    same("observations", with_last(episode.observations, episode.last_observation), other.get_observations())
    same("actions", episode.actions, other.get_actions())
    same("rewards", episode.rewards, other.get_rewards())
print(json.dumps({"equal": True, "cast": ""}))
