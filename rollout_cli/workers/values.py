"""What a worker and its sampler both know: the rules for episodes, the report, the box for what runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from rollout_cli.sources.pins import PinnedFile, agreed

OnInvalidAction = Literal["error", "clip", "warn"]

NO_NUMBER = -1  # Stands for no episode, where a row runs none.
# Bytes of observations after which an episode has no end: it is kept in memory until it ends.
_GUARD_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """What a worker does about user code that nearly keeps its contract.

    Attributes:
        invalid_action: What becomes of an action outside of its space: its episode fails before the
            environment sees it; it is moved to the nearest bound (which nan does not have); or it goes to the
            environment as it is.
        reset_options: The options of each reset of a single environment.
        tasks: Episode i is reset with those of task i % n over them.
        step_guard: Steps after which an episode that no limit ends is taken to have no end, and fails.
    """

    invalid_action: OnInvalidAction = "error"
    step_guard: int = 1_000_000
    reset_options: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[Mapping[str, Any]] = ()

    def options_of(self, number: int) -> dict[str, Any] | None:
        """Return the options of the reset of episode `number`, a copy; None where no options are given."""
        task = self.tasks[number % len(self.tasks)] if self.tasks else {}
        return copy.deepcopy({**self.reset_options, **task}) or None

    def task_of(self, number: int) -> int | str:
        """Return the task of episode `number` as it is recorded: its index, or its name if all have one."""
        index = number % len(self.tasks)
        if all(isinstance(task.get("name"), str) for task in self.tasks):
            name: str = self.tasks[index]["name"]
            return name
        return index

    def most_steps(self, row_bytes: int) -> int:
        """Return how many steps an episode without a limit may have, given a step's bytes of observations."""
        return max(1, min(self.step_guard, _GUARD_BYTES // max(1, row_bytes)))


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What only a worker knows of its policy and its environment.

    Attributes:
        env: The record of the environment, as `describe_env` makes it.
        policy_class: The dotted name of the policy's class or function.
        modules: The top-level modules that are loaded and no part of Python.
        scope: `n_envs` where its episodes depend on how many environments a worker has, else `any`.
        not_reproducible: Why its episodes cannot be reproduced, where that is known before they run.
        files: The files that its policy and its environment have read.
        warnings: What is wrong for data in its environment, a line each: wrappers, and observations that are
            cast.
    """

    env: Mapping[str, Any] = field(default_factory=dict)
    policy_class: str = ""
    modules: tuple[str, ...] = ()
    scope: Literal["any", "n_envs"] = "any"
    not_reproducible: str | None = None
    files: tuple[PinnedFile, ...] = ()
    warnings: tuple[str, ...] = ()

    def joined(self, other: Self) -> Self:
        """Return this report with what another worker, or this one later, knows beyond it.

        Raises:
            ChangedFilesError: If the other one read another content of a file.
        """
        return replace(
            self,
            modules=tuple(sorted({*self.modules, *other.modules})),
            files=agreed(self.files, other.files),
            warnings=tuple(dict.fromkeys([*self.warnings, *other.warnings])),
        )


class NullCrashBox:
    """Where a worker notes what it runs, for a sampler that watches it. This one, the base, notes nothing."""

    def begin(self, row: int, number: int) -> None:
        """Note that a row runs an episode, or none (NO_NUMBER)."""

    def note(self, numbers: npt.NDArray[np.int64]) -> None:
        """Note what all rows run, (n,)."""

    def step(self) -> None:
        """Note that the worker is alive."""

    def begin_turn(self) -> None:
        """Note that episodes run from now on: a worker that builds or waits is not stuck in a step."""

    def end_turn(self) -> None:
        """Note that they do not; this is not called where the process ends in between."""
