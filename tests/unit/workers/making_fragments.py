"""Building FragmentWorkers for tests, and putting together what they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.workers import FragmentWorker
from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy, RecurrentPolicy
from tests.unit.workers.making import SEED


def make(
    env: Callable[[], gymnasium.Env[Any, Any]] = ChainEnv,
    policy: Callable[[EnvSpec], Any] = LinearPolicy,
    *,
    max_episode_length: float | None = None,
    **options: Any,
) -> FragmentWorker:
    """Return a worker with three rows and four steps a call."""
    options = {"n_envs": 3, "timesteps_per_call": 4, **options}
    worker = FragmentWorker(seed=SEED, max_episode_length=max_episode_length, worker_number=0, **options)
    worker.update_env([env() for _ in range(options["n_envs"])])
    worker.update_agent(policy(describe_env(env())))
    return worker


def rollouts(worker: FragmentWorker, count: int) -> list[EpisodeBatch]:
    """Return what so many calls give."""
    return [worker.rollout() for _ in range(count)]


def by_number(batches: Iterable[EpisodeBatch]) -> Mapping[int, list[EpisodeBatch]]:
    """Return the fragments of each episode, in the order in which they came."""
    found: dict[int, list[EpisodeBatch]] = {}
    for batch in batches:
        for fragment in batch.split():
            found.setdefault(int(fragment.numbers[0]), []).append(fragment)
    return found


def has_ended(fragment: EpisodeBatch) -> bool:
    """Say whether this is its episode's last fragment."""
    return bool(fragment.terminated[0] or fragment.truncated[0])


def whole_episodes(batches: Iterable[EpisodeBatch]) -> Mapping[int, list[EpisodeBatch]]:
    """Return the fragments of the episodes that came to their end."""
    return {number: found for number, found in by_number(batches).items() if has_ended(found[-1])}


class CountingPolicy(RecurrentPolicy):
    """Tells its gain, and how many steps each row has taken."""

    def get_actions(self, observations: Any) -> Any:
        actions, infos = super().get_actions(observations)
        return actions, {**infos, "count": self.counts.copy(), "gain": np.full(len(self.counts), self.gain)}
