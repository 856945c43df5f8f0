"""A dataset that Minari's own collector made is imported with the values that its own reader gives."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest

import rollout_cli


@pytest.mark.filterwarnings("ignore")  # Of its own collector.
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_a_dataset_that_it_wrote_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = minari.DataCollector(gymnasium.make(env_id))
    env.action_space.seed(0)
    for number in range(4):
        env.reset(seed=number)
        has_ended = False
        while not has_ended:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            has_ended = terminated or truncated
    name = "case/random-v0"
    env.create_dataset(name)
    env.close()
    rollout_cli.import_dataset(tmp_path / "minari" / name, tmp_path / "d")
    assert [] == rollout_cli.verify(tmp_path / "d").faults
    read = minari.load_dataset(name)
    dataset = rollout_cli.load(tmp_path / "d")
    assert read.observation_space == dataset.env_spec.observation_space
    assert read.action_space == dataset.env_spec.action_space
    for theirs, ours in zip(read.iterate_episodes(), dataset, strict=True):
        seen = np.concatenate([ours.observations, ours.last_observation[np.newaxis]])
        np.testing.assert_array_equal(theirs.observations, seen)
        np.testing.assert_array_equal(theirs.actions, ours.actions)
        np.testing.assert_array_equal(theirs.rewards, ours.rewards)
        assert (bool(theirs.terminations[-1]), bool(theirs.truncations[-1])) == (
            ours.terminated,
            ours.truncated,
        )
