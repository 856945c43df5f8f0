"""RLlib: the episodes that `OfflinePreLearner` makes of Parquet where `input_read_episodes` is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import msgpack_numpy
import pyarrow.parquet as pq
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from values import episodes, leaves, run, same


def check(dataset: Path, exported: Path) -> str:
    expected = episodes(dataset)
    loaded = [
        SingleAgentEpisode.from_state(msgpack.unpackb(state, object_hook=msgpack_numpy.decode))
        for state in pq.read_table(exported)["item"].to_pylist()
    ]
    assert len({each.id_ for each in loaded}) == len(loaded) == len(expected)
    for ours, theirs in zip(expected, loaded, strict=True):
        assert len(theirs) == ours.length
        assert theirs.is_terminated == bool(ours.terminated)
        assert theirs.is_truncated == bool(ours.truncated)
        for values, actual in (
            (ours.observations, theirs.get_observations()),
            (ours.actions, theirs.get_actions()),
            (ours.rewards, theirs.get_rewards()),
        ):
            for path, leaf in leaves(values).items():
                equal(path, leaf, at(actual, path))
    return ""


def at(tree: Any, path: str) -> Any:
    for key in path.split(".") if path else []:
        tree = tree[int(key) if isinstance(tree, list) else key]  # Msgpack has no tuples.
    return tree


def equal(what: str, expected: Any, actual: Any) -> None:
    same(what, expected, actual)
    assert expected.dtype.kind == "U" or actual.dtype == expected.dtype, what


run(check, "ray")
