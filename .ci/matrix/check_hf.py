"""Check an export to Hugging Face: `check_hf.py DATASET EXPORTED`, with datasets and pillow installed."""

import json
import sys

import numpy as np
from datasets import load_dataset

import rollout_cli


def leaves(name, tree):
    if isinstance(tree, dict | tuple):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from leaves(f"{name}.{key}", tree[key])
    else:
        yield name, tree


def same(name, expected, column, feature):
    assert len(column) == len(expected), name
    if type(feature).__name__ == "Image":
        shape = expected.shape[1:3] if expected.shape[3:] == (1,) else expected.shape[1:]
        for value, pixels in zip(expected, column, strict=True):
            np.testing.assert_array_equal(np.array(pixels), value.reshape(shape), err_msg=name, strict=True)
    elif expected.dtype == object:
        assert list(column) == expected.tolist(), name
    else:
        np.testing.assert_array_equal(np.array(column, expected.dtype), expected, err_msg=name, strict=True)


dataset, exported = sys.argv[1:]
batch = rollout_cli.load(dataset).to_episode_batch()
steps = load_dataset(exported, split="train", cache_dir=sys.argv[2] + ".cache")
ends = load_dataset(exported, "episodes", split="train", cache_dir=sys.argv[2] + ".cache")
stops = np.cumsum(batch.lengths)
flags = {name: np.zeros(len(batch.rewards), bool) for name in ("terminated", "truncated")}
for name, values in flags.items():
    values[stops - 1] = getattr(batch, name)
expected = dict(leaves("observation", batch.observations)) | dict(leaves("action", batch.actions))
expected |= {"reward": batch.rewards, **flags}
expected["episode_id"] = np.repeat(np.arange(len(batch)), batch.lengths)
expected["step"] = np.concatenate([np.arange(length) for length in batch.lengths])
assert set(expected) == set(steps.column_names)
for name, values in expected.items():
    same(name, values, steps[name], steps.features[name])
expected = dict(leaves("last_observation", batch.last_observations))
expected |= {name: getattr(batch, name) for name in ("terminated", "truncated")}
expected |= {"length": batch.lengths, "seed": batch.seeds, "episode_number": batch.numbers}
assert set(expected) | {"episode_id", "return"} == set(ends.column_names)
for name, values in expected.items():
    same(name, values, ends[name], ends.features[name])
print(json.dumps({"equal": True, "cast": ""}))
