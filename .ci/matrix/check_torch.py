"""torch's DataLoader, over `rollout_cli.load(dataset).transitions()`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from values import episodes, leaves, run, same

import rollout_cli


def check(dataset: Path, _: Path) -> str:
    transitions = rollout_cli.load(dataset).transitions()
    rows = BatchSampler(SequentialSampler(transitions), batch_size=7, drop_last=False)
    batches = list(DataLoader(transitions, sampler=rows, batch_size=None))
    expected = episodes(dataset)
    for name, part in (("observations", slice(None, -1)), ("next_observations", slice(1, None))):
        whole = [leaves(episode.observations) for episode in expected]
        for path in whole[0]:
            equal(name, path, [leaf[path][part] for leaf in whole], batches)
    for path in leaves(expected[0].actions):
        equal("actions", path, [leaves(episode.actions)[path] for episode in expected], batches)
    equal("rewards", "", [episode.rewards for episode in expected], batches)
    for name in ("terminated", "truncated"):
        ends = [np.arange(each.length) == each.length - 1 for each in expected]
        flags = [getattr(each, name) & end for each, end in zip(expected, ends, strict=True)]
        equal(name, "", flags, batches)
    return ""


def equal(name: str, path: str, expected: list[np.ndarray], batches: list[dict]) -> None:
    parts = [batch[name] for batch in batches]
    if path:
        parts = [part[path] if isinstance(part, dict) else part[int(path)] for part in parts]
    actual = np.concatenate([np.asarray(part) for part in parts])
    same(f"{name} {path}".strip(), np.concatenate(expected), actual)


run(check, "torch")
