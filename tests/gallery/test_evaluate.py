"""evaluate against those that others use: Stable-Baselines3's evaluate_policy, and the intervals of scipy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
from scipy import stats
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import rollout_cli
from rollout_cli.episodes.intervals import interquartile_mean, mean, wilson
from rollout_cli.seeding.seeds import env_seed


class Numbered(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Resets with the seeds of episodes 0, 1, 2, … of a root seed, whatever it is called with."""

    def __init__(self, env: gymnasium.Env[Any, Any], root: int) -> None:
        super().__init__(env)
        self._root = root
        self._number = -1

    def reset(self, **_: Any) -> Any:
        self._number += 1
        return self.env.reset(seed=env_seed(self._root, self._number))


@pytest.mark.parametrize(
    ("env", "algorithm", "steps"),
    [("CartPole-v1", "PPO", 2_048), ("Pendulum-v1", "SAC", 300), ("HalfCheetah-v5", "SAC", 200)],
)
def test_the_returns_are_those_of_evaluate_policy(
    tmp_path: Path, env: str, algorithm: str, steps: int
) -> None:
    """Episode by episode, for the same seeds and the deterministic policy."""
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", env, seed=0, device="cpu")
    model.learn(steps)
    model.save(tmp_path / "model.zip")
    world = Monitor(Numbered(gymnasium.make(env), 7))
    returns, lengths = evaluate_policy(
        model, world, n_eval_episodes=3, deterministic=True, return_episode_rewards=True
    )
    evaluation = rollout_cli.evaluate(
        str(tmp_path / "model.zip"), env, episodes=3, seed=7, deterministic=True, workers=2
    )
    # Monitor rounds a return to six digits.
    np.testing.assert_allclose(returns, evaluation.returns[0], rtol=0, atol=1e-6)
    assert lengths == evaluation.lengths[0].tolist()


def test_checkpoints_are_a_curve(tmp_path: Path) -> None:
    """As the callback of Stable-Baselines3 names them."""
    model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=0, device="cpu")
    model.learn(2_048, callback=CheckpointCallback(1_024, str(tmp_path), "ppo2"))
    evaluation = rollout_cli.evaluate(f"{tmp_path}/*.zip", "CartPole-v1", episodes=20, seed=0, workers=2)
    assert (1_024, 2_048) == evaluation.checkpoints
    assert evaluation.curve().ordered


@pytest.mark.parametrize("n", [20, 33, 101, 200])
def test_the_numbers_are_those_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).standard_t(3, n)
    assert abs(interquartile_mean(values).value - stats.trim_mean(values, 0.25)) < 1e-12
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=9_999, rng=0)
    low, high = theirs.confidence_interval
    ours = mean(values)
    # Ours are wider for few values.
    assert 0.95 < (ours.high - ours.low) / (high - low) < 1.15
    for successes in (0, 1, n // 2, n):
        proportion = stats.binomtest(successes, n).proportion_ci(method="wilson")
        interval = wilson(successes, n)
        assert (interval.low, interval.high) == pytest.approx((proportion.low, proportion.high), abs=1e-12)
