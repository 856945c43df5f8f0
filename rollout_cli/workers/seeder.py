"""EpisodeSeeder: puts every generator that a policy and an environment may draw from into the state of one episode."""

from __future__ import annotations

import sys
from typing import Any

from rollout_cli.generators import GeneratorSet
from rollout_cli.seeding import SETUP, derive_seed, seed_global_generators


class EpisodeSeeder:
    """Seeds builds, updates and episodes of one policy and its environments from one root seed."""

    def __init__(self, root_seed: int) -> None:
        self._root = root_seed
        self._generators = GeneratorSet({})
        self._torch_was_loaded = False
        self._first_episode = True

    def before_build(self) -> None:
        """Seed for one build or update of a policy or environment."""
        seed_global_generators(self._root, SETUP)
        self._generators.seed(self._root, SETUP)

    def watch(self, **roots: Any) -> None:
        """Look for generators below these objects, by the name that begins their paths; again after each build."""
        self._generators = GeneratorSet(roots)
        self._torch_was_loaded = "torch" in sys.modules
        self._first_episode = True

    def begin(self, number: int) -> int:
        """Seed the global generators and those found; return the seed for `env.reset` of this episode."""
        seed_global_generators(self._root, number)
        self._generators.seed(self._root, number)
        return derive_seed(self._root, number, "env")

    def policy_seed(self, number: int) -> int:
        """Return the seed for a policy's own `seed`."""
        return derive_seed(self._root, number, "policy")

    def must_run_again(self) -> bool:
        """Return whether the episode just run drew from a generator that was not known when it began.

        That is so where a generator was made lazily in the first episode, where torch was imported in it, or where a
        space drew for the first time. The generator is known from now on.
        """
        if not self._first_episode:
            return self._generators.woken()
        self._first_episode = False
        torch_is_new = not self._torch_was_loaded and "torch" in sys.modules
        return self._generators.look_again() or torch_is_new
