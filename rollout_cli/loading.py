"""Finding and loading the user's own code: what `module:attr`, `file.pkl` and an object of the Python API mean.

The parent finds: it reads and hashes, and imports nothing. Workers load. Modules of the working folder are found only
while code of the user's is loaded: a `random.py` there must never take the place of the library's own imports.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pickle
import re
import signal
import stat
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from rollout_cli.errors import RolloutError, UserCodeError

ErrorKind = type[UserCodeError]

PICKLE_SUFFIXES = (".pkl", ".pickle")

_SHOW_WHERE = "the traceback below shows where"
_LONGEST_LINE = 300
_LONGEST_TRACEBACK = 20_000

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_MODULE_ATTRIBUTE = re.compile(rf"{_DOTTED}:{_DOTTED}")


# Texts of others, made safe to show.


def printable(text: str, *, keep: str = "") -> str:
    r"""Return `text` with all that could drive a terminal as escapes, but for the characters to `keep`, such as "\n".

    These are control characters, line breaks, lone surrogates and marks of direction.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def one_line(text: str) -> str:
    """Return `text` on one line, its line breaks as spaces, otherwise as `printable` gives it."""
    return printable(" ".join(text.splitlines()))


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters left out … {text[-half:]}"


def first_line(error: BaseException) -> str:
    """Return `error` as one line of at most some 300 characters: its type, and the first line of its text."""
    try:
        text = str(error).strip()
    except Exception as another:  # noqa: BLE001 - __str__ is the user's code, and may raise anything
        text = f"(it has no text: its __str__ raised {type(another).__name__})"
    name = type(error).__name__
    return f"{name}: {printable(_shortened(text.splitlines()[0], _LONGEST_LINE))}" if text else name


def traceback_text(error: BaseException) -> str:
    """Return the traceback of `error` as text; of a very long one, its beginning and its end."""
    return _shortened("".join(traceback.format_exception(error)), _LONGEST_TRACEBACK)


def failure(kind: ErrorKind, what: str, error: BaseException, *, hint: str = _SHOW_WHERE) -> UserCodeError:
    """Return an error of `kind` that says what failed, with the user's own traceback as its details."""
    if isinstance(error, SystemExit):
        what = f"{what}: it ended with sys.exit"
        hint = "raise an exception or return instead; put a program's own part under `if __name__ == '__main__':`"
    return kind(f"{what}: {first_line(error)}", hint=hint, details=traceback_text(error))


@contextlib.contextmanager
def reporting(kind: ErrorKind, what: str, *, hint: str = _SHOW_WHERE) -> Iterator[None]:
    """Run code of the user's: all that it raises becomes an error of `kind`, but for Ctrl-C and errors of ours.

    Raises:
        UserCodeError: Of `kind`, as `failure` words it.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, RolloutError) or is_interrupt(error):
            raise
        raise failure(kind, what, error, hint=hint) from error


def is_interrupt(error: BaseException) -> bool:
    """Return whether `error` is a Ctrl-C of the user's, and not something that the user's code raised by itself.

    Where a run handles SIGINT in its own way, and in workers, no KeyboardInterrupt comes of Ctrl-C.
    """
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


# What a SPEC reads as.


def is_module_attribute(spec: str) -> bool:
    """Return whether `spec` reads as `module:attr`; an environment id such as `module:Env-v0` does not."""
    return _MODULE_ATTRIBUTE.fullmatch(spec) is not None


def is_file(spec: str, suffixes: tuple[str, ...] = PICKLE_SUFFIXES) -> bool:
    """Return whether `spec` looks like a file of these suffixes, so that a missing one is reported as missing."""
    return spec.lower().endswith(suffixes)


def read_bytes(path: str, kind: ErrorKind) -> bytes:
    """Return the bytes of a file. Pipes and devices are refused: opening or reading one may never end.

    Raises:
        UserCodeError: Of `kind`, if it cannot be read or is no regular file.
    """
    try:
        # Opening a pipe would otherwise wait for somebody to write into it.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise kind(f"{path!r} is not a regular file", hint="copy its content into a file, and name that")
            return file.read()
    except FileNotFoundError as error:
        hint = f"paths are relative to the working folder, {working_folder()}"
        raise kind(f"there is no file {path!r}", hint=hint) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{path!r} cannot be read: {reason}", hint="check that it is a readable file") from error


# Imports from the working folder.


def working_folder() -> str:
    """Return the working folder's absolute path; empty where it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


