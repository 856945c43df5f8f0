"""A native row's episode without an end fails after the steps that are allowed, whatever other rows do."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollout_cli.errors import EnvError, RolloutError
from rollout_cli.workers import NativeVecWorker, WorkerFactory
from rollout_cli.workers.native_rules import EndlessGuard
from rollout_cli.workers.row_episodes import RowEpisodes
from rollout_cli.workers.rules import EpisodeRules
from tests.support import vector_envs
from tests.support.policies import LinearPolicy
from tests.unit.workers.making_native import DISABLED, NEXT_STEP, SAME_STEP, each_mode
from tests.unit.workers.native_under_rules import N_ENVS, run


@each_mode
@pytest.mark.parametrize("most", [1, 5, 70, 300])
def test_an_episode_without_an_end_fails(mode: AutoresetMode, most: int) -> None:
    """After as many steps as are allowed; its number is known, and so is the way out."""
    message = rf"^the episode has no end: it is {most} steps long \(worker 0, episode 0, row 0\)$"
    with pytest.raises(EnvError, match=message) as e:
        run(vector_envs.endless(N_ENVS, mode), LinearPolicy, EpisodeRules(step_guard=most))
    assert 0 == e.value.episode
    assert ("--max-episode-length" if mode is DISABLED else "--env-kwargs max_episode_steps") in e.value.hint
    assert "--episode-step-guard" in e.value.hint


@each_mode
def test_big_observations_end_an_episode_earlier(mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count as well as steps: twelve an observation."""
    monkeypatch.setattr("rollout_cli.workers.rules.GUARD_BYTES", 160)
    with pytest.raises(EnvError, match="it is 13 steps long"):
        run(vector_envs.endless(N_ENVS, mode), LinearPolicy)


class OneEndlessRow(vector_envs.ScriptedVectorEnv):
    """Row 1 ends its first episode after 4 steps, and never ends its second; the others have 3 steps each."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        def length(row: int, k: int) -> int:
            return 3 if row != 1 else 4 if k == 0 else 10**9

        super().__init__(num_envs, length, mode)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_one_row_without_an_end_among_others(mode: AutoresetMode) -> None:
    """It is found though the others go on, and those that ended can be taken."""
    factory = WorkerFactory(
        n_workers=1,
        seed=3,
        worker_class=NativeVecWorker,
        worker_args={"n_envs": N_ENVS},
        rules=EpisodeRules(step_guard=40),
    )
    worker = factory(0)
    worker.update_env(OneEndlessRow(N_ENVS, mode))
    worker.update_agent(lambda observation: 0)
    worker.assign(range(1000))
    caught: RolloutError | None = None
    steps = 0
    while caught is None and steps < 100:
        steps += 1
        try:
            worker.advance(-1.0)
        except EnvError as error:
            caught = error
    assert caught is not None
    assert "it is 40 steps long" in caught.message
    # The first episode's steps, the one in which NEXT_STEP resets the row, and those of the second.
    assert (45 if mode is NEXT_STEP else 44) == steps


def test_a_limit_is_no_endless_episode() -> None:
    """One that is truncated where the guard would look is whole."""
    factory = WorkerFactory(
        n_workers=1,
        seed=3,
        max_episode_length=5,
        worker_class=NativeVecWorker,
        worker_args={"n_envs": N_ENVS},
        rules=EpisodeRules(step_guard=5),
    )
    worker = factory(0)
    worker.update_env(vector_envs.endless(N_ENVS, DISABLED))
    worker.update_agent(lambda observation: 0)
    worker.assign(range(7))
    while worker.has_work:
        worker.advance(-1.0)
    chunk, error = factory.take(worker)
    assert error is None
    assert chunk is not None
    assert [5] * 7 == chunk.lengths.tolist()


def test_the_guard_sees_episodes_that_begin_after_it_has_looked_at_none() -> None:
    """A worker may run nothing for a while."""
    guard = EndlessGuard(EpisodeRules(step_guard=10), row_bytes=4, step=0, resets_itself=False, worker_number=0)
    episodes = RowEpisodes(2)
    guard.look(episodes, 10)
    assert 20 == guard.look_at
    episodes.begin(np.array([1]), np.array([7]), None, {}, step=12)
    guard.look(episodes, 20)
    assert 22 == guard.look_at
    with pytest.raises(EnvError, match=r"it is 10 steps long \(worker 0, episode 7, row 1\)"):
        guard.look(episodes, 22)
