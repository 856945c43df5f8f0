"""EpisodeSeeder: puts every generator that a policy and an environment may draw from into the state of one episode."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rollout_cli.fast_reset import prepare_seeds
from rollout_cli.generators import FoundGenerator, GeneratorSet
from rollout_cli.seeding import SETUP, derive_seed
from rollout_cli.sleepers import GlobalSeeder


class EpisodeSeeder:
    """Seeds builds, updates and episodes from one root seed.

    Args:
        root_seed: The run's root seed.
        global_seeder: Seeds the global generators; shared by all seeders of one worker.
    """

    def __init__(self, root_seed: int, global_seeder: GlobalSeeder) -> None:
        self._root = root_seed
        self._global = global_seeder
        self._generators = GeneratorSet({})
        self._torch_was_loaded = False
        self._first_episode = True
        self._env_seeds: dict[int | str, int] = {}
        self._policy_seeds: dict[int, int] = {}

    def before_build(self) -> None:
        """Seed for one build or update of a policy or environment."""
        self._global.before_build()
        self._generators.seed(self._root, SETUP)

    def watch(self, **roots: Any) -> None:
        """Look for generators below these objects, by the name that begins their paths; again after each build."""
        self._generators = GeneratorSet(roots)
        self._global.watch()
        self._torch_was_loaded = "torch" in sys.modules
        self._first_episode = True

    @property
    def paths(self) -> list[str]:
        """Return the streams of the generators that were found."""
        return self._generators.paths

    @property
    def found(self) -> list[FoundGenerator]:
        """Return the generators that were found."""
        return self._generators.found

    def prepare(self, numbers: Sequence[int]) -> None:
        """Do at once, for the episodes that come next, what their resets have in common."""
        self._env_seeds = {number: derive_seed(self._root, number, "env") for number in numbers}
        prepare_seeds(list(self._env_seeds.values()))

    def prepare_policy(self, numbers: Sequence[int]) -> list[int]:
        """Return the seeds of the policy for the episodes that come next."""
        self._policy_seeds = {number: derive_seed(self._root, number, "policy") for number in numbers}
        return list(self._policy_seeds.values())

    def begin(self, number: int | str) -> int:
        """Seed the global generators and those found; return the seed for `env.reset` of this episode."""
        self.share(number)
        return self.env_seed(number)

    def share(self, number: int | str) -> None:
        """Seed the global generators and those found, from the lowest number of all that share them from now on."""
        self._global.begin(number)
        self._generators.seed(self._root, number)

    def env_seed(self, number: int | str) -> int:
        """Return the seed for `env.reset`."""
        seed = self._env_seeds.get(number)
        return derive_seed(self._root, number, "env") if seed is None else seed

    def policy_seed(self, number: int) -> int:
        """Return the seed for a policy's own `seed`."""
        seed = self._policy_seeds.get(number)
        return derive_seed(self._root, number, "policy") if seed is None else seed

    def must_run_again(self) -> bool:
        """Return whether the episode just run drew from a generator that was not seeded for it.

        That is so where somebody draws from a global generator for the first time, where a generator was made lazily in
        the first episode or torch imported in it, or where a space drew for the first time. From now on it is seeded.
        """
        if not self._first_episode:
            return self._global.woken() or self._generators.woken()
        self._first_episode = False
        torch_is_new = not self._torch_was_loaded and "torch" in sys.modules
        global_woke = self._global.woken()
        return self._generators.look_again() or torch_is_new or global_woke
