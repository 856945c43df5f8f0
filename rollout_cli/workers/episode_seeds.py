"""EpisodeSeeds: the seeds of episodes, derived for many of them at once."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_cli.fast_reset import prepare_seeds
from rollout_cli.seeding import derive_seed

MOST_PREPARED = 10_000
"""What was prepared for episodes that then were not run is forgotten at this many."""


class EpisodeSeeds:
    """The seeds that environments and policies are given; a worker's rows share one of these.

    Args:
        root_seed: The run's root seed.
    """

    def __init__(self, root_seed: int) -> None:
        self._root = root_seed
        self._env: dict[int | str, int] = {}
        self._policy: dict[int | str, int] = {}

    def prepare(self, numbers: Sequence[int]) -> None:
        """Do at once, for some episodes that come next, what their resets have in common."""
        if len(self._env) > MOST_PREPARED:
            self.forget()
        seeds: dict[int | str, int] = {number: derive_seed(self._root, number, "env") for number in numbers}
        self._env.update(seeds)
        prepare_seeds(list(seeds.values()))

    def prepare_policy(self, numbers: Sequence[int]) -> list[int]:
        """Return the seeds of the policy for some episodes that come next."""
        seeds: dict[int | str, int] = {number: derive_seed(self._root, number, "policy") for number in numbers}
        self._policy.update(seeds)
        return list(seeds.values())

    def env(self, number: int | str) -> int:
        """Return the seed for `env.reset`."""
        seed = self._env.pop(number, None)
        return derive_seed(self._root, number, "env") if seed is None else seed

    def policy(self, number: int) -> int:
        """Return the seed for a policy's own `seed`."""
        seed = self._policy.pop(number, None)
        return derive_seed(self._root, number, "policy") if seed is None else seed

    def forget(self) -> None:
        """Forget what was prepared."""
        self._env, self._policy = {}, {}

    def is_prepared(self, number: int) -> bool:
        """Return whether the episode is prepared and was not begun yet."""
        return number in self._env
