"""imitation: `serialize.load_with_rewards`, and the transitions that its algorithms take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from imitation.data import rollout, serialize
from values import episodes, run, same


def check(dataset: Path, exported: Path) -> str:
    expected = episodes(dataset)
    loaded = serialize.load_with_rewards(str(exported))
    assert len(loaded) == len(expected)
    for ours, theirs in zip(expected, loaded, strict=True):
        same("obs", cast(ours.observations), theirs.obs)
        same("acts", cast(ours.actions), theirs.acts)
        same("rews", ours.rewards, theirs.rews)
        assert theirs.terminal
        assert len(theirs.infos) == ours.length
        assert theirs.infos[-1] == {"terminated": bool(ours.terminated), "truncated": bool(ours.truncated)}
    assert len(rollout.flatten_trajectories(loaded)) == sum(each.length for each in expected)
    return "floats to float64, integers to int64"


def cast(values: Any) -> Any:
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


run(check, "imitation", "datasets")
