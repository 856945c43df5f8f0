"""RowActing: how the rows of a VecWorker act, and what they draw from while they do."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.policies import Policy
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.workers.acting import Actors, OnePolicy, OwnPolicies
from rollout_cli.workers.env_slot import EnvSlot
from rollout_cli.workers.seeder import EpisodeSeeder, any_must_run_again
from rollout_cli.workers.turns import SharedDraws, share_out


class RowActing:
    """Lets one policy act for all rows, or one in each; finds their generators, and lets rows take turns with them.

    Attributes:
        row_by_row: Whether each row has a policy of its own.
        row_wise: Whether an episode is the same in whichever row it runs.

    Args:
        slots: The rows.
        seeder: Seeds what a policy of all rows draws from.
        global_seeder: Seeds the global generators.
    """

    def __init__(self, slots: Sequence[EnvSlot], seeder: EpisodeSeeder, global_seeder: GlobalSeeder) -> None:
        self._slots, self._seeder, self._global = slots, seeder, global_seeder
        self._draws = SharedDraws(global_seeder)
        self.row_by_row = self.row_wise = False

    def actors(self, policies: Sequence[Policy], env_spec: EnvSpec) -> Actors:
        """Return what chooses the rows' actions.

        Args:
            policies: The policy, or one for each row where it acts on one observation at a time.
            env_spec: The spaces of a row.
        """
        self.row_by_row = bool(getattr(policies[0], "row_by_row", False))
        self.row_wise = self.row_by_row or bool(getattr(policies[0], "row_wise", False))
        self._global.let_torch_sleep(asleep=self.row_by_row)
        if self.row_by_row:
            for slot, policy in zip(self._slots, policies, strict=True):
                slot.seeder.watch(policy=policy, env=slot.env)
            return OwnPolicies(policies, self._slots)
        self._seeder.watch(policy=policies[0])
        for slot in self._slots:
            slot.seeder.watch(env=slot.env)
        # What it draws from for all rows cannot be seeded for one episode; so it is once, to be the same in each run.
        self._seeder.before_build()
        self._draws = SharedDraws(self._global)
        return OnePolicy(policies[0], self._slots, env_spec, self._draws)

    def share_out(self) -> bool:
        """Let rows that share generators take turns with them from now on; return whether any do."""
        turns = [slot.turn for slot in self._slots]
        found = [[one.generator for one in slot.seeder.found] for slot in self._slots]
        share_out(turns, found)
        self._draws.watch(self._seeder.found, [generator for generators in found for generator in generators])
        return any(turn.is_needed for turn in turns)

    def must_run_again(self, slots: Sequence[EnvSlot]) -> bool:
        """Return whether an episode that ended in one of these rows drew from a generator that nobody knew."""
        seeders = [slot.seeder for slot in slots]
        return any_must_run_again(seeders if self.row_by_row else [self._seeder, *seeders])

    def not_reproducible(self, policy: Policy) -> str | None:
        """Return why episodes under this policy cannot be reproduced, as far as it is known by now."""
        if self.row_by_row:
            return None
        own = [] if callable(getattr(policy, "seed_rows", None)) else self._draws.own
        drawn_from = [*own, *self._draws.seen]
        if not drawn_from:
            return None
        return (
            f"the policy draws for all rows from one generator ({', '.join(drawn_from)}): give it "
            "seed_rows(mask, seeds) and a generator a row, or run one environment a worker"
        )
