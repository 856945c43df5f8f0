"""Policies that see rewards: each of them before the next action, in every kind of worker and behind noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollout_cli
from rollout_cli.envs.source import env_source
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.options.types import EpisodeRange
from rollout_cli.samplers.plan import Episodes
from tests.helpers.envs import vector


class Summing:
    """Tells, as an info of each action, the sum and the number of the rewards that it has seen in its episode."""

    def reset(self) -> None:
        self.total = 0.0
        self.count = 0

    def observe_reward(self, reward: float) -> None:
        assert type(reward) is float
        self.total += reward
        self.count += 1

    def act(self) -> dict[str, Any]:
        return {"total": self.total, "count": self.count}


class One(Summing):
    """Acts on one observation."""

    def get_action(self, observation: Any) -> Any:
        del observation
        return np.full(1, self.count % 3 - 1, np.float32), self.act()


class Rows:
    """Acts on a batch, and sees a batch of rewards."""

    def reset(self, do_resets: Any) -> None:
        if do_resets is None:  # One row.
            do_resets = np.ones(1, bool)
        if do_resets.all():
            self.totals = np.zeros(len(do_resets))
            self.counts = np.zeros(len(do_resets), int)
        self.totals[do_resets] = 0
        self.counts[do_resets] = 0

    def observe_rewards(self, mask: Any, rewards: Any) -> None:
        assert rewards.dtype == np.float64
        self.totals[mask] += rewards[mask]
        self.counts[mask] += 1

    def get_actions(self, observations: Any) -> Any:
        del observations
        actions = (self.counts % 3 - 1).astype(np.float32)[:, np.newaxis]
        return actions, {"total": self.totals.copy(), "count": self.counts.copy()}


class BothWays(Rows):
    """Has `observe_reward` only for one row, and rewards of a batch for several: the second counts there."""

    def observe_reward(self, reward: float) -> None:
        self.observe_rewards(np.ones(1, bool), np.array([reward]))


def sampled(policy: Any, env: Any, n_envs: int = 1, vectorization: str = "sync") -> EpisodeBatch:
    options: dict[str, Any] = {"seed": 3}
    if vectorization == "sync":
        options["max_episode_length"] = 7
    if n_envs > 1:
        arguments = {"n_envs": n_envs, "vectorization": vectorization}
        options |= {"worker_class": rollout_cli.VecWorker, "worker_args": arguments}
    with rollout_cli.LocalSampler(policy, env, **options) as sampler:
        chunks = [*sampler.stream(Episodes(0, 8))]
        return EpisodeBatch.from_chunks(sampler.env_spec, chunks)


def check(batch: EpisodeBatch) -> None:
    for episode in batch.split():
        length = len(episode.rewards)
        before = [float(np.sum(episode.rewards[:step])) for step in range(length)]
        np.testing.assert_allclose(before, episode.agent_infos["total"], rtol=1e-12)
        assert [*range(length)] == episode.agent_infos["count"].tolist()


@pytest.mark.parametrize("kind", [One, Rows, BothWays])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_rewards_are_seen_before_the_next_action(kind: Any, n_envs: int) -> None:
    """Of the own episode alone, whatever the other rows do."""
    batch = sampled(kind(), gymnasium.make("Pendulum-v1"), n_envs)
    assert 56 == len(batch.rewards)
    check(batch)


@pytest.mark.parametrize("mode", ["Disabled", "NextStep", "SameStep"])
def test_native_rows_see_them(mode: str) -> None:
    """Also rows that reset themselves."""

    class Choosing(Rows):
        def get_actions(self, observations: Any) -> Any:
            actions, infos = super().get_actions(observations)
            return np.repeat(actions, 2, axis=1), infos

    arguments = {"autoreset_mode": mode}
    env = env_source(f"{vector.__module__}:{vector.__name__}", arguments)
    batch = sampled(Choosing(), env, 3, "native")
    assert {0.0} < {*batch.rewards.tolist()}
    check(batch)


def test_noise_and_mixtures_pass_them_on(tmp_path: Path) -> None:
    names = f"{__name__}:One"
    choices: list[dict[str, Any]] = [
        {"policy": names, "epsilon": 0.5},
        {"policy": names, "action_noise": 0.1},
        {"policy": f"mix:0.5*{names}+0.5*{names}"},
    ]
    for number, options in enumerate(choices):
        config = rollout_cli.CollectConfig(
            env="Pendulum-v1",
            episodes=EpisodeRange(0, 4),
            max_episode_length=7,
            seed=1,
            sampler="local",
            output=tmp_path / str(number),
            **options,
        )
        rollout_cli.collect(config)
        check(rollout_cli.load(tmp_path / str(number)).to_episode_batch())


def test_an_object_that_observes_something_else_is_left_alone() -> None:
    """A method of another signature is not the policy's."""

    class Other(One):
        def observe_reward(self, reward: Any, more: Any) -> None:  # type: ignore[override]
            raise AssertionError

    batch = sampled(Other(), gymnasium.make("Pendulum-v1"))
    assert {0} == {*batch.agent_infos["count"].tolist()}
