"""VecWorker's verbs: in their order, out of it, and while other numbers come and go."""

from __future__ import annotations

import math
import pickle

import pytest

from rollout_cli.errors import InternalError
from rollout_cli.workers import VecWorker
from tests.unit.workers.making import run_numbers
from tests.unit.workers.making_vec import Row, make_vec


def test_rollout_loses_no_assigned_number() -> None:
    """Each rollout ends with the first episode that does, and goes on with the others: in the end all were run."""
    worker = make_vec([Row(tag) for tag in range(3)])
    worker.assign(range(9))
    batches = []
    while worker.has_work:
        batches.append(worker.rollout())
    assert list(range(9)) == sorted(number for batch in batches for number in batch.numbers.tolist())
    assert len(batches) > 3


def test_without_assigned_numbers_each_number_comes_once() -> None:
    """`rollout` runs the number after the highest there was, one at a time."""
    worker = make_vec([Row(tag) for tag in range(3)])
    for numbers in ([4], [1]):
        run_numbers(worker, numbers)
    assert [5, 6, 7, 8] == [int(worker.rollout().numbers[0]) for _ in range(4)]


def test_verbs_out_of_order_are_refused() -> None:
    """Stepping or collecting without an episode says so, and so does starting without policy or environment."""
    worker = make_vec([Row()])
    for verb in ("step_episode", "collect_episode"):
        with pytest.raises(InternalError, match=f"{verb} was called with no"):
            getattr(worker, verb)()
    for missing in (lambda w: None, lambda w: w.update_env(Row())):
        other = VecWorker(seed=0, max_episode_length=None, worker_number=0, n_envs=2)
        missing(other)
        with pytest.raises(InternalError, match="update_agent and update_env"):
            other.start_episode()


def test_pickling_is_refused() -> None:
    """A worker holds what belongs to its process."""
    with pytest.raises(InternalError, match="VecWorker cannot be pickled"):
        pickle.dumps(make_vec([Row()]))


def test_retracting_gives_up_what_is_above() -> None:
    """Waiting and running numbers above a ceiling are dropped, the others run on; without a ceiling, all go."""
    worker = make_vec([Row(tag, 3) for tag in range(3)])
    worker.assign(range(8))
    worker.advance(-1.0)
    worker.retract(above=1)
    worker.advance(math.inf)
    assert ([0, 1], False) == (sorted(worker.finished_numbers), worker.has_work)
    worker.assign([9, 10, 12])
    worker.advance(-1.0)
    worker.retract()
    assert (False, False) == (worker.running, worker.has_work)
    assert [0, 1] == sorted(worker.finished_numbers)


def test_numbers_come_in_between() -> None:
    """Numbers that are assigned while others run wait for their rows, the lowest first."""
    worker = make_vec([Row(tag, 2) for tag in range(2)])
    worker.assign([0, 8])
    worker.advance(-1.0)
    worker.assign([6, 3])
    order = []
    while worker.has_work:
        worker.advance(-1.0)
        order += [number for number in worker.finished_numbers if number not in order]
    assert [0, 3, 6, 8] == order


def test_shutdown_closes_every_environment() -> None:
    """All rows' environments are closed."""

    class Closing(Row):
        closed = 0

        def close(self) -> None:
            type(self).closed += 1

    make_vec([Closing(), Closing(), Closing()]).shutdown()
    assert 3 == Closing.closed
