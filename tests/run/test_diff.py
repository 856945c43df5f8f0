"""diff: the first episode, step and field where two datasets differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli import load
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable
from rollout_cli.run.compare import diff
from tests.helpers.chunks import episode
from tests.helpers.writing import RICH_SPEC, SMALL, write_dataset


def chunks() -> list[Chunk]:
    return [episode(n, 30, env_info=lambda n, step: {"t": step} if step else {}) for n in range(20)]


def written(path: Path, episodes: Sequence[Chunk], **options: Any) -> Any:
    write_dataset(path, episodes, limits=SMALL, **options)
    return load(path)


def edited(at: int, **fields: Any) -> list[Chunk]:
    """Return the episodes, some fields of one of them changed."""
    changed = chunks()
    changed[at] = replace(changed[at], **fields)
    return changed


def with_nan(bits: int) -> list[Chunk]:
    """Return rewards of which one is a nan of these bits."""
    rewards = chunks()[3].rewards
    rewards.view(np.uint64)[4] = 0x7FF8000000000000 + bits
    return edited(3, rewards=rewards)


def test_the_same_values_are_identical(tmp_path: Path) -> None:
    """However they are cut into files, and whoever collected them how fast."""
    first = written(tmp_path / "a", with_nan(1))
    workers = [
        replace(chunk, workers=np.array([3], np.int32), wall_times=np.zeros(1)) for chunk in with_nan(1)
    ]
    write_dataset(tmp_path / "b", workers, next_observation=True)
    assert diff(first, load(tmp_path / "b")) is None


DIFFERENCES = {
    "rewards": (edited(17, rewards=chunks()[17].rewards + np.eye(30)[9]), (17, "reward", 9)),
    "flags": (edited(2, truncated=~chunks()[2].truncated), (2, "truncated", 29)),
    "seeds": (edited(2, seeds=np.array([7])), (2, "seed", 0)),
    "infos": (edited(5, env_infos=InfoTable(30)), (5, "env_info.t", 1)),
    "lengths": ([*chunks()[:4], episode(4, 31), *chunks()[5:]], (4, "env_info.t", 1)),
    "numbers": (edited(19, numbers=np.array([21])), (19, "episode_number", 0)),
    "more episodes": ([*chunks(), episode(20, 3)], (None, "episodes", 0)),
    "fewer episodes": (chunks()[:-1], (None, "episodes", 0)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return written(tmp_path_factory.mktemp("whole") / "d", chunks())


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_first_difference(whole: Any, tmp_path: Path, name: str) -> None:
    episodes, expected = DIFFERENCES[name]
    other = written(tmp_path / "d", episodes)
    for pair in ((whole, other), (other, whole)):
        found = diff(*pair)
        assert found is not None
        episode, difference = found
        assert expected == (episode, difference.field, difference.step)
        assert difference.values[0] != difference.values[1]


def test_a_number_is_shown_as_one(whole: Any, tmp_path: Path) -> None:
    """Also an info's that one of both lacks, or that some steps lack."""
    found = diff(whole, written(tmp_path / "d", DIFFERENCES["infos"][0]))
    assert found is not None
    assert "[1, null]" == json.dumps(found[1].values)


def test_bits_count(tmp_path: Path) -> None:
    """Two nans are not one."""
    found = diff(written(tmp_path / "a", with_nan(1)), written(tmp_path / "b", with_nan(2)))
    assert found is not None
    assert (3, "reward", 4) == (found[0], found[1].field, found[1].step)


@pytest.mark.parametrize(("kept", "other"), [(1, True), (1, 1.0), (0.0, -0.0)])
def test_types_within_json_count(tmp_path: Path, kept: Any, other: Any) -> None:
    """Infos that are stored as JSON differ though Python calls them equal."""
    assert kept == other
    first = written(tmp_path / "a", [episode(0, 3, env_info=lambda n, step: {"t": ["text", kept]})])
    second = written(tmp_path / "b", [episode(0, 3, env_info=lambda n, step: {"t": ["text", other]})])
    found = diff(first, second)
    assert found is not None
    assert (0, "env_info.t", 0) == (found[0], found[1].field, found[1].step)


def test_spaces_differ(whole: Any, tmp_path: Path) -> None:
    """Before any episode."""
    spec: EnvSpec = RICH_SPEC
    found = diff(whole, written(tmp_path / "d", [episode(0, 3, spec=spec)], spec=spec))
    assert found is not None
    assert (None, "spaces") == (found[0], found[1].field)
