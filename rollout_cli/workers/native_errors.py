"""NativeErrors: calls of user code for all rows of a vector environment, and what is told when one fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from rollout_cli.errors import PolicyError, RolloutError, UserCodeError
from rollout_cli.user_code import first_line
from rollout_cli.workers.env_slot import placed
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.step_values import BadStepError, explained

Array = npt.NDArray[Any]


class NativeErrors:
    """Makes errors that say whose step it was.

    Args:
        worker_number: Which worker this is.
        n_rows: How many rows it has.
        whereabouts: Returns the numbers of the episodes that run (k,), and how many steps were taken.
    """

    def __init__(self, worker_number: int, n_rows: int, whereabouts: Callable[[], tuple[Array, int]]) -> None:
        self._worker_number, self._n_rows, self._whereabouts = worker_number, n_rows, whereabouts

    def called(self, kind: type[UserCodeError], where: str, function: Callable[[], Any]) -> Any:
        """Return what `function` returns.

        Raises:
            RolloutError: As `error` makes it, of whatever it raises.
        """
        try:
            return function()
        except Exception as error:
            raise self.error(kind, where, error) from error

    def error(self, kind: type[UserCodeError], where: str, error: Exception) -> RolloutError:
        """Return an error that says what happened and where; one of ours is told where it was."""
        running, step = self._whereabouts()
        which = f"episodes {running.min()} to {running.max()}" if len(running) else "no episode"
        at = f"worker {self._worker_number}, {which}, step {step} of {self._n_rows} rows"
        if isinstance(error, RolloutError):
            return placed(error, at)
        if isinstance(error := explained(where, error), BadStepError):
            return kind(f"{error} ({at})", hint=error.hint)
        if isinstance(error, BadSampleError):
            what = "the policy gave bad actions" if kind is PolicyError else f"{where} is not of its space"
            return kind(f"{what}: {error} ({at})", hint="make it match the space, or the space match it")
        return kind(f"{where} raised {first_line(error)} ({at})", hint="the traceback below shows where")
