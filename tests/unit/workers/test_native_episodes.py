"""NativeVecWorker: episodes are whole in all three autoreset modes, and end as the environment says."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.envs import env_source
from rollout_cli.errors import EnvError
from rollout_cli.policies.random import RandomPolicy
from tests.support import vector_envs
from tests.unit.workers.making_native import check_chain, each_mode, native, run

pytestmark = pytest.mark.usefixtures("small_blocks")


@each_mode
@pytest.mark.parametrize("steps", [1, 7])
def test_episodes_are_whole_in_every_mode(mode: AutoresetMode, steps: int) -> None:
    """No dead row is recorded, no reset's observation or info is taken for a step's, the last ones are the last."""
    worker = native(vector_envs.chain(4, mode), n_envs=4)
    chunk = run(worker, range(40), steps=steps)
    assert list(range(40)) == chunk.numbers.tolist()
    assert chunk.terminated.all()
    assert not chunk.truncated.any()
    check_chain(chunk)


@each_mode
def test_steps_are_put_where_memory_is_lent(mode: AutoresetMode) -> None:
    """All columns of numbers that there is room for, and none elsewhere; they stay while somebody holds them."""
    memory, asked = BufferPool(), list[int]()

    def lend(size: int) -> memoryview | None:
        asked.append(size)
        return None if len(asked) % 3 == 0 else memory.take(size)

    worker = native(vector_envs.chain(4, mode), n_envs=4)
    worker.lend = lend
    chunks = [run(worker, range(start, start + 40), steps=30) for start in (0, 40)]
    # For three columns each time that episodes are taken, which is as often as the clock has it, once a run at least.
    assert len(asked) >= 2 * 3
    assert 0 == len(asked) % 3
    assert memory.free_bytes > 0
    for chunk in chunks:
        check_chain(chunk.widened())
        # What is sent elsewhere goes as it was recorded; the last actions may be wide, as they would not fit.
        assert chunk.types is not None
        assert [np.dtype("f4"), np.dtype("i8"), np.dtype("f8")] == list(chunk.types)


@each_mode
def test_both_flags(mode: AutoresetMode) -> None:
    """A last step that terminates and truncates keeps both flags."""
    chunk = run(native(vector_envs.both_flags(3, mode)), range(12))
    assert chunk.terminated.all()
    assert chunk.truncated.all()


@each_mode
def test_a_time_limit_inside(mode: AutoresetMode) -> None:
    """The environment's own limit is known, and truncates."""
    worker = native(vector_envs.limited(3, mode))
    chunk = run(worker, range(7))
    assert 6 == worker.env_spec.max_episode_length
    assert [6] * 7 == chunk.lengths.tolist()
    assert chunk.truncated.all()


def test_cartpole_by_its_vector_entry_point() -> None:
    """Every recorded step of CartPole is one of its dynamics: the next observation follows from this one."""
    worker = native(env_source("CartPole-v1"), lambda spec: RandomPolicy(spec.action_space), n_envs=16)
    chunk = run(worker, range(64), steps=9)
    single: Any = gymnasium.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    assert chunk.terminated.all()
    for at in range(0, 64, 7):
        one = chunk.episodes(at, at + 1)
        states = np.concatenate([one.observations[0], one.last_observations[0]])
        assert np.abs(states[0]).max() <= 0.05
        for step in range(int(one.lengths[0])):
            single.state, single.steps_beyond_terminated = states[step].astype(np.float64), None
            _, reward, terminated, _, _ = single.step(int(one.actions[0][step]))
            np.testing.assert_allclose(states[step + 1], single.state, rtol=1e-4, atol=1e-6)
            assert reward == one.rewards[step]
            assert terminated == (step + 1 == int(one.lengths[0]))


def test_a_dense_array_of_last_observations() -> None:
    """Last observations may come as one array for all rows; a last step without infos has none."""
    chunk = run(native(vector_envs.DenseFinal(3)), range(9))
    for at in range(9):
        one = chunk.episodes(at, at + 1)
        row, k, _ = one.observations[0][0].tolist()
        assert [row, k, row + 1] == one.last_observations[0][0].tolist()
        assert [[row, k, step] for step in range(row + 1)] == one.observations[0].tolist()


def test_a_lost_last_observation_is_an_error() -> None:
    """An environment that resets in the same step must hand the last observation on."""
    worker = native(vector_envs.GivesNoFinal(2), n_envs=2)
    with pytest.raises(EnvError, match="final_obs"):
        run(worker, [0, 1])


def test_one_long_episode_keeps_only_its_own_steps() -> None:
    """What was carried along with an episode that runs on and on is let go when the other rows' episodes have ended."""
    worker = native(vector_envs.ScriptedVectorEnv(8, lambda row, k: 400 if row == 0 else 7), n_envs=8)
    worker.assign(range(3000))
    most = 0
    while 0 in worker._the_stepper().episodes.numbers or not most:
        worker.advance(-1.0)
        worker.take()
        carried = worker._the_recorder().history.n_carried
        step = worker._the_recorder().step
        most = max(most, carried)
        assert carried <= 2 * (step + 8 * 12)
    assert most >= 380
