"""Minari's own reader: `minari.load_dataset`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from values import episodes, run, same


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {name: leaf for key, child in items for name, leaf in leaves(child, f"{path}.{key}").items()}
    return {path.removeprefix("."): tree}


def check(dataset: Path, exported: Path) -> str:
    os.environ["MINARI_DATASETS_PATH"] = str(exported.parent.parent)
    import minari

    loaded = minari.load_dataset("/".join(exported.parts[-2:]))
    expected = episodes(dataset)
    assert len(loaded) == len(expected) == loaded.total_episodes
    assert loaded.total_steps == sum(each.length for each in expected)
    for ours, theirs in zip(expected, loaded.iterate_episodes(), strict=True):
        for name in ("observations", "actions"):
            mine = getattr(ours, name) if isinstance(getattr(ours, name), dict) else {"": getattr(ours, name)}
            read = leaves(getattr(theirs, name))
            assert mine.keys() == read.keys()
            for key in mine:
                same(f"{name}.{key}", mine[key], read[key])
                assert mine[key].dtype.kind == "U" or mine[key].dtype == read[key].dtype, name
        same("rewards", ours.rewards, theirs.rewards)
        ends = np.arange(ours.length) == ours.length - 1
        same("terminations", ends & ours.terminated, theirs.terminations)
        same("truncations", ends & ours.truncated, theirs.truncations)
    if loaded.env_spec is not None:
        loaded.recover_environment().close()
    return ""


run(check, "minari")
