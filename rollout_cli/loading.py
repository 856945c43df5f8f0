"""Finding the user's own code and pickles: what `module:attr` and `file.pkl` mean, for policies and environments alike.

The parent looks (it reads and hashes, and imports nothing but a module's parent packages); workers load. What was found
crosses the process border as bytes and names, so that a file that changes while workers start changes nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import re
import sys
import traceback
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle

from rollout_cli.errors import UserCodeError
from rollout_cli.escaping import text_of
from rollout_cli.file_trust import read_bytes

ErrorKind = type[UserCodeError]

_LONGEST_LINE = 1_000

PICKLE_SUFFIXES = (".pkl", ".pickle")

_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_MODULE_ATTRIBUTE = re.compile(rf"{_DOTTED}:{_DOTTED}")


def put_working_folder_first(folder: str | None = None) -> str:
    """Put a folder first on `sys.path`, once, and return its absolute path.

    Args:
        folder: The folder; None is the working folder.
    """
    path = str(Path(folder or ".").resolve())
    if sys.path[:1] != [path]:
        sys.path[:] = [path, *(entry for entry in sys.path if entry != path)]
        importlib.invalidate_caches()
    return path


def is_module_attribute(spec: str) -> bool:
    """Return whether `spec` reads as `module:attr`; an environment id such as `module:Env-v0` does not."""
    return _MODULE_ATTRIBUTE.fullmatch(spec) is not None


def is_file(spec: str, suffixes: tuple[str, ...] = PICKLE_SUFFIXES) -> bool:
    """Return whether `spec` looks like a file of these suffixes, so that a missing one is reported as missing."""
    return spec.lower().endswith(suffixes)


def first_line(error: BaseException) -> str:
    """Return `error` as one line: its type, and the first line of its text, as far as a person would read it."""
    text = text_of(error).strip()
    if not text:
        return type(error).__name__
    line = text.splitlines()[0]
    shown = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
    return f"{type(error).__name__}: {shown}"


def failure(kind: ErrorKind, what: str, error: BaseException, *, hint: str) -> UserCodeError:
    """Return an error of `kind` that says what failed, with the user's own traceback as its details."""
    details = "".join(traceback.format_exception(error))
    if isinstance(error, SystemExit):
        hint = "the module calls sys.exit when it is imported: put that under `if __name__ == '__main__':`"
    return kind(f"{what}: {first_line(error)}", hint=hint, details=details)


@dataclass(frozen=True, slots=True)
class ModuleAttribute:
    """`module:attr`, found but not imported.

    Attributes:
        module: The module's dotted name.
        attribute: The attribute's dotted name in it.
        folder: The working folder that the name was found from; it is first on `sys.path` when the module is imported.
        sha256: Hash of the module's source file; None for a module with no file of its own.
    """

    module: str
    attribute: str
    folder: str
    sha256: str | None

    @classmethod
    def find(cls, spec: str, kind: ErrorKind) -> ModuleAttribute:
        """Look for the module of `spec`.

        Raises:
            UserCodeError: Of `kind`, if there is no such module, or a package that it lies in cannot be imported.
        """
        module, _, attribute = spec.partition(":")
        folder = put_working_folder_first()
        try:
            found = importlib.util.find_spec(module)
        except (Exception, SystemExit) as error:
            raise _import_failure(kind, module, error, folder) from error
        if found is None:
            raise kind(f"there is no module {module!r}", hint=_module_hint(folder))
        origin = found.origin if found.has_location else None
        return cls(module, attribute, folder, _file_hash(origin))

    @property
    def spec(self) -> str:
        """Return the text it was given as."""
        return f"{self.module}:{self.attribute}"

    def load(self, kind: ErrorKind) -> Any:
        """Import the module and return the attribute.

        Raises:
            UserCodeError: Of `kind`, if the import raises or the attribute is missing.
        """
        found: Any = import_module(self.module, kind, folder=self.folder)
        for name in self.attribute.split("."):
            if not hasattr(found, name):
                public = [key for key in vars(found) if not key.startswith("_")] if hasattr(found, "__dict__") else []
                hint = f"it has: {', '.join(sorted(public)[:12])}" if public else "check the name after the colon"
                raise kind(f"{self.module!r} has no attribute {self.attribute!r}", hint=hint)
            found = getattr(found, name)
        return found


