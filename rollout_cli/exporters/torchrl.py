"""TorchRL's memory-mapped tensors: https://docs.pytorch.org/tensordict/stable/saving.html."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rollout_cli.episodes.batch import EpisodeBatch, Tree, at_ends
from rollout_cli.episodes.plain import Fields
from rollout_cli.exporters.format import Array, Export, Format, check_keys

Key = tuple[str, ...]


def write(export: Export) -> None:
    """Write a folder for `TensorDict.load_memmap`: one file per tensor, and one `meta.json` per TensorDict."""
    check_keys("torchrl", export.env_spec, reserved=_new_node(0))
    steps = export.n_steps
    episodes = 0
    tensors = {}
    for batch in export.blocks():
        ids = np.repeat(np.arange(episodes, episodes + len(batch)), batch.lengths)
        for key, values in _tensors(batch, ids):
            file = export.path.joinpath(*key[:-1], f"{key[-1]}.memmap")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as stream:
                np.ascontiguousarray(values, values.dtype.newbyteorder("=")).tofile(stream)
            tensors[key] = {
                "device": "cpu",
                "shape": [steps, *values.shape[1:]],
                "dtype": f"torch.{values.dtype.name}",
                "is_nested": False,
            }
        episodes += len(batch)
    _write_metadata(export.path, tensors, steps)


def _tensors(batch: EpisodeBatch, episode_ids: Array) -> Iterator[tuple[Key, Array]]:
    """Yield each tensor of the batch with TorchRL's name and shape, (T, *shape)."""
    yield from _leaves(("observation",), batch.observations)
    yield from _leaves(("action",), batch.actions)
    yield ("episode",), episode_ids
    yield from _leaves(("next", "observation"), batch.next_observations)
    yield ("next", "reward"), batch.rewards.astype(np.float32)[:, None]
    flags = {
        "terminated": batch.terminated,
        "truncated": batch.truncated,
        "done": batch.terminated | batch.truncated,
    }
    for name, values in flags.items():
        yield ("next", name), at_ends(batch.lengths, values)[:, None]


def _leaves(key: Key, tree: Tree) -> Iterator[tuple[Key, Array]]:
    """Yield the arrays of a tree; the children of a dict or a tuple are named by their key or index."""
    if isinstance(tree, tuple):
        tree = dict(enumerate(tree))
    if isinstance(tree, dict):
        for name, child in tree.items():
            yield from _leaves((*key, str(name)), child)
    else:
        yield key, tree


def _write_metadata(folder: Path, tensors: dict[Key, Fields], steps: int) -> None:
    """Write `meta.json` of the root and of each nested TensorDict, which its parent lists too."""
    nodes: dict[Key, Fields] = {}
    for key, described in tensors.items():
        for depth, name in enumerate(key):
            node = nodes.setdefault(key[:depth], _new_node(steps))
            node[name] = described if depth == len(key) - 1 else {"type": "TensorDict"}
    for key, node in nodes.items():
        folder.joinpath(*key, "meta.json").write_text(json.dumps(node))


def _new_node(steps: int) -> Fields:
    return {"shape": [steps], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}


FORMAT = Format("torchrl", "TorchRL: a TensorDict of memory maps", write, nested=True, float64_rewards=False)
