"""The error classes. Every error that leaves the package is one of them; each class has its exit code.

A hint names an option by markup: `{output}`; with a value, `{overwrite=True}`, `{max_episode_length=N}`, or
`{on_env_error="skip"}` with a JSON string; with one item of a mapping, `{env_kwargs=size=4}`. In Python a
hint shows the option as an argument, on the command line as a flag.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from rollout_cli.redact import without_secrets

# Only between spaces or punctuation: a user's folder may be called `data/{seed}`.
MARKUP = re.compile(r'(?<![^\s(])\{([a-z][a-z_0-9]*)(?:=("(?:[^"\\]|\\.)*"|[^{}"]*))?\}(?=[\s),:;]|$)')
_ARGUMENTS = {"envs_per_worker": "n_envs", "workers": "n_workers"}
"""Options with another argument name in the Python API."""

_LITERALS = {"true": "True", "false": "False"}


def _argument(match: re.Match[str]) -> str:
    """Return an option as an argument of the Python API, such as `max_episode_length=N`."""
    name = _ARGUMENTS.get(match[1], match[1])
    value = match[2]
    if value is None:
        return name
    key, equals, item = value.partition("=")
    if name == "set":  # `export` takes the options of a format as keyword arguments.
        return f"{key}={_LITERALS.get(item, item)}"
    if equals and not value.startswith('"'):
        return f'{name}={{"{key}": {item}}}'
    return f"{name}={value}"


def _flag(match: re.Match[str]) -> str:
    """Return an option as a flag of the command line, such as `--max-episode-length N`."""
    name = "--" + match[1].replace("_", "-")
    value = match[2]
    if value in {None, "True", "…"}:
        return name
    if value == "False":
        return name.replace("--", "--no-", 1)
    if value.startswith('"'):
        value = shlex.quote(json.loads(value))
    return f"{name} {value}"


def as_flags(hint: str) -> str:
    """Return a hint with its options as flags of the command line."""
    return MARKUP.sub(_flag, hint)


def misspelt(wrong: str, names: Iterable[str]) -> str:
    """Return a hint with the most similar name, or an empty string if no name is similar."""
    by_lower = {name.lower(): name for name in names}
    for name in difflib.get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.7):
        return f"did you mean {by_lower[name]}?"
    return ""


class RolloutError(Exception):
    """The base class of all errors of this package.

    `message` states in one line what happened and where; `hint` states in one line what to do next. `code`
    identifies the error for programs and does not change with the wording. `details`, such as a worker's
    traceback, is shown below the message. `hint` and `details` may be empty. Secrets are removed from all
    strings.

    Example:
        >>> try:
        ...     rollout_cli.load("missing")
        ... except rollout_cli.RolloutError as error:
        ...     print(error.code, "-", error.message)
        not-a-dataset - missing is not a dataset: it has no meta/info.json
    """

    exit_code: ClassVar[int] = 1
    code = "error"
    """The code of errors without a more specific code."""

    def __init__(self, message: str, *, code: str = "", hint: str = "", details: str = "") -> None:
        self.code = code or type(self).code
        self.message, self.marked_hint, self.details = map(without_secrets, (message, hint, details))
        super().__init__(self.message)

    @property
    def hint(self) -> str:
        """What to do next, with options as arguments of the Python API; `marked_hint` has the markup."""
        return MARKUP.sub(_argument, self.marked_hint)

    def with_hint(self, hint: str) -> Self:
        """Return a copy with another hint and the same cause."""
        changed = copy.copy(self)
        changed.marked_hint = hint
        changed.__cause__ = self.__cause__
        return changed.with_traceback(self.__traceback__)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments are not in `args`, and the default pickling would lose them.
        return type(self), (self.message,), vars(self)


class RemoteError(Exception):
    """An exception of a worker process, as the cause of a `RolloutError`; its string is the remote traceback."""

    def __str__(self) -> str:
        return f"\n{without_secrets(self.args[0])}"


class InternalError(RolloutError, AssertionError):
    """A bug in this package."""

    code = "internal"


class UsageError(RolloutError):
    """Arguments that cannot be combined or do not fit the input, or methods called in the wrong order."""

    exit_code = 2
    code = "usage"


class ArgumentError(UsageError, ValueError):
    """An argument out of range, or a list whose length is not the number of workers or rows."""

    code = "argument"


class ConfigError(UsageError):
    """A configuration file or value that cannot be used."""

    code = "config"


class UserCodeError(RolloutError):
    """The user's policy, environment, worker class or setup cannot be used; subclasses name the cause."""

    exit_code = 3
    code = "user-code"

    def __init__(
        self, message: str, *, place: str = "", episodes: tuple[int, ...] = (), **texts: str
    ) -> None:
        """Append the place, such as worker, episode and step, to the message.

        `episodes` are the numbers of the episodes in one of which the error happened.
        """
        super().__init__(f"{message} ({place})" if place else message, **texts)
        self.place = place
        self.episodes = episodes

    def placed(self, place: str, episodes: tuple[int, ...]) -> Self:
        """Return a copy with these episode numbers, and with this place unless the error has one."""
        changed = copy.copy(self)
        changed.episodes = episodes
        if not self.place:
            changed.place = place
            changed.message = f"{self.message} ({place})"
            changed.args = (changed.message,)
        return changed


class PolicyLoadError(UserCodeError):
    """A policy that cannot be found, read or recognized."""

    code = "policy-load"


class EnvLoadError(UserCodeError):
    """An environment that cannot be found, read or built."""

    code = "env-load"


class EnvTypeError(EnvLoadError, TypeError):
    """An object that is neither an environment nor an `EnvUpdate`."""

    code = "env-type"


class UnsupportedSpaceError(EnvLoadError):
    """A space without a fixed number of columns."""

    code = "space-unsupported"


class PolicyError(UserCodeError):
    """A policy that raised, or returned a value that violates its contract."""

    code = "policy-failed"


class EnvError(UserCodeError):
    """An environment that raised, or returned a value that violates its contract."""

    code = "env-failed"


class NotReproducibleError(UserCodeError):
    """Episodes that differ when they are rerun, although reproducibility was required."""

    code = "not-reproducible"


class ChangedFilesError(UserCodeError):
    """Files of the policy or environment changed during the run."""

    code = "files-changed"


class WorkerError(RolloutError):
    """Worker processes that died or could not be started."""

    exit_code = 4
    code = "worker-failed"


class StorageError(RolloutError):
    """Reading or writing a folder, file or disk failed."""

    exit_code = 5
    code = "storage"


class DatasetExistsError(StorageError):
    """The output folder already exists and is not empty."""

    code = "output-exists"


class DatasetLockedError(StorageError):
    """Another run is writing to the folder."""

    code = "dataset-locked"


class DatasetFormatError(StorageError):
    """A folder or file that is not a dataset in this format."""

    code = "dataset-format"


class VerificationError(RolloutError):
    """A dataset whose content contradicts its metadata; `report` has the findings as a JSON object."""

    exit_code = 6
    code = "dataset-invalid"

    def __init__(self, message: str, *, report: Mapping[str, Any] | None = None, **texts: str) -> None:
        super().__init__(message, **texts)
        self.report = dict(report or {})


class InterruptedRunError(RolloutError):
    """The user interrupted the run (SIGINT)."""

    exit_code = 130
    code = "interrupted"


class TerminatedRunError(RolloutError):
    """A signal terminated the run (SIGTERM)."""

    exit_code = 143
    code = "terminated"
