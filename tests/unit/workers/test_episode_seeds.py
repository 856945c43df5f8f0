"""EpisodeSeeds: what is prepared is what is derived one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollout_cli.seeding import derive_seed
from rollout_cli.workers import VecWorker, episode_seeds
from rollout_cli.workers.episode_seeds import EpisodeSeeds
from tests.support import rows
from tests.unit.workers.making import SEED, run_numbers


def test_prepared_seeds_are_the_derived_ones() -> None:
    """Seeds are the same whether they were prepared or not, and whether they are asked for once or again."""
    seeds = EpisodeSeeds(SEED)
    seeds.prepare([3, 5])
    assert [derive_seed(SEED, number, "policy") for number in (3, 5)] == seeds.prepare_policy([3, 5])
    assert [True, False] == [seeds.is_prepared(number) for number in (3, 4)]
    for number in (3, 4, 5, 3):
        assert derive_seed(SEED, number, "env") == seeds.env(number)
        assert derive_seed(SEED, number, "policy") == seeds.policy(number)
    assert not seeds.is_prepared(3)


def test_what_is_prepared_in_vain_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes that are not run leave nothing that heaps up."""
    monkeypatch.setattr(episode_seeds, "MOST_PREPARED", 10)
    seeds = EpisodeSeeds(SEED)
    for number in range(0, 100, 5):
        seeds.prepare(range(number, number + 5))
    assert [False, True] == [seeds.is_prepared(number) for number in (0, 99)]


class Preparing(rows.TablePolicy):
    """Notes the seeds that it is told of ahead."""

    prepared: list[int]

    def prepare_seeds(self, seeds: list[int]) -> None:
        """Note them."""
        self.__dict__.setdefault("prepared", []).extend(seeds)

    def seed_rows(self, mask: np.ndarray[Any, Any], seeds: Any) -> None:
        """Note them too."""
        self.__dict__.setdefault("seeded", []).extend(np.asarray(seeds)[mask].tolist())


def test_a_vec_worker_prepares_each_episode_once() -> None:
    """Rows run ahead of each other, yet no episode's seeds are prepared twice, and few are derived one by one."""
    lengths = (1, 5)
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=0, n_envs=2)
    worker.update_env([rows.RowEnv(row, length=length) for row, length in enumerate(lengths)])
    policy = Preparing(worker.env_spec)
    worker.update_agent(policy)
    run_numbers(worker, range(1_000))
    prepared = set(policy.prepared)
    assert len(prepared) == len(policy.prepared)
    assert 990 < len(prepared)
    assert {derive_seed(SEED, number, "policy") for number in range(1_000)} >= prepared
    assert {derive_seed(SEED, number, "policy") for number in range(1_000)} == set(policy.__dict__["seeded"])


def test_a_new_policy_is_told_of_episodes_that_were_prepared_before() -> None:
    """What was prepared for a policy is prepared anew for the next one."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=0, n_envs=2)
    worker.update_env([rows.RowEnv(row, length=1) for row in range(2)])
    first, second = Preparing(worker.env_spec), Preparing(worker.env_spec)
    worker.update_agent(first)
    worker.assign(range(100))
    worker.start_episode()
    worker.update_agent(second)
    worker.start_episode()
    assert 90 < len(first.prepared)
    assert 90 < len(second.prepared)
