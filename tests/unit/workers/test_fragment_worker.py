"""FragmentWorker: parts of episodes that fit together, in rows that number their episodes by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollout_cli._info_arrays import info_rows
from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EpisodeBatch, StepType
from rollout_cli.errors import EnvError, InternalError
from rollout_cli.workers import FragmentWorker
from tests.support.envs import BothFlagsEnv, ChainEnv, EndlessEnv, FailingEnv, LateInfoEnv, ReusedBufferEnv
from tests.support.policies import LinearPolicy, RecurrentPolicy
from tests.unit.workers.making import make_worker, run_numbers
from tests.unit.workers.making_fragments import by_number, has_ended, make, rollouts, whole_episodes


def test_each_call_takes_its_steps_in_every_row() -> None:
    """A call gives n_envs * timesteps_per_call steps, however many episodes begin and end in it."""
    assert [12] * 20 == [len(batch.rewards) for batch in rollouts(make(), 20)]
    assert [12] * 3 == [len(batch.rewards) for batch in rollouts(make(EndlessEnv, max_episode_length=1), 3)]


@pytest.mark.parametrize("env", [ChainEnv, BothFlagsEnv, LateInfoEnv, ReusedBufferEnv])
@pytest.mark.parametrize("policy", [LinearPolicy, RecurrentPolicy])
def test_fragments_put_together_are_the_episodes_of_a_default_worker(env: Any, policy: Any) -> None:
    """Rows, infos, seed and flags of an episode's fragments, joined, are the whole episode's, bit for bit."""
    found = whole_episodes(rollouts(make(env, policy), 12))
    assert len(found) > 20
    assert any(len(parts) > 1 for parts in found.values())
    numbers = sorted(found)
    chunk = run_numbers(make_worker(env(), policy), numbers)
    expected = EpisodeBatch.from_chunks(describe_env(env()), [chunk]).split()
    for number, episode in zip(numbers, expected, strict=True):
        parts = found[number]
        joined = EpisodeBatch.concatenate(*parts)
        for name in ("observations", "actions", "rewards", "step_types"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(joined, name), err_msg=name)
        for name in ("last_observations", "terminated", "truncated", "seeds"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(parts[-1], name), err_msg=name)
        for name in ("env_infos", "agent_infos"):
            steps = int(episode.lengths[0])
            assert info_rows(getattr(episode, name), steps) == info_rows(getattr(joined, name), steps)
        for part in parts:
            assert episode.episode_infos["length"].tolist() == part.episode_infos["length"].tolist()


def test_a_fragment_knows_where_it_begins_and_what_comes_next() -> None:
    """First steps count on, a last observation is what the next fragment begins with, and only the first has FIRST."""
    worker = make(EndlessEnv, n_envs=2, timesteps_per_call=3)
    first, second, third = rollouts(worker, 3)
    assert [[0, 0], [3, 3], [6, 6]] == [batch.first_steps.tolist() for batch in (first, second, third)]
    assert [[0, 1]] * 3 == [batch.numbers.tolist() for batch in (first, second, third)]
    np.testing.assert_array_equal(first.last_observations, second.observations[[0, 3]])
    np.testing.assert_array_equal(second.last_observations, third.observations[[0, 3]])
    assert [[StepType.FIRST, 1, 1] * 2, [StepType.MID, 1, 1] * 2] == [
        batch.step_types.tolist() for batch in (first, second)
    ]
    assert not (first.terminated | first.truncated | second.terminated | second.truncated).any()


def test_the_limit_counts_the_steps_of_all_fragments() -> None:
    """An episode is truncated after max_episode_length steps, though they were handed on in parts."""
    found = by_number(rollouts(make(EndlessEnv, max_episode_length=10, timesteps_per_call=4), 10))
    lengths = {number: [int(part.lengths[0]) for part in parts] for number, parts in found.items()}
    assert [4, 4, 2] == lengths[0]
    assert {10} == {sum(parts) for number, parts in lengths.items() if has_ended(found[number][-1])}
    assert found[0][-1].truncated.tolist() == [True]


def test_rows_number_their_episodes_by_themselves() -> None:
    """Row r of three runs episodes r, r + 3, r + 6, …; no number comes twice."""
    worker = make()
    ended = [int(number) for batch in rollouts(worker, 20) for number in batch.numbers[batch.terminated]]
    assert len(ended) == len(set(ended))
    for row in range(3):
        own = [number for number in ended if number % 3 == row]
        assert list(range(row, row + 3 * len(own), 3)) == own


@pytest.mark.parametrize(("stride", "number", "expected"), [(1, 0, [0, 1, 2]), (1, 4, [6, 4, 5]), (2, 7, [12, 8, 10])])
def test_going_on_from_a_number(stride: int, number: int, expected: list[int]) -> None:
    """Each row begins with its own lowest number from there on."""
    worker = make(EndlessEnv)
    worker.number_stride = stride
    worker.go_on_from(number)
    assert sorted(expected) == worker.rollout().numbers.tolist()


def test_assigned_numbers_are_run_first() -> None:
    """A row runs the numbers that it was assigned, and goes on from the last of them."""
    worker = make(EndlessEnv, max_episode_length=4)
    worker.assign([7, 4])
    assert [[0, 2, 4], [3, 5, 7], [6, 8, 10]] == [batch.numbers.tolist() for batch in rollouts(worker, 3)]


def test_an_error_names_the_step_of_the_episode() -> None:
    """The step in the message counts from the episode's begin, not from the fragment's."""
    worker = make(lambda: FailingEnv("step", 9), n_envs=1, timesteps_per_call=2)
    with pytest.raises(EnvError, match=r"step 8\)$"):
        rollouts(worker, 1000)


def test_nothing_to_collect() -> None:
    """Collecting twice in a row is a fault of the caller's."""
    worker = make()
    worker.rollout()
    with pytest.raises(InternalError, match="no step taken"):
        worker.collect_episode()


@pytest.mark.parametrize("option", ["n_envs", "timesteps_per_call"])
def test_at_least_one(option: str) -> None:
    """Both numbers are checked, and named."""
    options: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=f"{option} is 0, must be at least 1"):
        FragmentWorker(seed=0, max_episode_length=None, worker_number=0, **options)
