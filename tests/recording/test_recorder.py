"""Recorder and VectorRecorder: every episode that a program steps, compared with an independent log of its steps."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorStatistics

import rollout_cli
from rollout_cli.dataset.reader import Episode
from rollout_cli.envs.describe import AutoresetMode
from rollout_cli.errors import ArgumentError, EnvError, EnvLoadError
from rollout_cli.recording.recorder import Recorder, VectorRecorder
from rollout_cli.recording.writer import Writer
from tests.helpers.datasets import info_of, numbers_of, source_of
from tests.helpers.envs import FaultyEnv
from tests.helpers.errors import raises


class Log(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps what `reset` and `step` return, an episode in a list; the store has those that ended or were cut."""

    def __init__(self, env: gymnasium.Env[Any, Any], store: list[dict[str, Any]]) -> None:
        super().__init__(env)
        self._store = store
        self.running: dict[str, Any] | None = None

    def reset(self, **options: Any) -> Any:
        self.cut()
        observation, info = self.env.reset(**options)
        self.running = {"observations": [np.array(observation)], "actions": [], "rewards": [], "flags": None}
        return observation, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        observation, reward, terminated, truncated, _ = result
        assert self.running is not None
        self.running["observations"].append(np.array(observation))
        self.running["actions"].append(np.array(action))
        self.running["rewards"].append(float(reward))
        if terminated or truncated:
            self.running["flags"] = (bool(terminated), bool(truncated))
            self._store.append(self.running)
            self.running = None
        return result

    def cut(self) -> None:
        if self.running is not None and self.running["rewards"]:
            self._store.append(self.running | {"flags": (False, True)})
        self.running = None


def logged(store: list[dict[str, Any]]) -> list[Any]:
    return sorted(
        (
            np.array(one["observations"]).tolist(),
            np.array(one["actions"]).tolist(),
            one["rewards"],
            one["flags"],
        )
        for one in store
    )


def recorded(path: Path) -> list[Any]:
    return sorted(map(plain, rollout_cli.load(path)))


def plain(one: Episode) -> Any:
    observations = np.concatenate([one.observations, one.last_observation[None]])
    flags = (bool(one.terminated), bool(one.truncated))
    return observations.tolist(), one.actions.tolist(), one.rewards.tolist(), flags


def play(env: Any, steps: int) -> None:
    env.action_space.seed(1)
    env.reset(seed=0)
    for step in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated or step % 37 == 36:
            env.reset()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_every_episode_is_recorded(tmp_path: Path, name: str) -> None:
    """Those that the program cuts are truncated, and counted."""
    store: list[dict[str, Any]] = []
    log = Log(gymnasium.make(name, max_episode_steps=50), store)
    with Recorder(log, tmp_path / "d", policy="uniform") as env:
        play(env, 600)
        log.cut()
    assert logged(store) == recorded(tmp_path / "d")
    source = source_of(tmp_path / "d")
    assert ("recorded", name, "uniform") == (source["kind"], source["env"]["id"], source["policy"]["spec"])
    assert source["cut"] == sum(one["flags"] == (False, True) and len(one["rewards"]) < 50 for one in store)
    assert "complete" == info_of(tmp_path / "d")["status"]
    assert [] == rollout_cli.verify(tmp_path / "d").faults
    assert 0 == rollout_cli.load(tmp_path / "d")[0].seed


@pytest.mark.parametrize("mode", AutoresetMode, ids=str)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_vector_environments(tmp_path: Path, mode: AutoresetMode, name: str) -> None:
    """In every autoreset mode; a reset of a NEXT_STEP row is no step of an episode."""
    store: list[dict[str, Any]] = []
    made = [lambda: Log(gymnasium.make(name, max_episode_steps=23), store)] * 3
    inner = SyncVectorEnv(made, autoreset_mode=mode.value)
    env = VectorRecorder(RecordVectorStatistics(inner), tmp_path / "d")
    env.action_space.seed(2)
    env.reset(seed=3)
    for _ in range(200):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            env.reset(options={"reset_mask": terminated | truncated})
    for log in inner.envs:
        log.cut()  # type: ignore[attr-defined]
    env.close()
    assert logged(store) == recorded(tmp_path / "d")
    assert [] == rollout_cli.verify(tmp_path / "d").faults
    dataset = rollout_cli.load(tmp_path / "d")
    assert {3, 4, 5} == {one.seed for one in dataset} - {-1}
    whole = [one for one in dataset if "episode.r" in one.env_infos]
    assert len(whole) > 10
    if mode is AutoresetMode.DISABLED:  # The wrapper then resets its counters in all rows (gymnasium 1.4).
        return
    for one in whole:  # The statistics are in the infos of the last step, and are those of the episode.
        values = one.env_infos["episode.r"]
        if np.ma.count(values):
            assert np.ma.compressed(values)[-1:] == pytest.approx([one.rewards.sum()], rel=1e-5)


