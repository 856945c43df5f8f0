"""Native vector environments from `collect` to the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rollout_cli.config import CollectConfig
from rollout_cli.errors import ConfigError, EnvLoadError
from tests.support.runs import data_hashes, episodes_by_worker, run
from tests.support.slow import ROOT_SEED

NATIVE: dict[str, Any] = {"vectorization": "native", "envs_per_worker": 4, "seed": ROOT_SEED}
SETTINGS: list[dict[str, Any]] = [{"sampler": "local", "workers": 1}, {"workers": 1}, {"workers": 2}]


@pytest.mark.parametrize("policy", ["random", "tests.support.policies:LinearPolicy"])
def test_data_is_the_same_for_every_worker_count_and_sampler(tmp_path: Path, policy: str) -> None:
    """Where rows can be reset from seeds, `data/` has the same bytes, and the same as single environments give."""
    options: dict[str, Any] = {"env": "tests.support.vector_envs:slow_chain", "policy": policy, "timesteps": 1200}
    for at, setting in enumerate(SETTINGS):
        dataset = run(tmp_path / str(at), **NATIVE, **setting, **options)
        verdict = dataset.info["reproducible"]
        assert "n_envs" == verdict["scope"]
        assert "failed" != verdict["status"]
        assert min(episodes_by_worker(dataset)[worker] for worker in range(setting["workers"])) >= 2
    hashes = [data_hashes(tmp_path / str(at)) for at in range(len(SETTINGS))]
    assert hashes[0]
    assert hashes == [hashes[0]] * len(SETTINGS)
    single = run(tmp_path / "one", env="tests.support.envs:ChainEnv", policy=policy, timesteps=1200, seed=ROOT_SEED)
    expected, actual = single.to_episode_batch(), dataset.to_episode_batch()
    np.testing.assert_array_equal(expected.observations, actual.observations)
    np.testing.assert_array_equal(expected.actions, actual.actions)


@pytest.mark.parametrize("sampler", ["local", "multiprocessing"])
@pytest.mark.parametrize("mode", ["Disabled", "NextStep", "SameStep"])
def test_exact_counts_episodes(tmp_path: Path, sampler: Any, mode: str) -> None:
    """Exactly K episodes a worker, in worker order, in every autoreset mode; fewer than there are rows, or more."""
    for episodes in (3, 11):
        dataset = run(
            tmp_path / str(episodes),
            command="exact",
            env="tests.support.vector_envs:scripted" if mode != "Disabled" else "tests.support.vector_envs:chain",
            env_kwargs={"autoreset_mode": mode},
            episodes_per_worker=episodes,
            workers=2,
            sampler=sampler,
            **NATIVE,
        )
        table = dataset.episodes
        assert [0] * episodes + [1] * episodes == table["worker"].to_pylist()
        assert list(range(2 * episodes)) == table["episode_number"].to_pylist()


def test_cartpole(tmp_path: Path) -> None:
    """The registered vector environment gives the shortest prefix with enough steps, and says that it cannot repeat."""
    dataset = run(tmp_path / "cartpole", timesteps=20_000, workers=2, **{**NATIVE, "envs_per_worker": 64})
    lengths = dataset.episodes["length"].to_pylist()
    assert sum(lengths) >= 20_000 > sum(lengths[:-1])
    assert 19.0 < np.mean(lengths) < 26.0
    assert "failed" == dataset.info["reproducible"]["status"]
    assert "resets a row by itself" in dataset.info["reproducible"]["reason"]
    assert "native" == dataset.info["collector"]["vectorization"]
    assert ("CartPole-v1", "NextStep") == tuple(dataset.info["env"][key] for key in ("id", "autoreset_mode"))
    returns = dataset.episodes["return"].to_pylist()
    assert lengths == returns


@pytest.mark.parametrize("sampler", ["local", "multiprocessing"])
def test_every_step_of_cartpole_follows_from_the_one_before(tmp_path: Path, sampler: Any) -> None:
    """Of hundreds of thousands in large messages, each next observation is what the environment makes of this one."""
    options: dict[str, Any] = {"vectorization": "native", "envs_per_worker": 1024, "seed": ROOT_SEED}
    batch = run(tmp_path / "out", timesteps=300_000, workers=1, sampler=sampler, **options).to_episode_batch()
    env: Any = CartPoleVectorEnv(len(batch.rewards))
    env.reset(seed=0)
    env.state = batch.observations.T.astype(np.float64)
    found, rewards, terminated, _, _ = env.step(batch.actions)
    np.testing.assert_allclose(batch.next_observations, found, rtol=1e-4, atol=1e-5)
    assert (batch.rewards == rewards).all()
    ends = np.cumsum(batch.lengths) - 1
    assert batch.terminated.tolist() == terminated[ends].tolist()
    assert len(ends) == np.count_nonzero(terminated)


def test_what_has_no_vector_form_leaves_nothing(tmp_path: Path) -> None:
    """An environment without a vector entry point is an error, and no folder is left."""
    with pytest.raises(EnvLoadError, match="no vector entry point"):
        run(tmp_path / "none", env="Acrobot-v1", timesteps=10, workers=1, **NATIVE)
    assert not (tmp_path / "none").exists()


def test_it_has_a_worker_class_of_its_own() -> None:
    """A worker class beside it is refused."""
    with pytest.raises(ConfigError, match="--worker-class"):
        CollectConfig(timesteps=1, vectorization="native", worker_class="rollout_cli:DefaultWorker")
