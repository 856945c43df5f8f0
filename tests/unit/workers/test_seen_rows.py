"""What rows see: batches belong to the policy, and rows that put nothing keep what they saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.spaces import tree_leaves
from rollout_cli.workers.seen_rows import SeenBytes, SeenColumns

BOX = spaces.Box(-9.0, 9.0, (2,), np.float32)
TREE = spaces.Dict({"box": BOX, "number": spaces.Discrete(5), "text": spaces.Text(3)})


@pytest.mark.parametrize("kind", [SeenBytes, SeenColumns])
def test_batches_of_arrays(kind: Any) -> None:
    """A batch has the space's dtype and shape, zeros at first; edits of it, or of what was put, reach no later one."""
    seen = kind(BOX, 3)
    observation = np.array([1.0, 2.0], np.float32)
    seen.put(1, observation)
    observation[:] = 7.0
    first = seen.batch()
    assert (np.float32, (3, 2)) == (first.dtype, first.shape)
    assert [[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]] == first.tolist()
    first[:] = -1.0
    seen.put(2, np.array([3.0, 4.0], np.float32))
    assert [[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]] == seen.batch().tolist()


def test_batches_of_trees() -> None:
    """Each leaf is a column; text is empty at first."""
    seen = SeenColumns(TREE, 2)
    seen.put(1, {"box": np.ones(2, np.float32), "number": 4, "text": "abc"})
    for leaf in tree_leaves(seen.batch()):
        leaf[1] = leaf[0]
    batch = seen.batch()
    expected = {"box": [[0.0, 0.0], [1.0, 1.0]], "number": [0, 4], "text": ["", "abc"]}
    assert expected == {name: column.tolist() for name, column in batch.items()}
