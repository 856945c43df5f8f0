"""OGBench's own reader: `load_dataset`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from values import episodes, run, same


def check(dataset: Path, exported: Path) -> str:
    from ogbench.utils import load_dataset

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
