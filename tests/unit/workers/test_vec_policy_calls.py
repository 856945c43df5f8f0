"""VecWorker: one policy call a step for all rows, with masks, seeds and what idle rows saw; one action a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.errors import PolicyError
from rollout_cli.seeding import derive_seed
from tests.support import envs, policies, rows
from tests.unit.workers.making import SEED, run_numbers
from tests.unit.workers.making_vec import Row, make_vec


def calls_of(lengths: Sequence[int], numbers: Sequence[int]) -> list[tuple[Any, ...]]:
    """Run numbers in rows whose episodes have these lengths; return how the policy was called."""
    worker = make_vec([Row(tag, length) for tag, length in enumerate(lengths)], rows.LoggingPolicy)
    policy: Any = worker._agent.policy
    run_numbers(worker, numbers)
    calls: list[tuple[Any, ...]] = policy.calls
    return calls


def test_resets_have_masks() -> None:
    """The first reset has all rows, also those that do not begin; later ones have the rows that begin, and no other."""
    calls = calls_of([1, 3, 2, 1], [0, 1, 2, 4, 5, 8])
    resets = [mask for verb, mask, *_ in calls if verb == "reset"]
    assert [[True] * 4, [True, False, False, False], [True, False, False, False], [False, True, False, False]] == resets


def test_rows_are_seeded_before_they_are_reset() -> None:
    """Each reset comes right after `seed_rows` with the same mask and, in those rows, the policy's seeds."""
    calls = [call for call in calls_of([1, 3, 2], range(8)) if call[0] != "act"]
    numbers = iter([{0: 0, 1: 1, 2: 2}, {0: 3}, {0: 6, 2: 5}, {1: 4}, {1: 7}])
    for seeding, reset in zip(calls[::2], calls[1::2], strict=True):
        assert ("seed_rows", "reset", seeding[1]) == (seeding[0], reset[0], reset[1])
        expected = {row: derive_seed(SEED, number, "policy") for row, number in next(numbers).items()}
        assert expected == {row: seed for row, seed in enumerate(seeding[2]) if seeding[1][row]}
    assert [] == list(numbers)


def test_a_new_policy_is_told_of_all_rows_again() -> None:
    """After an update, the first reset has all rows once more."""
    worker = make_vec([Row(tag, 1) for tag in range(2)], rows.LoggingPolicy)
    run_numbers(worker, range(2))
    worker.update_agent({"action": 1})
    policy: Any = worker._agent.policy
    policy.calls.clear()
    run_numbers(worker, [4])
    assert [True, True] == policy.calls[1][1]


def test_idle_rows_repeat_what_they_saw() -> None:
    """A batch has all rows: one that has not run yet shows zeros, one that is idle what its policy saw last.

    The policy overwrites its batches, and sees nothing of that again.
    """
    calls = calls_of([2, 4, 1], [0, 1])
    batches = [columns[0] for verb, columns, *_ in calls if verb == "act"]
    assert {3} == {len(batch) for batch in batches}
    assert [[0, 0, 0]] * 4 == [batch[2] for batch in batches]
    assert [0, 1, 1, 1] == [batch[0][0] for batch in batches]
    assert batches[1][0] == batches[2][0] == batches[3][0]


def test_texts_are_empty_before_the_first() -> None:
    """A row that has not run yet shows empty texts."""
    worker = make_vec([envs.TextEnv(), envs.TextEnv()], rows.LoggingPolicy)
    policy: Any = worker._agent.policy
    run_numbers(worker, [0])
    assert {""} == {columns[0][1] for verb, columns, *_ in policy.calls if verb == "act"}
    assert isinstance(worker.env_spec.observation_space, spaces.Text)


class BrokenBatch(policies.GaragePolicy):
    """Gives its actions as another batch.

    Args:
        broken: Makes the other batch.
    """

    def __init__(self, env_spec: Any, broken: Callable[[Any], Any]) -> None:
        super().__init__(env_spec)
        self.broken = broken

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        actions, infos = super().get_actions(observations)
        return self.broken(actions), infos


BATCHES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda actions: actions[:-1], "get_actions gave 2 for 3 observations, expected one a row"),
    (lambda actions: np.repeat(actions, 2), "get_actions gave 6 for 3 observations, expected one a row"),
    (lambda actions: actions[0], "policy.get_actions raised TypeError"),
    (lambda actions: np.stack([actions, actions], 1), "the policy gave a bad action: got list"),
]


@pytest.mark.parametrize(("broken", "message"), BATCHES)
def test_batches_of_another_size_are_refused(broken: Callable[[Any], Any], message: str) -> None:
    """What does not have one action a row is the policy's error, and says where."""
    worker = make_vec([Row(tag) for tag in range(3)], lambda spec: BrokenBatch(spec, broken))
    with pytest.raises(PolicyError, match=rf"{message}.* \(worker 2, episode 0, seed \d+, step 0\)$"):
        run_numbers(worker, range(3))


def test_a_batch_whose_parts_differ_is_refused() -> None:
    """Each leaf of a Dict action has one value a row."""

    class Uneven(rows.TablePolicy):
        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            actions, infos = super().get_actions(observations)
            return {**actions, "turn": actions["turn"][:-1]}, infos

    with pytest.raises(PolicyError, match="get_actions gave 1 and 2 for 2 observations"):
        run_numbers(make_vec([envs.DictEnv(), envs.DictEnv()], Uneven), range(2))


class MaskedInfoPolicy(policies.GaragePolicy):
    """Tells something of every second row only, and of the first row alone a vector."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        actions, _ = super().get_actions(observations)
        numbers = np.ma.MaskedArray(np.arange(4), np.arange(4) % 2 == 1)
        vectors = np.ma.MaskedArray(np.ones((4, 2)), np.repeat(np.arange(4) > 0, 2).reshape(4, 2))
        return actions, {"number": numbers, "vector": vectors, "nested": {"row": np.arange(4)}}


def test_infos_that_some_rows_lack() -> None:
    """A masked value is none; nested infos are taken apart by row."""
    chunk = run_numbers(make_vec([Row(tag, 1) for tag in range(4)], MaskedInfoPolicy), range(4))
    infos = chunk.agent_infos.to_dicts()
    expected = [{"number", "vector", "nested.row"}, {"nested.row"}, {"number", "nested.row"}, {"nested.row"}]
    assert expected == [set(row) for row in infos]
    assert [0, 1, 2, 3] == [row["nested.row"] for row in infos]
