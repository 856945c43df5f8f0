"""OGBench's `load_dataset`, by its own code; the package would need MuJoCo."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
from values import episodes, run, same


def check(dataset: Path, exported: Path) -> str:
    spec = importlib.util.find_spec("ogbench")
    package = sys.modules["ogbench"] = ModuleType("ogbench")
    package.__path__ = list(spec.submodule_search_locations)
    load_dataset = importlib.import_module("ogbench.utils").load_dataset
    expected = episodes(dataset)
    is_image = expected[0].observations.dtype == np.uint8
    dtype = np.uint8 if is_image else np.float32  # As `make_env_and_datasets` asks for them.
    read = load_dataset(str(exported), ob_dtype=dtype)
    for name, part in (("observations", slice(-1)), ("next_observations", slice(1, None))):
        mine = np.concatenate([each.observations[part] for each in expected])
        same(name, mine.astype(dtype), read[name])
        assert read[name].dtype == dtype
    same("actions", np.concatenate([each.actions for each in expected]).astype(np.float32), read["actions"])
    same(
        "terminals",
        np.concatenate([np.arange(n) == n - 1 for n in (e.length for e in expected)]),
        read["terminals"],
    )
    compact = load_dataset(str(exported), ob_dtype=dtype, compact_dataset=True)
    same("valids", np.concatenate([np.arange(e.length + 1) < e.length for e in expected]), compact["valids"])
    return "float32 actions" if is_image else "float32"


run(check, "ogbench")
