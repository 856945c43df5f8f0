"""NativeVecWorker gives the episodes of a plain loop, whatever the lengths, widths, blocks and ways of taking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.chunk import concatenate
from rollout_cli.workers import block_recorder as recording
from rollout_cli.workers import next_step_episodes
from tests.support import vector_envs
from tests.support.policies import LinearPolicy
from tests.unit.workers.making_native import SAME_STEP, each_self_resetting, native, run

pytestmark = pytest.mark.usefixtures("small_blocks")


def reference(env: Any, mode: AutoresetMode, n_numbers: int, action: Callable[[Any], int]) -> dict[int, Any]:
    """Run a ScriptedVectorEnv that resets itself, row by row and step by step; return its episodes by number."""
    numbers, out = list(range(n_numbers)), dict[int, Any]()
    observations, infos = env.reset()
    rows: list[Any] = []

    def begin(row: int, infos: Any) -> Any:
        number = numbers.pop(0) if numbers else None
        return {"number": number, "steps": [], "k": int(infos["k"][row])}

    rows = [begin(row, infos) for row in range(env.num_envs)]
    dead = [False] * env.num_envs
    while len(out) < n_numbers:
        before = observations.copy()
        actions = np.array([action(row) for row in before])
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for row in range(env.num_envs):
            if dead[row]:
                rows[row], dead[row] = begin(row, infos), False
                continue
            step = len(rows[row]["steps"]) + 1
            rows[row]["steps"].append((before[row].tolist(), int(actions[row]), float(rewards[row]), step))
            if not (terminated[row] or truncated[row]):
                continue
            same = mode is SAME_STEP
            last = infos["final_obs"][row] if same else observations[row]
            flags = bool(terminated[row]), bool(truncated[row])
            if rows[row]["number"] is not None:
                out[rows[row]["number"]] = (rows[row], last.tolist(), flags)
            if same:
                rows[row] = begin(row, infos)
            else:
                dead[row] = True
    return out


class SumPolicy(LinearPolicy):
    """The action follows from the observation's sum."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return int(observation.sum() % 3), {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return observations.sum(axis=1) % 3, {}


@each_self_resetting
@settings(max_examples=60)
@given(
    n_envs=st.integers(1, 5),
    n_numbers=st.integers(1, 25),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=9),
    block=st.integers(4, 12),
    take_every=st.integers(1, 9),
)
def test_against_a_plain_reference(
    mode: AutoresetMode, *, n_envs: int, n_numbers: int, lengths: list[int], block: int, take_every: int
) -> None:
    """Any lengths, widths, block sizes and ways of taking give the episodes of a loop over lists."""

    def length(row: int, k: int) -> int:
        return lengths[(row * 3 + k) % len(lengths)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "BLOCK_STEPS", block)
        worker = native(vector_envs.ScriptedVectorEnv(n_envs, length, mode), SumPolicy, n_envs=n_envs)
    chunk = run(worker, range(n_numbers), steps=take_every)
    expected = reference(
        vector_envs.ScriptedVectorEnv(n_envs, length, mode), mode, n_numbers, lambda row: int(row.sum() % 3)
    )
    assert sorted(expected) == chunk.numbers.tolist()
    for at, number in enumerate(chunk.numbers.tolist()):
        one, (episode, last, flags) = chunk.episodes(at, at + 1), expected[number]
        assert [seen for seen, *_ in episode["steps"]] == one.observations[0].tolist()
        assert [act for _, act, *_ in episode["steps"]] == one.actions[0].tolist()
        assert [reward for *_, reward, _ in episode["steps"]] == one.rewards.tolist()
        assert [vector_envs.step_info(step) for *_, step in episode["steps"]] == one.env_infos.to_dicts()
        assert [{"k": episode["k"]}] == one.episode_infos.to_dicts()
        assert last == one.last_observations[0][0].tolist()
        assert flags == (bool(one.terminated[0]), bool(one.truncated[0]))


class StatelessPolicy:
    """The action follows from the observation alone, and there is nothing to reset."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return observations.sum(axis=1) % 3, {}


@settings(max_examples=60)
@given(
    n_envs=st.integers(1, 5),
    n_numbers=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=9),
    block=st.integers(4, 40),
    at_once=st.integers(1, 12),
    steps=st.sampled_from([1, 3, 10_000]),
)
def test_many_quiet_steps_looked_through_at_once(
    *, n_envs: int, n_numbers: int, lengths: list[int], block: int, at_once: int, steps: int
) -> None:
    """Where nothing is told in a step, steps are looked through many at a time: every episode is right all the same.

    Numbers go to rows in the order in which these begin, a row that ended begins after one step more.
    """

    def length(row: int, k: int) -> int:
        return lengths[(row * 3 + k) % len(lengths)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "BLOCK_STEPS", block)
        patch.setattr(next_step_episodes, "SETTLE_STEPS", at_once)
        env = vector_envs.QuietVectorEnv(n_envs, length)
        worker = native(env, lambda spec: StatelessPolicy(), n_envs=n_envs)
    worker.assign(range(n_numbers))
    stepper, chunks = worker._the_stepper(), []
    while worker.has_work:
        for _ in range(min(steps, 3 * at_once)):
            worker._begin()
            stepper.step()
        worker.advance(-1.0)
        if (taken := worker.take()) is not None:
            chunks.append(taken)
    begun = sorted(
        (sum(length(row, k) + 1 for k in range(before)), row, before)
        for row in range(n_envs)
        for before in range(n_numbers)
    )
    chunk = concatenate(chunks)
    assert list(range(n_numbers)) == sorted(chunk.numbers.tolist())
    for at, number in enumerate(chunk.numbers.tolist()):
        one, (_, row, k) = chunk.episodes(at, at + 1), begun[number]
        count = length(row, k)
        seen = [[row, k, step] for step in range(count)]
        acts = [sum(observation) % 3 for observation in seen]
        assert seen == one.observations[0].tolist()
        assert acts == one.actions[0].tolist()
        assert [step + 1 + 0.5 * act for step, act in enumerate(acts)] == one.rewards.tolist()
        assert [row, k, count] == one.last_observations[0][0].tolist()
        assert ((row + k) % 2 == 0, (row + k) % 2 == 1) == (bool(one.terminated[0]), bool(one.truncated[0]))
        assert 0.0 <= one.wall_times[0] < 60.0
