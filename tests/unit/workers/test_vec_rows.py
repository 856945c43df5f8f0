"""VecWorker: rows take their own next numbers by themselves, and what has ended is handed on without gaps."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_cli.errors import EnvError
from rollout_cli.workers import VecWorker, recorder
from tests.support import rows
from tests.unit.workers.making import run_numbers
from tests.unit.workers.making_vec import Row, make_vec, tags


def test_a_number_runs_in_its_own_row() -> None:
    """Number i runs in row i % n_envs, in whatever order and portions numbers come."""
    worker = make_vec([Row(tag) for tag in range(3)])
    chunk = run_numbers(worker, [7, 0, 5, 4, 13, 9, 2])
    assert {number: number % 3 for number in (0, 2, 4, 5, 7, 9, 13)} == tags(chunk)
    assert {1: 1, 14: 2} == tags(run_numbers(worker, [14, 1]))


def test_numbers_of_a_worker_that_owns_every_third() -> None:
    """Where a worker owns every m-th number, they go round its rows."""
    worker = make_vec([Row(tag) for tag in range(2)])
    worker.number_stride = 3
    assert {1: 0, 4: 1, 7: 0, 10: 1} == tags(run_numbers(worker, [1, 4, 7, 10]))


def test_row_wise_policies_take_any_free_row() -> None:
    """Where the row cannot be seen, the next number goes to whichever row is free: none waits for a long episode."""
    worker = make_vec([Row(0, length=9), Row(1, length=1)], rows.AlonePolicy)
    assert {0: 0, **dict.fromkeys(range(1, 6), 1)} == tags(run_numbers(worker, range(6)))


def test_every_row_takes_its_next_number_by_itself() -> None:
    """A row whose episode ends begins its next number in the next step, while the others go on."""
    worker = make_vec([Row(0, length=1), Row(1, length=4)])
    worker.assign(range(8))
    finished = []
    while worker.has_work:
        worker.start_episode()
        worker.step_episode()
        finished.append(sorted(worker.finished_numbers))
    assert [[0], [0, 2], [0, 2, 4], [0, 1, 2, 4, 6]] == finished[:4]
    assert 16 == len(finished)


def test_episodes_are_handed_on_without_gaps() -> None:
    """An episode that ends before a lower number is held back until that one ended: chunks are cut at every gap."""
    worker = make_vec([Row(0, length=1), Row(1, length=4)])
    worker.assign(range(8))
    finished = []
    while worker.has_work:
        worker.advance(-1.0)
        finished.append(worker.finished_numbers.copy())
    assert [[0], [0], [0], [0, 1, 2]] == [sorted(numbers) for numbers in finished[:4]]
    assert list(range(8)) == sorted(finished[-1])


def test_a_long_episode_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quarter of a second, what has ended is handed on, gap or not."""
    worker = make_vec([Row(0, length=1), Row(1, length=9)])
    monkeypatch.setattr(recorder, "HOLD_SECONDS", 0.0)
    worker.assign(range(8))
    for _ in range(3):
        worker.advance(-1.0)
    assert [0, 2, 4] == sorted(worker.finished_numbers)


def test_what_is_held_is_not_lost_and_not_run_twice() -> None:
    """Where all numbers are taken back, what had ended can be taken; above a ceiling, it is dropped with the rest."""
    stopped, capped = (make_vec([Row(0, length=1), Row(1, length=9)]) for _ in range(2))
    for worker in (stopped, capped):
        worker.assign(range(8))
        for _ in range(3):
            worker.advance(-1.0)
        assert [0] == worker.finished_numbers
    stopped.retract()
    assert [0, 2, 4] == sorted(stopped.finished_numbers)
    capped.retract(above=2)
    while capped.has_work:
        capped.advance(-1.0)
    assert [0, 1, 2] == sorted(capped.finished_numbers)


def test_what_is_held_outlives_an_error() -> None:
    """An environment that fails takes only its own episode along."""

    class Failing(Row):
        def step(self, action: Any) -> Any:
            if self.resets == 2:
                raise ValueError("the second episode fails")
            return super().step(action)

    worker = make_vec([Row(0, length=1), Failing(1, length=4)])
    worker.assign(range(40))
    with pytest.raises(EnvError):
        worker.advance(1e9)
    assert [0, 1, 2, 4, 6] == sorted(worker.finished_numbers)[:5]


def test_no_episode_is_begun_in_vain() -> None:
    """There are as many resets as episodes, however unequal rows are."""
    made = [Row(tag) for tag in range(4)]
    assert 22 == run_numbers(make_vec(made), range(22)).n_episodes
    assert 22 == sum(env.resets for env in made)


@pytest.mark.parametrize("n_envs", [0, -1])
def test_a_worker_has_at_least_one_row(n_envs: int) -> None:
    """No rows are refused."""
    with pytest.raises(ValueError, match=f"n_envs is {n_envs}, must be at least 1"):
        VecWorker(seed=0, max_episode_length=None, worker_number=0, n_envs=n_envs)
