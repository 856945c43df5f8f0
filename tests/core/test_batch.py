"""EpisodeBatch: step types, checks, joining and splitting, next observations and padding."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, StepType, derive_step_types
from rollout_cli.episodes.spaces import map_tree, space_from_json, space_to_json, tree_leaves
from rollout_cli.seeding.seeds import env_seed
from tests.core.batches import BOX, LENGTHS, TREE, info, make
from tests.helpers.chunks import BOX_SPEC, episode
from tests.helpers.contents import array_contents
from tests.helpers.strategies import any_space

# -- step types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "terminated", "truncated", "expected"),
    [
        ([3], [True], [False], [0, 1, StepType.TERMINAL]),
        ([3], [False], [True], [0, 1, StepType.TIMEOUT]),
        ([3], [True], [True], [0, 1, StepType.TERMINAL]),
        ([3], [False], [False], [0, 1, StepType.MID]),
        ([1], [True], [False], [StepType.TERMINAL]),
        ([1], [False], [True], [StepType.TIMEOUT]),
        ([1], [False], [False], [StepType.FIRST]),
        ([2, 1, 0, 1, 0], [True, False, True, True, False], [False, True, False, False, True], [0, 2, 3, 2]),
        ([], [], [], []),
    ],
)
def test_step_types(
    lengths: list[int], terminated: list[bool], truncated: list[bool], expected: list[int]
) -> None:
    """Termination wins over truncation, and an ending over FIRST; an episode that ended by neither ends with MID."""
    flags = np.array(terminated, bool), np.array(truncated, bool)
    types = derive_step_types(np.array(lengths, np.int64), *flags)
    assert ("uint8", expected) == (types.dtype.name, types.tolist())


def test_terminals_and_timeouts_are_never_of_one_step() -> None:
    """An episode that ends in both ways is terminated: readers of D4RL's flags refuse a step that has both."""
    batch = EpisodeBatch.from_chunks(BOX_SPEC, [episode(number, 2) for number in range(3)])
    assert ([True, False, True], [False, True, True]) == (batch.terminated.tolist(), batch.truncated.tolist())
    assert [False, True, False, False, False, True] == batch.terminals.tolist()
    assert [False, False, False, True, False, False] == batch.timeouts.tolist()


def test_returns_are_the_sums_of_rewards() -> None:
    """One an episode, in their order."""
    batch = EpisodeBatch.from_chunks(BOX_SPEC, [episode(number, number + 1) for number in range(3)])
    assert [float(part.rewards.sum()) for part in batch.split()] == batch.returns.tolist()
    assert 3 == len(batch.returns)


# -- checks ---------------------------------------------------------------------------------------------------------


def _box(rows: int) -> Any:
    return np.zeros((rows, 2), np.float32)


def _pair(rows: int) -> Any:
    return np.zeros(rows, np.int64), np.full(rows, "a", object)


