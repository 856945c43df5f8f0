"""RowPolicy: how a NativeVecWorker's policy is seeded in its rows, and whether these share a generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.seeding import SETUP, derive_seed, spread_seeds
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.workers.agent import AgentHolder
from rollout_cli.workers.batch_actors import BatchActors, OneForAll, OneForEach
from rollout_cli.workers.row_numbers import OwnNumbers, RowNumbers
from rollout_cli.workers.seeder import EpisodeSeeder

Array = npt.NDArray[Any]


class RowPolicy:
    """Seeds a policy that acts in n rows.

    Attributes:
        seeder: Seeds what the rows share.
        shared: The generators that were seen to be drawn from for all rows.

    Args:
        root_seed: The run's root seed.
        n_rows: n.
    """

    def __init__(self, root_seed: int, n_rows: int) -> None:
        self._root, self._n_rows = root_seed, n_rows
        self._global_seeder = GlobalSeeder(root_seed)
        self.seeder = EpisodeSeeder(root_seed, self._global_seeder)
        self.shared: list[str] = []
        self._seed_base = derive_seed(root_seed, SETUP, "policy rows")

    def actors(self, agent: AgentHolder, spec: EnvSpec, queue: RowNumbers) -> BatchActors:
        """Return how the rows act with this policy.

        Args:
            agent: Holds the policy.
            spec: The spaces of one row.
            queue: Which rows run which numbers; where each has its own, an episode's seeds repeat it.
        """
        policy = agent.policy
        self.shared = []
        if getattr(policy, "row_by_row", False):
            seeders = [EpisodeSeeder(self._root, self._global_seeder) for _ in agent.policies]
            for seeder, own in zip(seeders, agent.policies, strict=True):
                seeder.watch(policy=own)
            return OneForEach(agent.policies, (spec.observation_space, spec.action_space), seeders=seeders)
        self.seeder.watch(policy=policy)
        if not callable(getattr(policy, "seed_rows", None)):
            self.shared += self.seeder.paths
        repeats = isinstance(queue, OwnNumbers)
        return OneForAll(
            policy,
            spec.action_space,
            n_rows=self._n_rows,
            seeds=self._hashed if repeats else self._spread,
            seeder=self.seeder,
            row_seeds=None if repeats else self._row_seeds,
        )

    def _hashed(self, numbers: Array) -> Array:
        return np.array([derive_seed(self._root, number, "policy") for number in numbers.tolist()], np.int64)

    def _spread(self, numbers: Array) -> Array:
        # Episodes that no seed can repeat need no hash each, which would cost half of their steps' time.
        return spread_seeds(self._seed_base, numbers)

    def _row_seeds(self, number: int) -> Array:
        return spread_seeds(derive_seed(self._root, number, "policy rows"), np.arange(self._n_rows))

    def begin_anew(self, number: int) -> None:
        """Seed the global generators from a number."""
        self.look_at_generators()
        self._global_seeder.begin_anew(number)

    def look_at_generators(self) -> None:
        """Note whether somebody drew from the global generators."""
        if self._global_seeder.woken():
            self.shared.append("a global one")
