"""EpisodeBatch: split, joined, listed or pickled, its episodes stay the same; what does not fit together is named."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given

from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from tests.support.chunks import episode
from tests.support.contents import array_contents
from tests.support.strategies import any_space
from tests.unit.batches import BOX, LENGTHS, TREE, info, make


def contents(batch: EpisodeBatch) -> dict[str, Any]:
    """Return every field as plain values that compare."""
    return {field.name: _plain(getattr(batch, field.name)) for field in fields(batch) if field.name != "env_spec"}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else array_contents(value)


@given(any_space(), any_space(), LENGTHS)
def test_split_and_concatenate(observation: Any, action: Any, lengths: list[int]) -> None:
    """A batch of any spaces split into episodes has their lengths, and joins to the batch again."""
    batch = make(lengths, EnvSpec(observation, action))
    single = batch.split()
    assert [(1, length) for length in lengths] == [(len(one), len(one.rewards)) for one in single]
    assert contents(batch) == contents(EpisodeBatch.concatenate(*single))


@given(any_space(), any_space(), LENGTHS)
def test_to_list_and_from_list(observation: Any, action: Any, lengths: list[int]) -> None:
    """The list of a batch's episodes makes the batch again."""
    spec = EnvSpec(observation, action)
    batch = make(lengths, spec)
    assert contents(batch) == contents(EpisodeBatch.from_list(spec, batch.to_list()))


@given(LENGTHS, LENGTHS)
def test_concatenate_is_the_joined_chunks(left: list[int], right: list[int]) -> None:
    """Joining batches gives the batch of all their chunks; infos that one of them lacks are masked or None."""
    whole = make(left + right)
    rows, episodes = sum(left), len(left)
    chunk = [episode(at, n, spec=TREE, env_info=info, agent_info=info, episode_info=info) for at, n in enumerate(left)]
    rest = [
        episode(episodes + at, n, spec=TREE, env_info=info, agent_info=info, episode_info=info)
        for at, n in enumerate(right)
    ]
    joined = EpisodeBatch.concatenate(EpisodeBatch.from_chunks(TREE, chunk), EpisodeBatch.from_chunks(TREE, rest))
    assert {k: v for k, v in contents(whole).items() if "infos" not in k} == {
        k: v for k, v in contents(joined).items() if "infos" not in k
    }
    assert rows + sum(right) == len(joined.rewards)
    for key, values in whole.env_infos.items():
        assert values.tolist() == joined.env_infos[key].tolist()


def test_an_entry_of_the_list() -> None:
    """It has the episode's own rows, one last observation, and plain values."""
    first, second = make([2, 1]).to_list()
    assert (2, True, False, 0, 1000) == tuple(
        first[name] for name in ("length", "terminated", "truncated", "number", "seed")
    )
    assert (1, False, True) == tuple(second[name] for name in ("length", "terminated", "truncated"))
    assert ((2, 2), (2,)) == (first["observations"]["box"].shape, first["last_observation"]["box"].shape)
    assert isinstance(first["last_observation"]["pair"][1], str)


def test_both_flags_are_kept() -> None:
    """An episode that terminated and was truncated at once keeps both, all the way."""
    batch = make([1, 2, 3])
    assert ([True, False, True], [False, True, True]) == (batch.terminated.tolist(), batch.truncated.tolist())
    again = EpisodeBatch.from_list(TREE, batch.to_list())
    assert ([True, False, True], [False, True, True]) == (again.terminated.tolist(), again.truncated.tolist())
    assert [2, 0, 3, 0, 1, 2] == batch.step_types.tolist()


def test_infos_that_some_batches_lack() -> None:
    """A key of one batch alone is masked in the rows of the others; another type gives an array of objects."""
    spec = BOX
    left = EpisodeBatch.from_chunks(spec, [episode(0, 2, spec=spec, env_info=lambda *_: {"x": 1, "y": 1, "z": "a"})])
    right = EpisodeBatch.from_chunks(spec, [episode(1, 1, spec=spec, env_info=lambda *_: {"y": 0.5})])
    infos = EpisodeBatch.concatenate(left, right).env_infos
    assert [1, 1, None] == infos["x"].tolist()
    assert isinstance(infos["x"], np.ma.MaskedArray)
    assert ("object", [1, 1, 0.5]) == (infos["y"].dtype.name, infos["y"].tolist())
    assert ("object", ["a", "a", None]) == (infos["z"].dtype.name, infos["z"].tolist())


def test_vectors_of_other_shapes_become_objects() -> None:
    """Masked rows give None, the others their vectors."""
    spec = BOX
    sparse = episode(0, 2, spec=spec, env_info=lambda _, step: {"v": np.ones(2)} if step else {})
    other = episode(1, 1, spec=spec, env_info=lambda *_: {"v": np.ones(3)})
    batches = [EpisodeBatch.from_chunks(spec, [chunk]) for chunk in (sparse, other)]
    joined = EpisodeBatch.concatenate(*batches).env_infos["v"].tolist()
    assert [None, [1, 1], [1, 1, 1]] == [value if value is None else value.tolist() for value in joined]
    assert not any(isinstance(value, np.ma.MaskedArray) for value in joined)


def test_nothing_to_join() -> None:
    """No batch and no episode are errors."""
    with pytest.raises(ValueError, match="no batch"):
        EpisodeBatch.concatenate()
    with pytest.raises(ValueError, match="no batch"):
        EpisodeBatch.from_list(TREE, [])


def test_other_spaces_do_not_join() -> None:
    """The error names which space differs and prints both."""
    other = EnvSpec(BOX.observation_space, spaces.Discrete(4))
    with pytest.raises(ValueError, match=r"action_space differs: Discrete\(3\) and Discrete\(4\)"):
        EpisodeBatch.concatenate(make([1], BOX), make([1], other))


@pytest.mark.parametrize("change", [{"reward": 1}, {"rewards": None}])
def test_a_list_with_other_keys(change: dict[str, Any]) -> None:
    """A spare or missing key is named."""
    (entry,) = make([2]).to_list()
    changed = {key: value for key, value in {**entry, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=rf"see \['{next(iter(change))}'\]"):
        EpisodeBatch.from_list(TREE, [changed])


def test_pickling() -> None:
    """A batch crosses a process border."""
    batch = make([2, 3])
    assert contents(batch) == contents(pickle.loads(pickle.dumps(batch)))


def test_batches_compare_by_identity() -> None:
    """Comparing whole batches of arrays would be an accident, so it costs and raises nothing."""
    batch = make([1])
    assert 1 == len({batch, *[batch]})
    assert batch != replace(batch)