def _tree(pair: Any) -> Any:
    return {"box": _box(5), "pair": pair}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "lengths",
            np.array([2, 4]),
            "observations is {'box': 'float32 of shape (5, 2)', 'pair': ('int64 of shape (5,)",
        ),
        (
            "lengths",
            np.array([5, 0]),
            "lengths is [5 0], expected at least one episode of at least one step",
        ),
        ("lengths", np.zeros(0, np.int64), "lengths is [], expected at least one"),
        ("lengths", np.array([[2], [3]]), "lengths is int64 of shape (2, 1), expected int64 of shape (2,)"),
        ("lengths", [2, 3], "lengths is a list, expected int64"),
        ("rewards", np.zeros((5, 1)), "rewards is float64 of shape (5, 1), expected float64 of shape (5,)"),
        (
            "rewards",
            np.zeros(5, np.float32),
            "rewards is float32 of shape (5,), expected float64 of shape (5,)",
        ),
        (
            "step_types",
            np.zeros(5, np.int64),
            "step_types is int64 of shape (5,), expected uint8 of shape (5,)",
        ),
        ("terminated", np.array([True]), "terminated is bool of shape (1,), expected bool of shape (2,)"),
        ("truncated", np.array([1, 0]), "truncated is int64 of shape (2,), expected bool of shape (2,)"),
        ("numbers", np.zeros(3, np.int64), "numbers is int64 of shape (3,), expected int64 of shape (2,)"),
        ("seeds", np.zeros(2), "seeds is float64 of shape (2,), expected int64 of shape (2,)"),
        ("actions", _box(5), "actions is float32 of shape (5, 2), expected int64 of shape (5, 2)"),
        (
            "observations",
            _box(5),
            "observations is float32 of shape (5, 2), expected {'box': 'float32 of shape (5, 2)', 'pair': (",
        ),
        (
            "observations",
            {"box": _box(5)},
            "observations is {'box': 'float32 of shape (5, 2)'}, expected {'box': 'float32 of shape (5, 2)', ",
        ),
        (
            "observations",
            _tree((*_pair(5), 0)),
            (
                "observations is {'box': 'float32 of shape (5, 2)', 'pair': ('int64 of shape (5,)', "
                "'str of shape (5,)', 'a int')}, expected {"
            ),
        ),
        (
            "observations",
            _tree(np.zeros(5)),
            "observations is {'box': 'float32 of shape (5, 2)', 'pair': 'float64 of shape (5,)'}, expected {",
        ),
        (
            "observations",
            _tree(_pair(4)),
            "observations is {'box': 'float32 of shape (5, 2)', 'pair': ('int64 of shape (4,)', ",
        ),
        (
            "observations",
            _tree((_pair(5)[0], np.full(5, "a"))),
            (
                "observations is {'box': 'float32 of shape (5, 2)', 'pair': ('int64 of shape (5,)', "
                "'<U1 of shape (5,)')}, expected {"
            ),
        ),
        (
            "observations",
            _tree((_pair(5)[0], np.array(["a"] * 4 + [3], object))),
            (
                "observations is {'box': 'float32 of shape (5, 2)', 'pair': ('int64 of shape (5,)', "
                "'object of shape (5,)')}, expected {"
            ),
        ),
        (
            "last_observations",
            _tree(_pair(2)),
            "last_observations is {'box': 'float32 of shape (5, 2)', 'pair': ('int64 of shape (2,)', ",
        ),
        (
            "env_infos",
            {"x": np.zeros((6, 2))},
            "env_infos is {'x': 'float64 of shape (6, 2)'}, expected a dict of arrays of length 5",
        ),
        ("env_infos", [], "env_infos is a list, expected a dict"),
        (
            "agent_infos",
            {"x": [1] * 5},
            "agent_infos is {'x': 'a list'}, expected a dict of arrays of length 5",
        ),
        (
            "episode_infos",
            {"x": np.zeros(5)},
            "episode_infos is {'x': 'float64 of shape (5,)'}, expected a dict of arrays of length 2",
        ),
    ],
)
def test_what_does_not_fit_is_named(field: str, value: Any, message: str) -> None:
    """Each field is checked; the error names it and prints what it is and what was expected."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  The message is compared as a whole below.
        replace(make([2, 3]), **{field: value})
    assert message == str(caught.value)[: len(message)]


@pytest.mark.parametrize(("row", "value", "derived"), [(1, 3, 2), (4, 2, 3), (3, 0, 1)])
def test_step_types_must_follow_from_the_flags(row: int, value: int, derived: int) -> None:
    """The error names the row, and prints both types."""
    batch = make([2, 3])
    types = batch.step_types.copy()
    types[row] = value
    with pytest.raises(ValueError, match=rf"step_types\[{row}\] is {value}, expected {derived}"):
        replace(batch, step_types=types)


# -- split, joined, listed, pickled ---------------------------------------------------------------------------------
def contents(batch: EpisodeBatch) -> dict[str, Any]:
    """Return every field as plain values that compare."""
    return {
        field.name: _plain(getattr(batch, field.name)) for field in fields(batch) if field.name != "env_spec"
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else array_contents(value)


@given(any_space(), any_space(), LENGTHS)
def test_split_or_listed_and_joined(observation: Any, action: Any, lengths: list[int]) -> None:
    """A batch of any spaces, split or listed, gives episodes of its lengths, and they make the batch again."""
    spec = EnvSpec(observation, action)
    batch = make(lengths, spec)
    single = batch.split()
    assert [(1, length) for length in lengths] == [(len(one), len(one.rewards)) for one in single]
    assert contents(batch) == contents(EpisodeBatch.concatenate(*single))
    assert contents(batch) == contents(EpisodeBatch.from_list(spec, batch.to_list()))


@given(LENGTHS, LENGTHS)
def test_concatenate_is_the_joined_chunks(left: list[int], right: list[int]) -> None:
    """Joining batches gives the batch of all their chunks; infos that one of them lacks are masked or None."""
    whole = make(left + right)
    chunks = [
        episode(at, length, spec=TREE, env_info=info, agent_info=info, episode_info=info)
        for at, length in enumerate(left + right)
    ]
    halves = [EpisodeBatch.from_chunks(TREE, half) for half in (chunks[: len(left)], chunks[len(left) :])]
    joined = EpisodeBatch.concatenate(*halves)
    expected, found = contents(whole), contents(joined)
    for name in (name for name in expected if "infos" not in name):
        assert expected[name] == found[name]
    for key, values in whole.env_infos.items():
        assert values.tolist() == joined.env_infos[key].tolist()


def test_an_entry_of_the_list() -> None:
    """It has the episode's own rows, one last observation, and plain values."""
    first, second, third = make([2, 1, 1]).to_list()
    assert (True, True) == (third["terminated"], third["truncated"])
    assert (2, True, False, 0, env_seed(0, 0)) == tuple(
        first[name] for name in ("length", "terminated", "truncated", "number", "seed")
    )
    assert (1, False, True) == tuple(second[name] for name in ("length", "terminated", "truncated"))
    assert ((2, 2), (2,)) == (first["observations"]["box"].shape, first["last_observation"]["box"].shape)
    assert isinstance(first["last_observation"]["pair"][1], str)


