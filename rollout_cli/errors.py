"""The one error tree. Every error that leaves the package is one of these, and each class owns its exit code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar


class RolloutError(Exception):
    """The root of the tree. `message` says in one line what happened, and where; `hint` in one line what to do next.

    `details` is text to show below the message, such as a worker's traceback. Both may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", details: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.details = message, hint, details

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments are not in `args`, so the default pickling would lose the hint.
        return partial(type(self), hint=self.hint, details=self.details), (self.message,)


class RemoteError(Exception):
    """What was raised in a worker process, as the cause of an error of ours; its text is the traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class InternalError(RolloutError, AssertionError):
    """A fault of this package, or verbs called in an order that is not legal: a state that should be impossible."""


class UsageError(RolloutError):
    """Arguments that cannot be used together, or with this input."""

    exit_code = 2


class ArgumentError(UsageError, ValueError):
    """An argument out of its range, or a list with another length than there are workers, or rows."""


class ConfigError(UsageError):
    """A configuration file or value that cannot be used."""


class UserCodeError(RolloutError):
    """The user's policy, environment, worker class or set-up cannot be used; the subclasses say which and how."""

    exit_code = 3
    episodes: tuple[int, ...] = ()  # The numbers of those in one of which it happened; known in its worker only.


class PolicyLoadError(UserCodeError):
    """A policy that cannot be found, read, or recognised."""


class EnvLoadError(UserCodeError):
    """An environment that cannot be found, read, or built."""


class EnvTypeError(EnvLoadError, TypeError):
    """An object that is no environment, and no update of one."""


class UnsupportedSpaceError(EnvLoadError):
    """A space that has no fixed set of columns."""


class PolicyError(UserCodeError):
    """A policy that raised, or gave what its contract does not allow."""


class EnvError(UserCodeError):
    """An environment that raised, or gave what its contract does not allow."""


class NotReproducibleError(UserCodeError):
    """Episodes that do not come out the same when they are run again, where that was required."""


class ChangedFilesError(UserCodeError):
    """Files that the policy or the environment reads were changed while a run went on."""


class WorkerError(RolloutError):
    """Worker processes that died or could not be started."""

    exit_code = 4


class StorageError(RolloutError):
    """Input or output failed: a folder, a file, a disk."""

    exit_code = 5


class DatasetExistsError(StorageError):
    """The output folder already holds something."""


class DatasetLockedError(StorageError):
    """Another run is writing to the folder."""


class DatasetFormatError(StorageError):
    """A folder or file that is not a dataset of this format."""


class VerificationError(RolloutError):
    """A dataset that does not hold what it says; `report` is what was found, as JSON."""

    exit_code = 6

    def __init__(self, message: str, *, report: Mapping[str, Any] | None = None, **texts: str) -> None:
        super().__init__(message, **texts)
        self.report = dict(report or {})


class InterruptedRunError(RolloutError):
    """The user interrupted the run (SIGINT)."""

    exit_code = 130


class TerminatedRunError(RolloutError):
    """The run was asked to end (SIGTERM)."""

    exit_code = 143
