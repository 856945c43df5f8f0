"""Check an export to zarr: `check_zarr.py DATASET EXPORTED`, with zarr 2 installed.

Diffusion Policy is no package. What its `ReplayBuffer.copy_from_path` asks of a group is checked here: the
arrays of `data` are as long as the last of `meta/episode_ends`, and each is copied whole.
"""

import json
import sys

import numpy as np
import zarr

import rollout_cli


def leaves(name, tree):
    if isinstance(tree, dict | tuple):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from leaves(f"{name}.{key}", tree[key])
    else:
        yield name, tree


dataset, exported = sys.argv[1:]
batch = rollout_cli.load(dataset).to_episode_batch()
source = zarr.group(zarr.DirectoryStore(exported))
root = zarr.group(zarr.MemoryStore())
zarr.copy_store(source.store, root.store, source_path="/data", dest_path="/data")
zarr.copy_store(source.store, root.store, source_path="/meta", dest_path="/meta")
stops = np.cumsum(batch.lengths)
np.testing.assert_array_equal(root["meta/episode_ends"][:], stops)
for name, values in root["data"].items():
    assert values.shape[0] == root["meta/episode_ends"][-1], name
flags = {name: np.zeros(len(batch.rewards), bool) for name in ("terminated", "truncated")}
for name, values in flags.items():
    values[stops - 1] = getattr(batch, name)
expected = dict(leaves("data/obs", batch.observations)) | dict(leaves("data/action", batch.actions))
expected |= dict(leaves("meta/last_obs", batch.last_observations))
expected |= {"data/reward": batch.rewards} | {f"data/{name}": values for name, values in flags.items()}
assert set(expected) | {"meta/episode_ends"} == {f"{g}/{n}" for g in ("data", "meta") for n in root[g]}
for name, values in expected.items():
    np.testing.assert_array_equal(root[name][:], values, err_msg=name, strict=True)
print(json.dumps({"equal": True, "cast": ""}))