class _FolderFinder:
    """A meta path finder of top-level modules that lie in one folder, but for names of the standard library."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        found = PathFinder.find_spec(fullname, [self._folder], target)
        # A folder without __init__.py has no loader; an installed package of its name comes first.
        return found if found is not None and found.loader is not None else None


@contextlib.contextmanager
def imports_from(folder: str | None) -> Iterator[None]:
    """Let imports find the modules of `folder` first while user code is loaded, and last from then on.

    Last from then on, because the user's code may import another of its modules as late as in a step. Without a folder,
    nothing changes.
    """
    if not folder:
        yield
        return
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    finder = _FolderFinder(folder)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_module(module: str, kind: ErrorKind, *, folder: str | None = None) -> Any:
    """Import one of the user's modules; those that lie in `folder` (None: the working folder) come first.

    Raises:
        UserCodeError: Of `kind`, if the import raises.
    """
    folder = working_folder() if folder is None else folder
    what = f"importing {module!r} failed"
    with reporting(kind, what, hint="the traceback below shows where in the module"), imports_from(folder):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                message = f"there is no module {error.name!r}, which {module!r} names"
                raise kind(message, hint=_module_hint(folder)) from error
            raise failure(kind, what, error, hint=f"install the package that provides {error.name!r}") from error


def _module_hint(folder: str) -> str:
    return f"modules are looked for in the working folder ({folder}) and among the installed packages"


def _find_module(top: str, folder: str) -> ModuleSpec | None:
    """Return where a top-level module would be imported from; nothing is imported."""
    importlib.invalidate_caches()
    try:
        found = (_FolderFinder(folder).find_spec(top) if folder else None) or importlib.util.find_spec(top)
    except ValueError:  # Of a module that is loaded and was never found anywhere, such as __main__.
        return None
    return found or (PathFinder.find_spec(top, [folder]) if folder else None)


def _source_hash(top: ModuleSpec, inner: Sequence[str]) -> str | None:
    """Return the hash of the file of a module, or of one inside it; None where it has none that can be read."""
    files = [Path(top.origin)] if top.has_location and top.origin and not inner else []
    for folder in (top.submodule_search_locations or ()) if inner else ():
        files += [Path(folder, *inner).with_suffix(".py"), Path(folder, *inner, "__init__.py")]
    for file in files:
        with contextlib.suppress(OSError):
            return sha256(file.read_bytes()).hexdigest()
    return None


@dataclass(frozen=True, slots=True)
class Source:
    """Code of the user's, found and not yet loaded; small and picklable.

    Attributes:
        spec: `module:attr`, or the file as it was given; empty for an object of the Python API.
        data: The bytes of a pickle, read once, so that every worker loads those that were hashed; None for a module.
        folder: The working folder that it was found from; None leaves imports alone, as for an object of the caller's.
        sha256: The hash of the bytes, or of the module's source file; None for a module without one.
    """

    spec: str
    data: bytes | None = field(repr=False)
    folder: str | None
    sha256: str | None

    @classmethod
    def find(cls, spec: str, kind: ErrorKind) -> Source:
        """Look for the module of a `module:attr`, and import nothing.

        Only top-level names can be denied: a package may extend its own path when it is imported.

        Raises:
            UserCodeError: Of `kind`, if there is no such module.
        """
        module = spec.partition(":")[0]
        top, *inner = module.split(".")
        folder = working_folder()
        found = _find_module(top, folder)
        if found is None:
            raise kind(f"there is no module {module!r}", hint=_module_hint(folder))
        return cls(spec, None, folder, _source_hash(found, inner))

    @classmethod
    def read(cls, path: str, kind: ErrorKind) -> Source:
        """Read a pickle file.

        Raises:
            UserCodeError: Of `kind`, if it cannot be read.
        """
        data = read_bytes(path, kind)
        return cls(path, data, working_folder(), sha256(data).hexdigest())

    @classmethod
    def of(cls, item: Any, kind: ErrorKind, *, hint: str) -> Source:
        """Pickle an object of the caller's, by value where other processes may lack its module (as cloudpickle does).

        Raises:
            UserCodeError: Of `kind`, if it cannot be pickled.
        """
        with reporting(kind, f"an object of type {type(item).__name__} cannot be pickled", hint=hint):
            data = cloudpickle.dumps(item)
        return cls("", data, None, sha256(data).hexdigest())

    @property
    def is_module(self) -> bool:
        """Return whether it is a `module:attr`."""
        return self.data is None

    def load(self, kind: ErrorKind) -> Any:
        """Return the attribute of the imported module, or a new copy of the pickled object.

        Raises:
            UserCodeError: Of `kind`, if importing or unpickling fails, or the attribute is missing.
        """
        return self._load_attribute(kind) if self.data is None else self._unpickle(self.data, kind)

    def _load_attribute(self, kind: ErrorKind) -> Any:
        module, _, attribute = self.spec.partition(":")
        found: Any = import_module(module, kind, folder=self.folder)
        # A file of the user's that is named like a library in use is never imported: the path shows whose module it is.
        where = getattr(found, "__file__", None) or "part of Python"
        for name in attribute.split("."):
            if not hasattr(found, name):
                public = [key for key in getattr(found, "__dict__", {}) if not key.startswith("_")]
                hint = f"it has: {', '.join(sorted(public)[:12])}" if public else "check the name after the colon"
                raise kind(f"{module!r} ({where}) has no attribute {attribute!r}", hint=hint)
            found = getattr(found, name)
        return found

    def _unpickle(self, data: bytes, kind: ErrorKind) -> Any:
        name = repr(self.spec) if self.spec else "the pickled object"
        hint = "it may be cut short or no pickle at all: write it again with cloudpickle.dump"
        with reporting(kind, f"{name} cannot be unpickled", hint=hint), imports_from(self.folder):
            try:
                return pickle.loads(data)  # noqa: S301 - the user names the file, as code to run
            except ModuleNotFoundError as error:
                hint = f"install {error.name!r}, or pickle by value (for a policy: `rollout policy pack`)"
                raise failure(kind, f"{name} needs a module that is missing", error, hint=hint) from error
            except AttributeError as error:
                hint = "the code has changed since it was pickled: pickle it again, or by value (`rollout policy pack`)"
                raise failure(kind, f"{name} needs a name that is missing", error, hint=hint) from error