def test_a_vector_environment_without_a_mode(tmp_path: Path) -> None:
    """It is refused; deleting the recorder that was not made raises nothing."""
    env = gymnasium.make_vec("CartPole-v1", num_envs=2)
    env.metadata = {}
    with raises(EnvLoadError, "env-autoreset"):
        VectorRecorder(env, tmp_path / "d")
    gc.collect()
    assert not (tmp_path / "d").exists()


def test_infos_and_structures(tmp_path: Path) -> None:
    """Of nested spaces, with the infos of `reset` and `step`."""
    inner = RecordEpisodeStatistics(FaultyEnv(space="dict"))
    with Recorder(inner, tmp_path / "d") as env:
        play(env, 60)
    dataset = rollout_cli.load(tmp_path / "d")
    assert isinstance(dataset.env_spec.observation_space, spaces.Dict)
    assert {"episode.r", "episode.l"} <= dataset.to_episode_batch().env_infos.keys()
    assert [] == rollout_cli.verify(tmp_path / "d").faults


def test_environments_share_a_dataset(tmp_path: Path) -> None:
    """The first recorder completes it."""
    first = Recorder(gymnasium.make("CartPole-v1"), tmp_path / "d", flush_every=100)
    second = Recorder(gymnasium.make("CartPole-v1"), first.writer)
    for env in (first, second, first):
        play(env, 30)
    with raises(ArgumentError, "recorder-spaces"):
        Recorder(gymnasium.make("Pendulum-v1"), first.writer)
    second.close()
    first.close()
    assert list(range(len(numbers_of(tmp_path / "d")))) == numbers_of(tmp_path / "d")
    assert [] == rollout_cli.verify(tmp_path / "d").faults


def test_a_dataset_is_continued(tmp_path: Path) -> None:
    for _ in range(2):
        with Recorder(gymnasium.make("CartPole-v1"), tmp_path / "d", resume=True) as env:
            play(env, 100)
    source = source_of(tmp_path / "d")
    assert len(numbers_of(tmp_path / "d")) > source["cut"] >= 2
    assert [] == rollout_cli.verify(tmp_path / "d").faults


def test_arrays_that_the_program_reuses(tmp_path: Path) -> None:
    """They are copied before the environment or the program changes them."""
    with Recorder(
        FlattenObservation(gymnasium.make("Pendulum-v1", max_episode_steps=20)), tmp_path / "d"
    ) as env:
        action = np.zeros(1, np.float32)
        observation, _ = env.reset(seed=0)
        seen = [observation.copy()]
        for step in range(20):
            action[:] = step / 100
            observation, *_ = env.step(action)
            seen.append(observation.copy())
            action[:] = 9
            observation[:] = 9
    (one,) = rollout_cli.load(tmp_path / "d")
    np.testing.assert_array_equal(np.arange(20, dtype=np.float32) / np.float32(100), one.actions[:, 0])
    np.testing.assert_array_equal(np.array(seen[:-1]), one.observations)


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    """Names the step; finished episodes stay."""
    env = Recorder(gymnasium.make("CartPole-v1", disable_env_checker=True), tmp_path / "d")
    play(env, 100)
    env.reset()
    ended = env.writer.next_number
    env.env.step = lambda action: (np.zeros(7), action, False, False, {})  # type: ignore[method-assign]
    with raises(EnvError, "value-shape", f"recorded episode {ended}, step 0"):
        env.step(0)
    env.close()
    assert list(range(ended)) == numbers_of(tmp_path / "d")
    with raises(ArgumentError, "recorder-env", "vector environment"):
        Recorder(gymnasium.make_vec("CartPole-v1", num_envs=2), tmp_path / "e")


def test_seeds_of_any_size(tmp_path: Path) -> None:
    """Those beyond 64 bits are unknown; rows take an int or a list."""
    with Recorder(gymnasium.make("CartPole-v1"), tmp_path / "d") as env:
        for seed in (2**70, 7):
            env.reset(seed=seed)
            env.step(0)
    assert [-1, 7] == [one.seed for one in rollout_cli.load(tmp_path / "d")]
    rows = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode="NextStep")
    vector = VectorRecorder(rows, tmp_path / "e")
    starts: list[Any] = [3, [5, 6]]
    for start in starts:
        vector.reset(seed=start)
        vector.step(np.array([0, 1]))
    vector.close()
    assert [3, 4, 5, 6] == [one.seed for one in rollout_cli.load(tmp_path / "e")]


def test_a_writer_is_no_target(tmp_path: Path) -> None:
    with Writer(tmp_path / "d") as writer, raises(ArgumentError, "recorder-writer"):
        Recorder(gymnasium.make("CartPole-v1"), writer)  # type: ignore[arg-type]


def test_an_exception_of_the_program(tmp_path: Path) -> None:
    def fail() -> None:
        with Recorder(gymnasium.make("CartPole-v1"), tmp_path / "d") as env:
            play(env, 50)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "interrupted" == info_of(tmp_path / "d")["status"]
    assert [] == rollout_cli.verify(tmp_path / "d").faults
