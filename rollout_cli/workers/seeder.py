"""EpisodeSeeder: puts every generator that a policy and an environment may draw from into the state of one episode."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rollout_cli.generators import FoundGenerator, GeneratorSet
from rollout_cli.seeding import SETUP
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.workers.episode_seeds import EpisodeSeeds


class EpisodeSeeder:
    """Seeds builds, updates and episodes from one root seed.

    Attributes:
        seeds: The seeds for `env.reset` and for a policy's own `seed`.

    Args:
        root_seed: The run's root seed.
        global_seeder: Seeds the global generators; shared by all seeders of one worker.
        seeds: As the attribute, where several seeders share them.
    """

    def __init__(self, root_seed: int, global_seeder: GlobalSeeder, seeds: EpisodeSeeds | None = None) -> None:
        self._root = root_seed
        self._global = global_seeder
        self.seeds = EpisodeSeeds(root_seed) if seeds is None else seeds
        self._generators = GeneratorSet({})
        self._torch_was_loaded = False
        self._first_episode = True

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
        self.seeds.prepare(numbers)

    def begin(self, number: int | str) -> int:
        """Seed the global generators and those found; return the seed for `env.reset` of this episode."""
        self.share(number)
        return self.seeds.env(number)

    def share(self, number: int | str) -> None:
        """Seed the global generators and those found, from the lowest number of all that share them from now on."""
        self._global.begin(number)
        self._generators.seed(self._root, number)

    def policy_seed(self, number: int) -> int:
        """Return the seed for a policy's own `seed`."""
        return self.seeds.policy(number)

    def must_run_again(self) -> bool:
        """Return whether the episode just run drew from a generator that was not seeded for it.

        That is so where somebody draws from a global generator for the first time, where a generator was made lazily in
        the first episode or torch imported in it, or where a space drew for the first time. From now on it is seeded.
        """
        return any_must_run_again([self])

    def _found_another(self) -> bool:
        if not self._first_episode:
            return self._generators.woken()
        self._first_episode = False
        torch_is_new = not self._torch_was_loaded and "torch" in sys.modules
        return self._generators.look_again() or torch_is_new


def any_must_run_again(seeders: Sequence[EpisodeSeeder]) -> bool:
    """Return whether `must_run_again` is true of any of these, at least one, which share their global seeder."""
    global_woke = seeders[0]._global.woken()  # noqa: SLF001  Of this class itself.
    # All of them are asked, for each looks for generators below its own objects.
    return True in [seeder._found_another() for seeder in seeders] or global_woke  # noqa: SLF001
