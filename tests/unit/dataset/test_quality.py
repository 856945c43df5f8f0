"""Values that are not finite, or outside of their space, are told of with the place of the first one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.dataset import limits, quality
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import DatasetFormatError
from tests.support.chunks import episode
from tests.support.damage import DATA

SPEC = EnvSpec(
    spaces.Dict({"place": spaces.Box(-1, 1, (2,), np.float32), "image": spaces.Box(0, 255, (3, 3), np.uint8)}),
    spaces.MultiDiscrete([3, 4]),
)


def told(path: Path, chunk: Chunk) -> list[str]:
    """Write a chunk of four episodes, each in a file of its own; return what is told of its values."""
    with DatasetWriter(path, env_spec=SPEC, root_seed=1, limits=CutLimits(shard_bytes=1)) as writer:
        writer.write(chunk)
        return [str(one) for one in writer.close(status="complete").strange_values]


def four_episodes() -> Chunk:
    return concatenate([episode(at, 3, spec=SPEC) for at in range(4)])


def changed(columns: tuple[Any, ...], at: int, row: int, value: Any) -> tuple[Any, ...]:
    copies = [column.copy() for column in columns]
    copies[at][row] = value
    return tuple(copies)


def test_ordinary_values_are_not_told_of(tmp_path: Path) -> None:
    """Samples of the spaces are as they should be."""
    assert [] == told(tmp_path / "out", four_episodes())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([math.nan, 0.0], "observation.place holds 1 numbers that are not finite (nan or infinite)"),
        ([math.inf, -math.inf], "observation.place holds 2 numbers that are not finite (nan or infinite)"),
        ([0.0, -3.0], "observation.place holds values from -3 to "),
    ],
)
def test_observations(tmp_path: Path, value: list[float], words: str) -> None:
    """The column is named, and the first episode and step."""
    chunk = four_episodes()
    index = next(leaf for leaf, column in enumerate(chunk.observations) if column.dtype == np.float32)
    observations = changed(chunk.observations, index, 7, value)
    (only,) = told(tmp_path / "out", replace(chunk, observations=observations))
    assert only.startswith(words)
    assert only.endswith(", first in episode 2 at step 1; it was stored as it came")


def test_actions_and_rewards(tmp_path: Path) -> None:
    """Both are looked at."""
    chunk = four_episodes()
    rewards = chunk.rewards.copy()
    rewards[3:] = math.inf
    chunk = replace(chunk, actions=changed(chunk.actions, 0, 11, [0, 4]), rewards=rewards)
    action, reward = told(tmp_path / "out", chunk)
    assert "action holds values from 0 to 4, outside of MultiDiscrete([3 4])" in action
    assert "first in episode 3 at step 2" in action
    assert reward.startswith("reward holds 9 numbers that are not finite")
    assert "first in episode 1 at step 0" in reward


def led_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (root / DATA).symlink_to((root / DATA).rename(root.parent / "outside"))


def cut(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (root / DATA).write_bytes((root / DATA).read_bytes()[:-20])


def flipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    data = bytearray((root / DATA).read_bytes())
    data[4] ^= 0xFF  # Of the first page's header.
    (root / DATA).write_bytes(bytes(data))


def oversized(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del root
    monkeypatch.setattr(limits, "MAX_GROUP_BYTES", 100)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (led_out, "leads out of the dataset"),
        (cut, "is not a file of this format"),
        (flipped, "is broken: in row group 0"),
        (oversized, "over the limit of 100"),
    ],
)
def test_files_that_became_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any, message: str) -> None:
    """The place is looked for within the limits that all readers have: some files may be an earlier run's."""
    harms = [harm]

    def strange_values(root: Path, *known: Any) -> Any:
        while harms:  # The writer tries once more to commit all.
            harms.pop()(root, monkeypatch)
        return quality.strange_values(root, *known)

    monkeypatch.setattr("rollout_cli.dataset.writer.strange_values", strange_values)
    chunk = four_episodes()
    with pytest.raises(DatasetFormatError, match=message):
        told(tmp_path / "out", replace(chunk, rewards=np.full_like(chunk.rewards, math.inf)))
