"""VecWorker: a row's episode ends as its environment or the limit says, or with an error that names its step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from rollout_cli.envs import as_env_source
from rollout_cli.errors import EnvError, PolicyError, RolloutError
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import VecWorker
from tests.support import envs, policies, rows
from tests.unit.workers.making import SEED, assert_same_episodes, make_worker, run_numbers
from tests.unit.workers.making_vec import Row, make_vec


@pytest.mark.parametrize(
    ("ends", "flags"), [("terminated", (True, False)), ("truncated", (False, True)), ("both", (True, True))]
)
def test_flags_and_last_observations(ends: Any, flags: tuple[bool, bool]) -> None:
    """However an episode ends, its flags are kept, and the last observation is the one after the end."""
    chunk = run_numbers(make_vec([Row(tag, ends=ends) for tag in range(3)]), range(9))
    assert {flags} == set(zip(chunk.terminated.tolist(), chunk.truncated.tolist(), strict=True))
    assert chunk.lengths.tolist() == chunk.last_observations[0][:, 0].tolist()


def test_the_limit_truncates_each_row() -> None:
    """`max_episode_length` counts each row's own steps; an end at the limit is both."""
    made = [Row(0, length=3), Row(1, length=5), Row(2, length=9)]
    chunk = run_numbers(make_vec(made, max_episode_length=5), range(6))
    assert [3, 5, 5] * 2 == chunk.lengths.tolist()
    assert [True, True, False] * 2 == chunk.terminated.tolist()
    assert [False, True, True] * 2 == chunk.truncated.tolist()


def test_the_limit_truncates_rows_that_began_at_other_times() -> None:
    """A row that began two steps after another comes to the limit two steps later."""
    worker = make_vec([Row(tag, length=100) for tag in range(2)], max_episode_length=5)
    worker.assign([0])
    worker.start_episode()
    ended = [worker.step_episode() for _ in range(2)]
    worker.assign([1])
    worker.start_episode()
    ended += [worker.step_episode() for _ in range(5)]
    assert [False] * 4 + [True, False, True] == ended
    assert [5, 5] == worker.collect_episode().lengths.tolist()


def test_a_time_limit_truncates() -> None:
    """A TimeLimit wrapper's truncation is the environment's own."""
    made = [TimeLimit(envs.EndlessEnv(), 4) for _ in range(2)]
    chunk = run_numbers(make_vec(made), range(4))
    assert ([4] * 4, [False] * 4, [True] * 4) == (
        chunk.lengths.tolist(),
        chunk.terminated.tolist(),
        chunk.truncated.tolist(),
    )


@pytest.mark.parametrize("limit", [None, 13])
def test_environments_built_by_id(limit: int | None) -> None:
    """Without gymnasium's wrappers, which are taken off there, the episodes are those with them."""
    source = as_env_source("Pendulum-v1")
    worker = VecWorker(seed=SEED, max_episode_length=limit, worker_number=2, n_envs=3)
    worker.update_env(source)
    worker.update_agent(rows.AlonePolicy(worker.env_spec))
    wrapped = make_worker(gymnasium.make("Pendulum-v1"), rows.AlonePolicy, max_episode_length=limit)
    assert_same_episodes(run_numbers(wrapped, range(5)), run_numbers(worker, range(5)))
    worker.shutdown()


# -- failures ----------------------------------------------------------------------------------------------------------


class FailingRowPolicy(rows.AlonePolicy):
    """Raises at the second step of an episode that has so many."""

    steps = 0

    def reset(self) -> None:
        self.steps = 0

    def place(self, observation: Any) -> float:
        self.steps += 1
        if self.steps == 2:
            raise ValueError("no more")
        return 0.5


class FailingReset(rows.AlonePolicy):
    def reset(self) -> None:
        raise ValueError("no reset")


class FailingSeed(rows.AlonePolicy):
    def seed(self, seed: int) -> None:
        raise ValueError("no seed")


class FailingBatchReset(rows.TablePolicy):
    def reset(self, do_resets: Any = None) -> None:
        raise ValueError("no reset")


class ShortObservation(Row):
    """Gives an observation of another shape after the first step."""

    def observe(self) -> Any:
        observation = super().observe()
        return observation[:2] if self._position == 1 else observation


class FlatObservation(Row):
    """Begins with an observation of another shape that has as many bytes."""

    def observe(self) -> Any:
        observation = super().observe()
        return observation[None] if self._position == 0 else observation


Long = [Row(0, 5), Row(1, 5)]
FAILURES: list[tuple[list[Any], Any, type[RolloutError], str, tuple[int, int]]] = [
    ([*Long, envs.FailingEnv("reset")], rows.TablePolicy, EnvError, "env.reset raised ValueError: the reset", (2, 0)),
    ([*Long, envs.FailingEnv("step", 1)], rows.TablePolicy, EnvError, "env.step raised ValueError: step 1", (2, 0)),
    ([*Long, FlatObservation(2, 5)], rows.TablePolicy, EnvError, r"not of its space: got float32\(1, 3", (2, 0)),
    ([*Long, ShortObservation(2, 5)], rows.TablePolicy, EnvError, r"not of its space: got float32\(2,", (2, 1)),
    ([Row(0, 1), Row(1, 5)], FailingRowPolicy, PolicyError, "policy.get_action raised ValueError: no more", (1, 1)),
    ([*Long], FailingReset, PolicyError, "policy.reset raised ValueError: no reset", (0, 0)),
    ([*Long], FailingSeed, PolicyError, "policy.seed raised ValueError: no seed", (0, 0)),
    ([*Long], FailingBatchReset, PolicyError, "policy.reset raised ValueError: no reset", (0, 0)),
    ([*Long], lambda spec: policies.FailingPolicy(spec, 3), PolicyError, "get_actions raised ValueError: the", (0, 1)),
]


@pytest.mark.parametrize(("made", "policy", "kind", "message", "place"), FAILURES)
def test_failures_name_what_and_where(
    made: list[Any], policy: Any, kind: type[RolloutError], message: str, place: tuple[int, int]
) -> None:
    """The error's class says whose fault it is; its one line names worker, episode, seed and step of the row."""
    number, step = place
    where = rf"\(worker 2, episode {number}, seed {derive_seed(SEED, number, 'env')}, step {step}\)$"
    with pytest.raises(kind, match=f"{message}.* {where}") as caught:
        run_numbers(make_vec(made, policy), range(len(made)))
    assert caught.value.hint


def test_after_a_failure_the_worker_goes_on() -> None:
    """What was finished stays; the other rows' episodes leave nothing behind."""
    worker = make_vec([Row(0, 1), Row(1, 5)], FailingRowPolicy)
    worker.assign(range(8))
    with pytest.raises(PolicyError):
        worker.advance(math.inf)
    before = list(worker.finished_numbers)
    worker.retract()
    worker.update_agent(lambda observation: 1)
    chunk = run_numbers(worker, range(20, 24))
    assert sorted([*before, *range(20, 24)]) == chunk.numbers.tolist()
    assert len(chunk.rewards) == chunk.lengths.sum()
