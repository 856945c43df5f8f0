"""The string that describes an episode's task: recorded, and passed to policies that ask for it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import rollout_cli
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.samplers.plan import Episodes
from rollout_cli.workers.values import EpisodeRules


class Robot(gymnasium.Env[Any, Any]):
    """Chooses a task at each reset; has the attributes `task_description` (behind `task`) that LIBERO's have."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    task = 7  # Of Meta-World: not a string.

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.task_description = f"pick cube {self.np_random.integers(3)}"
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, self.steps == 3 + self.np_random.integers(3), False, {}


class One:
    """Records the task of its episode as an info."""

    def reset(self) -> None:
        self.task = ""

    def observe_task(self, row: int, task: str) -> None:
        assert row == 0
        self.task = task

    def get_action(self, observation: Any) -> Any:
        return 0, {"seen": self.task}


class Rows:
    """The same for a batch."""

    def reset(self, do_resets: Any) -> None:
        self.tasks = getattr(self, "tasks", [""] * (1 if do_resets is None else len(do_resets)))

    def observe_task(self, row: int, task: str) -> None:
        self.tasks[row] = task

    def get_actions(self, observations: Any) -> Any:
        return np.zeros(len(observations), int), {"seen": np.array(self.tasks, object)}


def collected(policy: Any, n_envs: int, env: Any, **rules: Any) -> rollout_cli.EpisodeBatch:
    factory = rollout_cli.WorkerFactory(
        max_episode_length=20,
        n_workers=2,
        seed=3,
        worker_class=rollout_cli.VecWorker if n_envs > 1 else rollout_cli.DefaultWorker,
        worker_args={"n_envs": n_envs} if n_envs > 1 else {},
        rules=EpisodeRules(**rules),
    )
    with rollout_cli.LocalSampler(factory, policy, env) as sampler:
        chunks = [*sampler.stream(Episodes(0, 12))]
        return EpisodeBatch.from_chunks(sampler.env_spec, chunks)


@pytest.mark.parametrize(("policy", "n_envs"), [(One, 1), (Rows, 1), (One, 3), (Rows, 3)])
def test_the_environments_own_string(policy: Any, n_envs: int) -> None:
    """Each episode has its own, through wrappers too."""
    batch = collected(policy(), n_envs, gymnasium.wrappers.FlattenObservation(Robot()))
    tasks = batch.episode_infos["task"].tolist()
    assert {f"pick cube {number}" for number in range(3)} == set(tasks)
    assert np.repeat(tasks, batch.lengths).tolist() == batch.agent_infos["seen"].tolist()


def test_named_tasks_of_the_run_come_first() -> None:
    tasks = [{"name": "left"}, {"name": "right"}]
    batch = collected(One(), 1, Robot(), tasks=tasks)
    assert ["left", "right"] * 6 == batch.episode_infos["task"].tolist()
    assert np.repeat(["left", "right"] * 6, batch.lengths).tolist() == batch.agent_infos["seen"].tolist()


def test_an_environment_without_a_task() -> None:
    """The policy gets an empty string, and nothing is recorded."""
    batch = collected(One(), 1, gymnasium.make("CartPole-v1"))
    assert "task" not in batch.episode_infos
    assert {""} == set(batch.agent_infos["seen"].tolist())
