"""The one error tree. Every error that leaves the package is one of these, and each class owns its exit code.

A hint names an option by markup: `{output}`; with a value, `{overwrite=True}`, `{max_episode_length=N}`,
`{on_env_error="skip"}`, a text as JSON has it; with one item of a mapping, `{env_kwargs=size=4}`. Python
programs read it as an argument, and people at the command line as a flag.
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

# Alone between spaces or signs: a folder of the user's may be called `data/{seed}`.
MARKUP = re.compile(r'(?<![^\s(])\{([a-z][a-z_0-9]*)(?:=("(?:[^"\\]|\\.)*"|[^{}"]*))?\}(?=[\s),:;]|$)')
_ARGUMENTS = {"envs_per_worker": "n_envs", "workers": "n_workers"}
"""Options whose arguments in the Python API have other names."""

_LITERALS = {"true": "True", "false": "False"}


def _argument(match: re.Match[str]) -> str:
    """Return an option as an argument of the Python API, such as `max_episode_length=N`."""
    name = _ARGUMENTS.get(match[1], match[1])
    value = match[2]
    if value is None:
        return name
    key, equals, item = value.partition("=")
    if name == "set":  # `export` takes the options of a format as arguments of its own.
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
    """Return a hint with the name that a wrong one is most like; an empty one for none."""
    by_lower = {name.lower(): name for name in names}
    for name in difflib.get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.7):
        return f"did you mean {by_lower[name]}?"
    return ""


class RolloutError(Exception):
    """The root of the tree: in one line each, `message` says what happened and where, `hint` what to do next.

    `code` names the error for programs; it stays when the wording changes. `details` is shown below the
    message, such as a worker's traceback. Both `hint` and `details` may be empty. Secrets are removed from
    all of them.
    """

    exit_code: ClassVar[int] = 1
    code = "error"
    """The code of an error that has no more precise one."""

    def __init__(self, message: str, *, code: str = "", hint: str = "", details: str = "") -> None:
        self.code = code or type(self).code
        self.message, self.marked_hint, self.details = map(without_secrets, (message, hint, details))
        super().__init__(self.message)

    @property
    def hint(self) -> str:
        """What to do next, in words of the Python API; `marked_hint` is the same with options marked up."""
        return MARKUP.sub(_argument, self.marked_hint)

    def with_hint(self, hint: str) -> Self:
        """Return a copy with another hint, of the same cause."""
        changed = copy.copy(self)
        changed.marked_hint = hint
        changed.__cause__ = self.__cause__
        return changed.with_traceback(self.__traceback__)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments are not in `args`, so the default pickling would call without them.
        return type(self), (self.message,), vars(self)


class RemoteError(Exception):
    """What a worker process raised, as the cause of an error of ours; its text is the traceback there."""

    def __str__(self) -> str:
        return f"\n{without_secrets(self.args[0])}"


class InternalError(RolloutError, AssertionError):
    """A fault of this package, or verbs called in an illegal order: a state that should be impossible."""

    code = "internal"


class UsageError(RolloutError):
    """Arguments that cannot be used together, or with this input."""

    exit_code = 2
    code = "usage"


class ArgumentError(UsageError, ValueError):
    """An argument out of its range, or a list with another length than there are workers, or rows."""

    code = "argument"


class ConfigError(UsageError):
    """A configuration file or value that cannot be used."""

    code = "config"


class UserCodeError(RolloutError):
    """The user's policy, environment, worker class or set-up is unusable; subclasses say which and how."""

    exit_code = 3
    code = "user-code"

    def __init__(
        self, message: str, *, place: str = "", episodes: tuple[int, ...] = (), **texts: str
    ) -> None:
        """Make an error whose message ends in its place, such as the worker, episode and step.

        `episodes` are numbers: it happened in one of them.
        """
        super().__init__(f"{message} ({place})" if place else message, **texts)
        self.place = place
        self.episodes = episodes

    def placed(self, place: str, episodes: tuple[int, ...]) -> Self:
        """Return a copy of these episodes, and of this place where none is known."""
        changed = copy.copy(self)
        changed.episodes = episodes
        if not self.place:
            changed.place = place
            changed.message = f"{self.message} ({place})"
            changed.args = (changed.message,)
        return changed


class PolicyLoadError(UserCodeError):
    """A policy that cannot be found, read, or recognised."""

    code = "policy-load"


class EnvLoadError(UserCodeError):
    """An environment that cannot be found, read, or built."""

    code = "env-load"


class EnvTypeError(EnvLoadError, TypeError):
    """An object that is no environment, and no update of one."""

    code = "env-type"


class UnsupportedSpaceError(EnvLoadError):
    """A space that has no fixed set of columns."""

    code = "space-unsupported"


class PolicyError(UserCodeError):
    """A policy that raised, or gave what its contract does not allow."""

    code = "policy-failed"


class EnvError(UserCodeError):
    """An environment that raised, or gave what its contract does not allow."""

    code = "env-failed"


class NotReproducibleError(UserCodeError):
    """Episodes that do not come out the same when they are run again, where that was required."""

    code = "not-reproducible"


class ChangedFilesError(UserCodeError):
    """Files that the policy or the environment reads were changed while a run went on."""

    code = "files-changed"


class WorkerError(RolloutError):
    """Worker processes that died or could not be started."""

    exit_code = 4
    code = "worker-failed"


class StorageError(RolloutError):
    """Input or output failed: a folder, a file, a disk."""

    exit_code = 5
    code = "storage"


class DatasetExistsError(StorageError):
    """The output folder already holds something."""

    code = "output-exists"


class DatasetLockedError(StorageError):
    """Another run is writing to the folder."""

    code = "dataset-locked"


class DatasetFormatError(StorageError):
    """A folder or file that is not a dataset of this format."""

    code = "dataset-format"


class VerificationError(RolloutError):
    """A dataset that does not hold what it says; `report` is what was found, as JSON."""

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
    """The run was asked to end (SIGTERM)."""

    exit_code = 143
    code = "terminated"
