"""Values that workers and samplers share: EpisodeRules, WorkerReport, and the base class of crash boxes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from rollout_cli.sources.pins import PinnedFile, agreed

OnInvalidAction = Literal["error", "clip", "warn"]

NO_NUMBER = -1  # The number of a row without an episode.
# Maximum bytes of observations of an episode without a time limit, since it stays in memory until it ends.
_GUARD_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """Rules for invalid actions, reset options, endless episodes, simulator states and devices.

    Attributes:
        invalid_action: Handling of an action outside its space. `error` fails the episode before the
            environment receives the action, `clip` clips it to the bounds (nan fails), `warn` passes it to
            the environment unchanged.
        reset_options: The options of every reset of a single environment.
        tasks: Options that vary by episode: task i % n overrides `reset_options` in episode i.
        step_guard: Steps at which an episode without a time limit fails.
        store_state: Whether infos have the state of the environment's simulator, of single environments.
        device: The kind of device on which a JAX environment runs; None for JAX's default.
    """

    invalid_action: OnInvalidAction = "error"
    step_guard: int = 1_000_000
    reset_options: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[Mapping[str, Any]] = ()
    store_state: bool = False
    device: Literal["cpu", "gpu"] | None = None

    def options_of(self, number: int) -> dict[str, Any] | None:
        """Return a copy of the reset options of episode `number`, or None if it has no options."""
        task = self.tasks[number % len(self.tasks)] if self.tasks else {}
        return copy.deepcopy({**self.reset_options, **task}) or None

    def task_of(self, number: int) -> int | str:
        """Return the recorded task of episode `number`: its name if all tasks have one, else its index."""
        index = number % len(self.tasks)
        if all(isinstance(task.get("name"), str) for task in self.tasks):
            name: str = self.tasks[index]["name"]
            return name
        return index

    def most_steps(self, row_bytes: int) -> int:
        """Return the maximum steps without a time limit; `row_bytes` is the size of one observation."""
        return max(1, min(self.step_guard, _GUARD_BYTES // max(1, row_bytes)))


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's description of its policy and environment, which other processes have not loaded.

    Attributes:
        env: The record of the environment from `describe_env`.
        policy_class: The dotted name of the policy's class or function.
        modules: The loaded top-level modules outside the standard library.
        scope: `n_envs` if episodes depend on the number of environments per worker, else `any`.
        not_reproducible: The reason that episodes cannot be reproduced, or None if no reason is known.
        files: The files that the policy and the environment read.
        compiles: Whether the environment is a JAX environment, which is compiled before its first step.
        warnings: Warnings about data quality, one per line: unsuitable wrappers, and observations that are
            cast.
    """

    env: Mapping[str, Any] = field(default_factory=dict)
    policy_class: str = ""
    modules: tuple[str, ...] = ()
    scope: Literal["any", "n_envs"] = "any"
    not_reproducible: str | None = None
    files: tuple[PinnedFile, ...] = ()
    compiles: bool = False
    warnings: tuple[str, ...] = ()

    def joined(self, other: Self) -> Self:
        """Return this report with the modules, files and warnings of another or later report added.

        Raises:
            ChangedFilesError: If a file has different contents in the two reports.
        """
        return replace(
            self,
            modules=tuple(sorted({*self.modules, *other.modules})),
            files=agreed(self.files, other.files),
            warnings=tuple(dict.fromkeys([*self.warnings, *other.warnings])),
        )


class NullCrashBox:
    """Base class of crash boxes, which record the running episodes for the sampler; it records nothing."""

    def begin(self, row: int, number: int) -> None:
        """Record the episode number of a row, NO_NUMBER for none."""

    def note(self, numbers: npt.NDArray[np.int64]) -> None:
        """Record the episode numbers of all rows, (n,)."""

    def step(self) -> None:
        """Record that the worker is alive."""

    def begin_turn(self) -> None:
        """Record that the worker starts to run steps; while it builds or waits, it cannot hang in a step."""

    def end_turn(self) -> None:
        """Record that the worker stops running steps; not called if the process dies before."""