def test_infos_that_some_batches_lack() -> None:
    """A key of one batch alone is masked in the rows of the others; another type gives an array of objects."""
    spec = BOX
    left = EpisodeBatch.from_chunks(
        spec, [episode(0, 2, spec=spec, env_info=lambda *_: {"x": 1, "y": 1, "z": "a"})]
    )
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
    """The error prints both specs."""
    other = EnvSpec(BOX.observation_space, spaces.Discrete(4))
    with pytest.raises(ValueError, match=r"spaces differ: .*Discrete\(3\).* and .*Discrete\(4\)"):
        EpisodeBatch.concatenate(make([1], BOX), make([1], other))


def test_spaces_that_a_dataset_gives_back_join_those_of_the_environment() -> None:
    """For gymnasium MultiBinary((2,)) is not MultiBinary(2), as which a dataset gives it back."""
    spec = EnvSpec(BOX.observation_space, spaces.MultiBinary((2,)))
    stored = EnvSpec(BOX.observation_space, space_from_json(space_to_json(spec.action_space)))
    assert 3 == len(EpisodeBatch.concatenate(make([1, 2], spec), make([3], stored)).lengths)


def test_a_list_with_other_keys() -> None:
    """A spare key and a missing one are named."""
    (entry,) = make([2]).to_list()
    changed = {"reward": entry["rewards"]} | {key: value for key, value in entry.items() if key != "rewards"}
    with pytest.raises(ValueError, match=r"unknown: \['reward', 'rewards'\]"):
        EpisodeBatch.from_list(TREE, [changed])


# -- next observations, padding, lists ------------------------------------------------------------------------------
@given(any_space(), LENGTHS)
def test_next_observations(space: Any, lengths: list[int]) -> None:
    """Inside an episode it is the following row's observation, at its end the last observation."""
    batch = make(lengths, EnvSpec(space, BOX.action_space))
    for one in batch.split():
        for now, then, last in zip(
            *(tree_leaves(tree) for tree in (one.observations, one.next_observations, one.last_observations)),
            strict=True,
        ):
            assert array_contents(np.concatenate([now[1:], last])) == array_contents(then)
    whole, parts = (
        tree_leaves(batch.next_observations),
        [tree_leaves(one.next_observations) for one in batch.split()],
    )
    assert [array_contents(leaf) for leaf in whole] == [
        array_contents(np.concatenate(leaves)) for leaves in zip(*parts, strict=True)
    ]


@given(LENGTHS)
def test_padding(lengths: list[int]) -> None:
    """Row n of a padded array begins with episode n, and what follows is zero or an empty text."""
    batch = make(lengths)
    assert [[at < length for at in range(max(lengths))] for length in lengths] == batch.valids.tolist()
    padded = {
        "rewards": (batch.padded_rewards, batch.rewards),
        "types": (batch.padded_step_types, batch.step_types),
        "actions": (batch.padded_actions, batch.actions),
        "observations": (batch.padded_observations, batch.observations),
        "next": (batch.padded_next_observations, batch.next_observations),
    }
    for rows, flat in padded.values():
        map_tree(lambda row, leaf: _check_padding(row, leaf, batch.valids), rows, flat)


def _check_padding(rows: Any, flat: Any, valids: Any) -> None:
    assert flat.dtype == rows.dtype
    assert flat.tolist() == rows[valids].tolist()
    blank = "" if rows.dtype == object else 0
    assert np.all(rows[~valids] == blank)


def test_padded_infos() -> None:
    """Padding of an info is zero, masked where steps may lack it, and None among objects."""
    batch = make([1, 2])
    for padded in (batch.padded_env_infos, batch.padded_agent_infos):
        assert [[0.0, 0.0], [0.0, 1.0]] == padded["full"].tolist()
        assert [[None, None], [0, None]] == padded["sparse"].tolist()
        assert [[[None] * 2] * 2, [[0, 0], [None] * 2]] == padded["vector"].tolist()
        assert [["odd", None], ["odd", 1]] == padded["mixed"].tolist()


def test_lists_of_episodes() -> None:
    """observations_list and actions_list have one tree an episode, views of its own rows."""
    batch = make([2, 3])
    assert [2, 3] == [len(tree["box"]) for tree in batch.observations_list]
    assert [2, 3] == [len(actions) for actions in batch.actions_list]
    assert batch.observations["box"][2:].tolist() == batch.observations_list[1]["box"].tolist()
    assert batch.actions[:2].tolist() == batch.actions_list[0].tolist()
    assert np.shares_memory(batch.actions, batch.actions_list[1])