def import_module(module: str, kind: ErrorKind, *, folder: str | None = None) -> Any:
    """Import one of the user's modules, with `folder` (None: the working folder) first on `sys.path`.

    Raises:
        UserCodeError: Of `kind`, if the import raises.
    """
    folder = put_working_folder_first(folder)
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise _import_failure(kind, module, error, folder) from error


def _module_hint(folder: str) -> str:
    return f"modules are looked for in the working folder ({folder}) and among the installed packages"


def _import_failure(kind: ErrorKind, module: str, error: BaseException, folder: str) -> UserCodeError:
    if isinstance(error, ModuleNotFoundError) and error.name and (module + ".").startswith(error.name + "."):
        return kind(f"there is no module {error.name!r}, which {module!r} names", hint=_module_hint(folder))
    if isinstance(error, ModuleNotFoundError):
        return failure(kind, f"importing {module!r} failed", error, hint=f"install what provides {error.name!r}")
    return failure(kind, f"importing {module!r} failed", error, hint="the traceback below shows where in the module")


def _file_hash(origin: str | None) -> str | None:
    return sha256(Path(origin).read_bytes()).hexdigest() if origin and Path(origin).is_file() else None


@dataclass(frozen=True, slots=True)
class PickleFile:
    """A pickle's bytes, read once: what is hashed is what is loaded, in every worker.

    Attributes:
        path: The file, as it was given; empty for an object that came through the Python API.
        data: Its bytes.
        sha256: Their hash.
        folder: The working folder, first on `sys.path` when the bytes are loaded; None leaves `sys.path` alone, since
            an object of the caller's came from where the caller's own path led.
    """

    path: str
    data: bytes = field(repr=False)
    sha256: str
    folder: str | None

    @classmethod
    def read(cls, spec: str, kind: ErrorKind) -> PickleFile:
        """Read the file.

        Raises:
            UserCodeError: Of `kind`, if it cannot be read.
        """
        data = read_bytes(spec, kind)
        return cls(spec, data, sha256(data).hexdigest(), put_working_folder_first())

    @classmethod
    def of(cls, item: Any, kind: ErrorKind, *, hint: str) -> PickleFile:
        """Pickle an object of the caller's, by value where its module may be missing elsewhere (as cloudpickle does).

        Raises:
            UserCodeError: Of `kind`, if it cannot be pickled.
        """
        try:
            data = cloudpickle.dumps(item)
        except Exception as error:
            raise failure(
                kind, f"an object of type {type(item).__name__} cannot be pickled", error, hint=hint
            ) from error
        return cls("", data, sha256(data).hexdigest(), None)

    @property
    def name(self) -> str:
        """Return what to call it in messages."""
        return repr(self.path) if self.path else "the pickled object"

    def load(self, kind: ErrorKind) -> Any:
        """Return a new copy of the pickled object.

        Raises:
            UserCodeError: Of `kind`, if the bytes are no pickle, or name a module or attribute that is missing.
        """
        if self.folder is not None:
            put_working_folder_first(self.folder)
        try:
            return pickle.loads(self.data)
        except ModuleNotFoundError as error:
            hint = f"install {error.name!r}, or pickle by value (for a policy: `rollout policy pack`)"
            raise failure(kind, f"{self.name} needs a module that is missing", error, hint=hint) from error
        except AttributeError as error:
            hint = "the code has changed since it was pickled: pickle it again, or by value (`rollout policy pack`)"
            raise failure(kind, f"{self.name} needs a name that is missing", error, hint=hint) from error
        except (Exception, SystemExit) as error:
            hint = "it may be cut short or no pickle at all: write it again with cloudpickle.dump"
            raise failure(kind, f"{self.name} cannot be unpickled", error, hint=hint) from error
