"""Check an export to TorchRL: `check_torchrl.py DATASET EXPORTED`, with tensordict and torchrl installed."""

import json
import sys

import numpy as np
from tensordict import TensorDict
from torchrl.data import SliceSampler, TensorDictReplayBuffer, TensorStorage

import rollout_cli


def same(name, expected, actual):
    if isinstance(expected, dict | tuple):
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            same(f"{name}.{key}", expected[key], actual[str(key)])
        return
    actual = actual.numpy()
    np.testing.assert_array_equal(actual, expected, err_msg=name, strict=True)


dataset, exported = sys.argv[1:]
batch = rollout_cli.load(dataset).to_episode_batch()
loaded = TensorDict.load_memmap(exported)
ends = np.cumsum(batch.lengths) - 1
flags = {name: np.zeros((len(batch.rewards), 1), bool) for name in ("terminated", "truncated", "done")}
flags["terminated"][ends, 0], flags["truncated"][ends, 0] = batch.terminated, batch.truncated
flags["done"] = flags["terminated"] | flags["truncated"]
same("observation", batch.observations, loaded["observation"])
same("action", batch.actions, loaded["action"])
same("next", {"observation": batch.next_observations, **flags}, loaded["next"])
same("reward", batch.rewards.astype(np.float32)[:, None], loaded["next", "reward"])
same("episode", np.repeat(np.arange(len(batch)), batch.lengths), loaded["episode"])

buffer = TensorDictReplayBuffer(
    storage=TensorStorage(loaded),
    sampler=SliceSampler(slice_len=3, traj_key="episode", strict_length=False),
    batch_size=30,
)
assert len(buffer.sample()) > 0
print(json.dumps({"equal": True, "cast": "rewards to float32"}))
