"""WorkerContext, the values that the builder of a worker or the caller of its sampler sets for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from rollout_cli.workers.values import EpisodeRules, NullCrashBox


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The settings of a worker that are not arguments of its class.

    Attributes:
        rules: Rules for episodes, such as the handling of invalid actions.
        crash_box: Records which episodes run, so that a sampler can name them if the worker dies.
        number_stride: Distance between consecutive episode numbers of this worker.
        salt: Differs between the calls of a worker; the seed of a native vector environment depends on it.
    """

    rules: EpisodeRules = field(default_factory=EpisodeRules)
    crash_box: NullCrashBox = field(default_factory=NullCrashBox)
    number_stride: int = 1
    salt: tuple[int, ...] = ()


class InContext:
    """Base class of objects whose context is set before the constructor runs."""

    _context = WorkerContext()

    @classmethod
    def in_context(cls, context: WorkerContext, **arguments: Any) -> Self:
        """Build an object with this context and these constructor arguments.

        The context is not a constructor argument, since a user's subclass may declare its arguments by name,
        or forward only some of them.
        """
        built = cls.__new__(cls)
        built._context = context  # noqa: SLF001 - its own class
        built.__init__(**arguments)  # type: ignore[misc]
        return built

    @property
    def rules(self) -> EpisodeRules:
        """Rules for episodes, such as the handling of invalid actions."""
        return self._context.rules

    @property
    def crash_box(self) -> NullCrashBox:
        """Records which episodes run."""
        return self._context.crash_box

    @property
    def number_stride(self) -> int:
        """Distance between consecutive episode numbers of this worker."""
        return self._context.number_stride
