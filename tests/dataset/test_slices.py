"""Every kind of column, read back whole, in slices, one by one and in any selection, is what was collected.

pyarrow 26's `take` on a slice of nested fixed-size lists gives other rows, so each kind is read in each way.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from tests.helpers.batches import assert_same_batches, assert_same_info_values, assert_same_steps, select
from tests.helpers.chunks import episode
from tests.helpers.thorough import usually
from tests.helpers.writing import write_dataset

N = 30
LIMITS = SizeLimits(segment_rows=90, group_rows=25)
"""Episodes of up to 12 steps straddle row groups, and there are several segments."""

SHAPES: list[tuple[int, ...]] = [(), (3,), (2, 3), (2, 1, 3), (1, 2, 2, 2)]
DTYPES: list[Any] = [
    np.float16,
    np.float32,
    np.float64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
]
BOXES: dict[str, gymnasium.Space[Any]] = {
    f"{np.dtype(dtype).name}{list(shape)}": spaces.Box(0, 100, shape, dtype)
    for dtype, shape in [*((dtype, (2, 3)) for dtype in DTYPES), *((np.float32, shape) for shape in SHAPES)]
}
OTHERS: dict[str, gymnasium.Space[Any]] = {
    "bool": spaces.Box(0, 1, (2, 2), np.bool_),
    "uint32": spaces.Box(0, 2**32 - 1, (2, 2), np.uint32),
    "uint64": spaces.Box(0, 2**53, (2, 2), np.uint64),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "large image": spaces.Box(0, 255, (130, 90, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_discrete 2-D": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int16),
    "multi_binary": spaces.MultiBinary(3),
    "multi_binary 2-D": spaces.MultiBinary((2, 3)),
    "text": spaces.Text(6, min_length=0, charset="aä😀"),
    "nothing": spaces.Box(0, 1, (0, 3)),
    "sequence": spaces.Sequence(spaces.Box(0, 100, (2,), np.int16)),
}
SPACES = BOXES | OTHERS

PATTERNS: dict[str, Callable[[int], Any]] = {
    "number": lambda at: at,
    "half": lambda at: at / 2,
    "flag": lambda at: at % 2 == 0,
    "text": lambda at: f"{at} ☃",
    "list": lambda at: np.array([at, -at], np.float32),
    "matrix": lambda at: np.full((2, 3), at, np.int16),
    "cube": lambda at: np.arange(8, dtype=np.float64).reshape(2, 2, 2) + at,
    "image": lambda at: np.full((3, 3), at % 200, np.uint8),
    "nested": lambda at: {"deep": {"er": at}},
    "json": lambda at: [at, None, {"a": "b"}],
    "mixed": lambda at: at if at % 2 else str(at),
    "shapes": lambda at: np.zeros(1 + at % 3),
}


def infos(number: int, step: int) -> dict[str, Any]:
    """Return each pattern in every step, in every third, and in those of one episode alone."""
    at = number * 20 + step
    found: dict[str, Any] = {f"dense {name}": pattern(at) for name, pattern in PATTERNS.items()}
    if at % 3 == 0:
        found |= {f"sparse {name}": pattern(at) for name, pattern in PATTERNS.items()}
    if number == 17:
        found |= {f"rare {name}": pattern(at) for name, pattern in PATTERNS.items()}
    return found


@cache
def collected(name: str) -> tuple[EnvSpec, tuple[Any, ...], EpisodeBatch]:
    """Return spec, chunks and batch of the episodes of one space, which is that of actions too."""
    spec = (
        EnvSpec(SPACES[name], SPACES[name])
        if name in SPACES
        else EnvSpec(spaces.Discrete(2), spaces.Discrete(2))
    )
    sources: dict[str, Any] = (
        {} if name in SPACES else dict.fromkeys(("env_info", "agent_info", "episode_info"), infos)
    )
    chunks = tuple(episode(number, 1 + 7 * number % 12, spec=spec, **sources) for number in range(N))
    return spec, chunks, EpisodeBatch.from_chunks(spec, chunks)


def in_segments(ids: list[int]) -> list[int]:
    return [number for start in range(0, N, 4) for number in ids[start : start + 4]]


SELECTIONS: dict[str, tuple[Callable[[Dataset], list[Dataset]], list[int]]] = {
    "whole": (lambda dataset: [dataset], list(range(N))),
    "slices": (lambda dataset: [dataset[start : start + 4] for start in range(0, N, 4)], list(range(N))),
    "a slice of a slice": (lambda dataset: [dataset[5:25][3:9]], list(range(8, 14))),
    "steps": (lambda dataset: [dataset[1::3]], list(range(1, N, 3))),
    "backwards": (lambda dataset: [dataset[::-1]], list(range(N))[::-1]),
    "a list": (lambda dataset: [dataset[[7, 3, 3, -1]]], [7, 3, 3, N - 1]),
    "a mask": (lambda dataset: [dataset[np.arange(N) % 4 == 2]], list(range(2, N, 4))),
    "unpickled": (lambda dataset: [pickle.loads(pickle.dumps(dataset[4:9]))], list(range(4, 9))),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("slices")

    @cache
    def written(name: str) -> Path:
        spec, chunks, _ = collected(name)
        path = root / str(len(list(root.iterdir())))
        assert write_dataset(path, chunks, spec=spec, limits=LIMITS).segments > 1
        return path

    return written


@pytest.mark.parametrize(
    "name", usually([*SPACES, "infos"], lambda name: name not in {"infos", "large image"})
)
def test_each_selection_holds_the_episodes_that_were_collected(
    folder: Callable[[str], Path], name: str
) -> None:
    """Observations, actions, last and next observations, infos: dtype, shape and every value."""
    _, _, batch = collected(name)
    dataset = load(folder(name))
    for label, (choose, places) in SELECTIONS.items():
        actual = EpisodeBatch.concatenate(*(part.to_episode_batch() for part in choose(dataset)))
        assert_same_steps(select(batch, places), actual)
        assert_same_info_values(select(batch, places), actual)
        if label == "whole":
            assert_same_batches(batch, actual)


@pytest.mark.parametrize(
    "name", usually([*SPACES, "infos"], lambda name: name not in {"infos", "large image"})
)
def test_each_episode_alone_is_the_one_that_was_collected(folder: Callable[[str], Path], name: str) -> None:
    """By its place, and by iterating, which decodes a row group at a time."""
    dataset = load(folder(name))
    pairs = zip(collected(name)[2].split(), dataset, strict=True)
    for place, (expected, one) in enumerate(pairs):
        for actual in (dataset[place].batch, one.batch):
            assert_same_steps(expected, actual)
        assert_same_info_values(expected, dataset[place].batch)
