"""NativeVecWorker: policies of one row and of many act, draw and fail as they say, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError
from rollout_cli.policies.random import RandomPolicy
from tests.support import vector_envs
from tests.support.policies import FailingPolicy, GlobalNoisePolicy, LinearPolicy, OwnGeneratorPolicy
from tests.unit.workers.making_native import DISABLED, NEXT_STEP, Make, each_mode, each_self_resetting, native, run

pytestmark = pytest.mark.usefixtures("small_blocks")


@each_self_resetting
def test_random_actions_go_on_in_each_row(mode: AutoresetMode) -> None:
    """Rows that reset themselves draw on: no two episodes or workers get the same actions."""
    policy: Make = lambda spec: RandomPolicy(spec.action_space)  # noqa: E731
    env = vector_envs.ScriptedVectorEnv

    def actions(first: int, worker: int) -> list[tuple[int, ...]]:
        made = native(env(3, _twenty, mode), policy, worker=worker)
        chunk = run(made, range(first, first + 9))
        return [tuple(chunk.episodes(at, at + 1).actions[0].tolist()) for at in range(9)]

    assert actions(0, 0) == actions(0, 0)
    assert 18 == len({*actions(0, 0), *actions(9, 1)})


def _twenty(row: int, k: int) -> int:
    return 20


class OneAtATimePolicy:
    """Acts on one observation; action 1 in every other step of its episode, which it counts itself."""

    def __init__(self, env_spec: EnvSpec) -> None:
        self._steps = 0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self._steps += 1
        return self._steps % 2, {"count": self._steps}

    def reset(self) -> None:
        self._steps = 0


@each_mode
def test_a_policy_that_acts_on_one_observation_is_copied_for_each_row(mode: AutoresetMode) -> None:
    """Its state is that of its row's episode alone, and what it tells is recorded."""
    chunk = run(native(vector_envs.chain(3, mode), OneAtATimePolicy), range(12))
    for at in range(chunk.n_episodes):
        one = chunk.episodes(at, at + 1)
        length = int(one.lengths[0])
        assert [(step + 1) % 2 for step in range(length)] == one.actions[0].tolist()
        assert [{"count": step + 1} for step in range(length)] == one.agent_infos.to_dicts()


def test_shared_generators_are_told() -> None:
    """A policy that draws for all rows from one generator, its own or a global one, is not reproducible."""
    own = native(vector_envs.chain(3, DISABLED), OwnGeneratorPolicy)
    assert "policy.rng" in own.facts()["not_reproducible"]
    shared = native(vector_envs.chain(3, DISABLED), GlobalNoisePolicy)
    run(shared, range(6))
    assert "global" in str(shared.not_reproducible)
    quiet = native(vector_envs.chain(3, DISABLED))
    run(quiet, range(6))
    assert quiet.not_reproducible is None


class TellingNoisePolicy(LinearPolicy):
    """Draws from a global generator for all rows, and tells what it drew."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        count = len(observations)
        return np.zeros(count, np.int64), {"noise": np.random.random(count)}


@each_mode
def test_workers_draw_apart(mode: AutoresetMode) -> None:
    """A policy that draws from a global generator does not explore alike in two workers, from the first step on."""
    noise = []
    for at in (0, 1):
        worker = native(vector_envs.chain(3, mode), TellingNoisePolicy, worker=at)
        noise.append(run(worker, range(30 * at, 30 * at + 30)).agent_infos.to_arrays()["noise"].tolist())
    assert set(noise[0]).isdisjoint(noise[1])


@each_mode
def test_a_policy_that_fails(mode: AutoresetMode) -> None:
    """Its error says whose step it was."""
    worker = native(vector_envs.chain(3, mode), FailingPolicy)
    with pytest.raises(PolicyError, match="worker 0, episodes 0 to 2"):
        run(worker, range(30))


def test_actions_of_another_type_are_refused() -> None:
    """A batch of the wrong length or type is the policy's error, with both sides printed."""

    class Wrong(LinearPolicy):
        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(2), {}

    with pytest.raises(PolicyError, match=r"float64\(2,\), expected int64\(3,\).* \(worker 0, ep"):
        run(native(vector_envs.chain(3, NEXT_STEP), Wrong), [0])
