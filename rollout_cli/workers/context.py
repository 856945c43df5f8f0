"""WorkerContext: what the code that builds a worker, or starts a call, decides for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from rollout_cli.workers.values import EpisodeRules, NullCrashBox


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The values that a worker works with, in addition to the arguments of its class.

    Attributes:
        rules: How the worker treats user code that nearly keeps its contract.
        crash_box: Where the worker notes which episodes run.
        number_stride: The step from one of its numbers to the next, if it owns every m-th number.
        salt: Differs between the calls of a worker; the seed of a native vector environment depends on it.
    """

    rules: EpisodeRules = field(default_factory=EpisodeRules)
    crash_box: NullCrashBox = field(default_factory=NullCrashBox)
    number_stride: int = 1
    salt: tuple[int, ...] = ()


class InContext:
    """An object that has its context before its constructor runs."""

    _context = WorkerContext()

    @classmethod
    def in_context(cls, context: WorkerContext, **arguments: Any) -> Self:
        """Build an object with this context and these arguments of its class.

        The context is not an argument of the constructor, since a subclass of the user's may take its
        arguments by name, or pass on only some of them.
        """
        built = cls.__new__(cls)
        built._context = context  # noqa: SLF001 - its own class
        built.__init__(**arguments)  # type: ignore[misc]
        return built

    @property
    def rules(self) -> EpisodeRules:
        """How it treats user code that nearly keeps its contract."""
        return self._context.rules

    @property
    def crash_box(self) -> NullCrashBox:
        """Where it notes which episodes run."""
        return self._context.crash_box

    @property
    def number_stride(self) -> int:
        """The step from one of its numbers to the next, if it owns every m-th number."""
        return self._context.number_stride
