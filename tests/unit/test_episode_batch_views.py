"""EpisodeBatch: next observations, padded arrays and lists of episodes hold its own rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.spaces import map_tree, tree_leaves
from tests.support.contents import array_contents
from tests.support.strategies import any_space
from tests.unit.batches import BOX, LENGTHS, make


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
    whole, parts = tree_leaves(batch.next_observations), [tree_leaves(one.next_observations) for one in batch.split()]
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


def test_split_gives_views() -> None:
    """Splitting copies no rows."""
    batch = make([2, 3])
    assert np.shares_memory(batch.observations["box"], batch.split()[1].observations["box"])
