"""Sample worker classes: some override verbs of ours, some have garage's verbs and nothing else.

They are importable as `tests.support.workers:Name` wherever a worker class is named by text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EpisodeBatch, derive_step_types
from rollout_cli.workers import DefaultWorker, VecWorker, Worker


class Counting(Worker):
    """Counts what is begun and stepped through a worker's verbs."""

    begun = stepped = 0

    def start_episode(self) -> None:
        self.begun += 1
        super().start_episode()  # type: ignore[safe-super]

    def step_episode(self) -> bool:
        self.stepped += 1
        return super().step_episode()  # type: ignore[safe-super]


class CountingWorker(Counting, DefaultWorker):
    """Counts its verbs."""


class CountingVecWorker(Counting, VecWorker):
    """Counts its verbs, with several rows."""


class PlainVerbs:
    """Garage's verbs, written by hand, with no base class: one environment, episodes of what it gives.

    Args:
        seed: What every worker class gets.
        max_episode_length: Steps after which it truncates.
        worker_number: What every worker class gets.
        episodes_at_once: How many episodes it collects before it gives any.
    """

    def __init__(
        self, *, seed: int, max_episode_length: float | None, worker_number: int, episodes_at_once: int = 1
    ) -> None:
        self.seed = seed
        self.limit = float("inf") if max_episode_length is None else max_episode_length
        self.worker_number = worker_number
        self.episodes_at_once = episodes_at_once
        self.env: Any = None
        self.policy: Any = None
        self.closed = False
        self.rows: list[tuple[Any, ...]] = []
        self.ready: list[EpisodeBatch] = []

    def update_agent(self, agent_update: Any) -> None:
        if isinstance(agent_update, dict):
            self.policy.set_param_values(agent_update)
        else:
            self.policy = agent_update

    def update_env(self, env_update: Any) -> None:
        self.env = env_update

    def start_episode(self) -> None:
        self.rows = []
        self.observation, self.episode_info = self.env.reset()
        self.policy.reset()

    def step_episode(self) -> bool:
        action, agent_info = self.policy.get_action(self.observation)
        after, reward, terminated, truncated, env_info = self.env.step(action)
        self.rows.append((self.observation, action, reward, env_info, agent_info))
        self.observation = after
        truncated = truncated or len(self.rows) >= self.limit
        if not (terminated or truncated):
            return False
        self.ready.append(self.batch(terminated, truncated))
        if len(self.ready) < self.episodes_at_once:
            self.start_episode()
            return False
        return True

    def batch(self, terminated: bool, truncated: bool) -> EpisodeBatch:
        observations, actions, rewards, env_infos, agent_infos = zip(*self.rows, strict=True)
        lengths, flags = np.array([len(self.rows)]), (np.array([terminated]), np.array([truncated]))
        return EpisodeBatch(
            env_spec=describe_env(self.env),
            episode_infos=columns([self.episode_info]),
            observations=np.stack(observations),
            last_observations=self.observation[None],
            actions=np.array(actions, np.int64),
            rewards=np.array(rewards, np.float64),
            env_infos=columns(env_infos),
            agent_infos=columns(agent_infos),
            step_types=derive_step_types(lengths, *flags),
            lengths=lengths,
            terminated=flags[0],
            truncated=flags[1],
            numbers=np.zeros(1, np.int64),
            seeds=np.zeros(1, np.int64),
        )

    def collect_episode(self) -> EpisodeBatch:
        ready, self.ready = self.ready, []
        return EpisodeBatch.concatenate(*ready)

    def rollout(self) -> EpisodeBatch:
        self.start_episode()
        while not self.step_episode():
            pass
        return self.collect_episode()

    def shutdown(self) -> None:
        self.closed = True
        self.env.close()


def columns(infos: Sequence[Any]) -> dict[str, Any]:
    return {key: np.array([info[key] for info in infos]) for key in infos[0]}


class VerbsOnly(Worker):
    """Garage's verbs on our base class, whose `rollout` it keeps."""

    def __init__(self, *, episodes_at_once: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.inner = PlainVerbs(episodes_at_once=episodes_at_once, **options)

    def update_agent(self, agent_update: Any) -> None:
        self.inner.update_agent(agent_update)

    def update_env(self, env_update: Any) -> None:
        self.inner.update_env(env_update)

    def start_episode(self) -> None:
        self.inner.start_episode()

    def step_episode(self) -> bool:
        return self.inner.step_episode()

    def collect_episode(self) -> EpisodeBatch:
        return self.inner.collect_episode()

    def shutdown(self) -> None:
        self.inner.shutdown()


class FailingVerbs(PlainVerbs):
    """Raises in its third step."""

    def step_episode(self) -> bool:
        if len(self.rows) == 2:
            raise ValueError("the worker is broken")
        return super().step_episode()


class ListGivingVerbs(PlainVerbs):
    """Gives something else than a batch."""

    def collect_episode(self) -> Any:
        return [super().collect_episode()]


class PartGivingVerbs(PlainVerbs):
    """Gives an episode that did not end."""

    def batch(self, terminated: bool, truncated: bool) -> EpisodeBatch:
        return super().batch(False, False)


class UnbuildableVerbs(PlainVerbs):
    """Needs an argument that nobody gives."""

    def __init__(self, *, flavour: str, **options: Any) -> None:
        super().__init__(**options)
