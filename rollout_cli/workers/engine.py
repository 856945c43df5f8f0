"""Engine: what a worker asks of whatever runs its episodes; Setting: what it gives to that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.policies import AdaptedPolicy
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.workers.policy_holder import PolicyHolder
from rollout_cli.workers.row_queues import RowQueues
from rollout_cli.workers.values import EpisodeRules, NullCrashBox, OnInvalidAction


class Hooks(Protocol):
    """The places of a worker that users override, and its engine calls."""

    @property
    def agent(self) -> Any: ...
    def reset_env(self, env: Any, number: int, seed: int) -> tuple[Any, dict[str, Any]]: ...
    def reset_agent(self, agent: Any, number: int) -> None: ...
    def step_env(self, env: Any, action: Any) -> Any: ...
    def step_episode(self) -> bool: ...
    def predecessors(self, number: int) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine works with.

    Attributes:
        hooks: The worker.
        stepper: Returns what takes a step of an environment.
        seeders: One for each row, and one for what all rows share.
        queue: The numbers that wait; it is the worker's.
    """

    root: int
    worker_number: int
    env_spec: EnvSpec
    rules: EpisodeRules
    holder: PolicyHolder
    seeders: Sequence[EpisodeSeeder]
    queue: RowQueues
    crash_box: NullCrashBox
    hooks: Hooks
    stepper: Callable[[Any], Callable[[Any], Any]]

    @property
    def policy(self) -> AdaptedPolicy:
        """The policy, or the first row's."""
        return self.holder.policy

    @property
    def action_rule(self) -> OnInvalidAction:
        """What becomes of invalid actions."""
        return self.holder.action_rule(self.rules)


class Engine(Protocol):
    """Runs episodes in rows, and keeps those that have ended until they are taken.

    An error of the user's code leaves it as a UserCodeError with the place and the numbers where it may be, and all
    episodes that run are given up.

    Attributes:
        in_turn: Whether one episode runs at a time.
        n_steps: Differs after each `step`.
        finished_rows: How many steps the episodes have that have ended.
        row_bytes: The bytes of a step, without its infos and texts.
        scope: `n_envs` where an episode depends on how many rows there are, else `any`.
        not_reproducible: Why the episodes cannot be reproduced, where that is known.
    """

    @property
    def in_turn(self) -> bool: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def finished_rows(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def scope(self) -> Literal["any", "n_envs"]: ...
    @property
    def not_reproducible(self) -> str | None: ...

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """The numbers of the episodes that run."""

    @property
    def is_under_way(self) -> bool:
        """Whether a step would go on with what runs."""

    def begin(self) -> None:
        """Begin numbers that wait, each in its row: one where rows take turns, else in all rows that are free."""

    def step(self) -> bool:
        """Take one step of all rows, or of one where they take turns; return whether an episode ended."""

    def run(self, deadline: float) -> None:
        """Run until the workers' clock passes `deadline`, or nothing is left; at least one step."""

    def take(self, below: float, ended_before: float) -> list[Chunk]:
        """Remove the ended episodes below a number, or that ended before a time; in order, in one chunk or several."""

    def forget(self, above: int) -> None:
        """Give up the episodes that run, above the number `above`."""
