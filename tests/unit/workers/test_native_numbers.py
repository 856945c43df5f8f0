"""NativeVecWorker runs the numbers that it was assigned and no other, and tells of what has ended in time."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollout_cli.errors import InternalError
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.workers import block_recorder as recording
from rollout_cli.workers import native_worker
from tests.support import vector_envs
from tests.unit.workers.making_native import DISABLED, check_chain, each_mode, native, run

pytestmark = pytest.mark.usefixtures("small_blocks")


@each_mode
def test_exactly_the_numbers_that_were_assigned(mode: AutoresetMode) -> None:
    """Fewer numbers than rows, then more: each ends once, and rows without a number leave nothing behind."""
    worker = native(vector_envs.chain(8, mode), n_envs=8)
    first = run(worker, [0, 1, 2])
    second = run(worker, range(3, 30))
    assert [0, 1, 2] == first.numbers.tolist()
    assert list(range(3, 30)) == second.numbers.tolist()
    check_chain(first)
    check_chain(second)


@each_mode
def test_numbers_that_come_while_others_run(mode: AutoresetMode) -> None:
    """Numbers assigned later begin in rows that are free, or that begin anew."""
    worker = native(vector_envs.chain(4, mode), n_envs=4)
    worker.assign([0, 1])
    worker.advance(-1.0)
    chunk = run(worker, [2, 3, 4, 5, 6])
    assert list(range(7)) == chunk.numbers.tolist()
    check_chain(chunk)


@each_mode
def test_retracted_numbers_never_come(mode: AutoresetMode) -> None:
    """What is above the ceiling is dropped, whether it waits, runs, or is held back since a lower number is missing."""
    worker = native(vector_envs.chain(4, mode), n_envs=4)
    worker.assign(range(20))
    for _ in range(4):
        worker.advance(-1.0)
    known = set(worker.finished_numbers)
    worker.retract(above=3)
    while worker.has_work:
        worker.advance(-1.0)
    chunk = worker.take()
    assert chunk is not None
    assert sorted({0, 1, 2, 3} | known) == chunk.numbers.tolist()
    worker.assign([50])
    worker.advance(-1.0)
    worker.retract()
    worker.take()
    assert not worker.has_work
    assert [60, 61] == run(worker, [60, 61]).numbers.tolist()


def test_what_was_not_looked_through_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose ends nobody has looked for yet do not take numbers that come after all were given up."""
    monkeypatch.setattr(native_worker, "RELEASE_SECONDS", np.inf)
    monkeypatch.setattr(recording, "BLOCK_STEPS", 64)
    resets: list[Any] = []
    env = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    worker = native(env, lambda spec: RandomPolicy(spec.action_space))
    reset = env.reset

    def counted(**given: Any) -> Any:
        resets.append(given)
        return reset(**given)

    monkeypatch.setattr(env, "reset", counted)
    worker.assign(range(100))
    for _ in range(60):
        worker.advance(-1.0)
    assert ([], 1) == (worker.finished_numbers, len(resets))
    worker.retract()
    assert not worker.has_work
    chunk = run(worker, range(200, 206))
    assert (list(range(200, 206)), 2) == (chunk.numbers.tolist(), len(resets))


def test_a_missing_number_holds_higher_ones_back_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Higher numbers wait for a lower one that runs; when they waited long enough they come all the same."""
    env = vector_envs.ScriptedVectorEnv(2, lambda row, k: 50 if row == 0 else 1)
    worker = native(env, n_envs=2)
    worker.assign(range(10))
    worker.start_episode()
    for _ in range(9):
        worker.step_episode()
    assert [] == worker.finished_numbers
    monkeypatch.setattr(recording, "HOLD_SECONDS", 0.0)
    worker.step_episode()
    assert [1, 2, 3, 4, 5] == worker.finished_numbers


def test_it_tells_what_finished_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came after the first few can be asked for, over all releases; it is what is taken, with its lengths."""
    monkeypatch.setattr(recording, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(native_worker, "RELEASE_SECONDS", 0.0)
    worker = native(vector_envs.ScriptedVectorEnv(2, lambda row, k: 7 if row == 0 else 1), n_envs=2)
    assert [] == list(worker.finished_since(0))
    worker.assign(range(50))
    told: list[int] = []
    for _ in range(12):
        worker.advance(-1.0)
        told += list(worker.finished_since(len(told)))
    assert worker.finished_numbers == told
    assert [] == list(worker.finished_since(len(told)))
    lengths = dict(zip(told, worker.finished_lengths, strict=True))
    chunk = worker.take()
    assert chunk is not None
    assert (sorted(told), [lengths[number] for number in sorted(told)]) == (
        chunk.numbers.tolist(),
        chunk.lengths.tolist(),
    )
    assert ([], 0) == (list(worker.finished_since(0)), worker.finished_rows)


def test_a_fast_environment_releases_after_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended is looked for after a number of steps, however little time they took, and not before."""
    monkeypatch.setattr(native_worker, "RELEASE_SECONDS", np.inf)
    monkeypatch.setattr(native_worker, "RELEASE_STEPS", 5)
    worker = native(vector_envs.ScriptedVectorEnv(2, lambda row, k: 1), n_envs=2)
    worker.assign(range(100))
    found = []
    for _ in range(10):
        worker.advance(-1.0)
        found.append(len(worker.finished_numbers) > 0)
        worker.take()
    assert [step in {5, 10} for step in range(1, 11)] == found


def test_garages_verbs() -> None:
    """start, step and collect run one episode; they refuse to be used out of order."""
    worker = native(vector_envs.chain(3, DISABLED))
    with pytest.raises(InternalError, match="start_episode first"):
        worker.step_episode()
    batch = worker.rollout()
    assert [0] == batch.numbers.tolist()
    assert [1] == worker.rollout().numbers.tolist()
    with pytest.raises(InternalError, match="no finished episode"):
        worker.collect_episode()
