"""Finding and loading the user's own code: what `module:attr`, `file.pkl` and an object of the Python API mean.

The parent finds: it reads and hashes, and imports nothing. Workers load. What was found crosses the process border as
bytes and names, so that a file that changes while workers start changes nothing.

Modules of the working folder are found only while code of the user's is loaded: a `random.py` there must never take the
place of the library's own imports.
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
SHOW_WHERE = "the traceback below shows where"

_LONGEST_LINE = 300
_LONGEST_TRACEBACK = 20_000

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_MODULE_ATTRIBUTE = re.compile(rf"{_DOTTED}:{_DOTTED}")


# Texts of others, made safe to show.


def printable(text: str, *, keep: str = "") -> str:
    r"""Return `text` with control characters as escapes, so that no name of an environment can drive a terminal.

    Line breaks, lone surrogates and marks of direction are escaped too.

    Args:
        text: Any text of the user's code, of files or of the system.
        keep: Characters to leave as they are, such as "\n" in a traceback.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def one_line(text: str) -> str:
    """Return `text` on one line, its line breaks as spaces, otherwise as `printable` gives it."""
    return printable(" ".join(text.splitlines()))


def shortened(text: str, limit: int) -> str:
    """Return `text`, with its middle left out where it has more than `limit` characters."""
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
    return f"{name}: {printable(shortened(text.splitlines()[0], _LONGEST_LINE))}" if text else name


def traceback_text(error: BaseException) -> str:
    """Return the traceback of `error` as text; of a very long one, its beginning and its end."""
    return shortened("".join(traceback.format_exception(error)), _LONGEST_TRACEBACK)


def failure(kind: ErrorKind, what: str, error: BaseException, *, hint: str = SHOW_WHERE) -> UserCodeError:
    """Return an error of `kind` that says what failed, with the user's own traceback as its details."""
    if isinstance(error, SystemExit):
        what, hint = f"{what}: it ended with sys.exit", "let the code raise an exception, or return, instead"
    return kind(f"{what}: {first_line(error)}", hint=hint, details=traceback_text(error))


@contextlib.contextmanager
def reporting(kind: ErrorKind, what: str, *, hint: str = SHOW_WHERE) -> Iterator[None]:
    """Run code of the user's: all that it raises becomes an error of `kind`, but for Ctrl-C and errors of ours.

    Raises:
        UserCodeError: Of `kind`, as `failure` words it.
    """
    try:
        yield
    except BaseException as error:
        if _passes(error):
            raise
        raise failure(kind, what, error, hint=hint) from error


def _passes(error: BaseException) -> bool:
    return isinstance(error, RolloutError) or is_interrupt(error)


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

    Last from then on, because the user's code may import another of its modules as late as in a step.

    Args:
        folder: An absolute path; None and the empty text change nothing.
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
        UserCodeError: Of `kind`, if the import raises, or another module of that name is already in use.
    """
    folder = working_folder() if folder is None else folder
    try:
        with imports_from(folder):
            found = importlib.import_module(module)
    except BaseException as error:
        if _passes(error):
            raise
        raise _import_failure(kind, module, error, folder) from error
    _check_not_shadowed(module, kind, folder)
    return found


def _check_not_shadowed(module: str, kind: ErrorKind, folder: str) -> None:
    top = module.partition(".")[0]
    local = PathFinder.find_spec(top, [folder]) if folder else None
    used = getattr(sys.modules.get(top), "__file__", None)
    if local is not None and local.loader is not None and (used is None or not _is_same_file(local.origin, used)):
        where = used or "Python itself"
        raise kind(
            f"{local.origin!r} cannot be imported: {top!r} is the name of another module ({where})",
            hint="rename your file",
        )


def _is_same_file(one: str | None, other: str) -> bool:
    return one is not None and Path(one).exists() and Path(other).exists() and Path(one).samefile(other)


def _import_failure(kind: ErrorKind, module: str, error: BaseException, folder: str) -> UserCodeError:
    if isinstance(error, ModuleNotFoundError) and error.name and (module + ".").startswith(error.name + "."):
        return kind(f"there is no module {error.name!r}, which {module!r} names", hint=_module_hint(folder))
    what = f"importing {module!r} failed"
    if isinstance(error, ModuleNotFoundError):
        return failure(kind, what, error, hint=f"install the package that provides {error.name!r}")
    if isinstance(error, SystemExit):
        hint = "put what is not an import or a definition under `if __name__ == '__main__':`"
        return kind(f"{what}: it calls sys.exit", hint=hint, details=traceback_text(error))
    return failure(kind, what, error, hint="the traceback below shows where in the module")


def _module_hint(folder: str) -> str:
    return f"modules are looked for in the working folder ({folder}) and among the installed packages"


def _origin(module: str, folder: str) -> tuple[bool, str | None]:
    """Return whether there seems to be such a module, and its source file; nothing is imported.

    Only top-level names can be denied: a package may extend its own path when it is imported.
    """
    importlib.invalidate_caches()
    top, *inner = module.split(".")
    spec = _FolderFinder(folder).find_spec(top) if folder else None
    if spec is None:
        try:
            spec = importlib.util.find_spec(top)
        except ValueError:  # Of a module that is loaded and has no spec, such as __main__.
            return True, getattr(sys.modules.get(top), "__file__", None)
    if spec is None and folder:
        spec = PathFinder.find_spec(top, [folder])
    is_there = spec is not None
    name = top
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            break
        name = f"{name}.{part}"
        try:
            spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
        except KeyError:  # Inside two nested folders without __init__.py, which need their parents imported.
            spec = None
    return is_there, spec.origin if spec is not None and spec.has_location else None


@dataclass(frozen=True, slots=True)
class Source:
    """Code of the user's, found and not yet loaded; small and picklable.

    Attributes:
        spec: `module:attr`, or the file as it was given; empty for an object of the Python API.
        data: The bytes of a pickle, read once: those that were hashed are those that every worker loads. None for a
            module.
        folder: The working folder that it was found from. None leaves imports alone: an object of the caller's came
            from where the caller's own path led.
        sha256: The hash of the bytes, or of the module's source file; None for a module without one.
    """

    spec: str
    data: bytes | None = field(repr=False)
    folder: str | None
    sha256: str | None

    @classmethod
    def find(cls, spec: str, kind: ErrorKind) -> Source:
        """Look for the module of a `module:attr`, and import nothing.

        Raises:
            UserCodeError: Of `kind`, if there is no such module.
        """
        module = spec.partition(":")[0]
        folder = working_folder()
        is_there, origin = _origin(module, folder)
        if not is_there:
            raise kind(f"there is no module {module!r}", hint=_module_hint(folder))
        return cls(spec, None, folder, _file_hash(origin))

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

    @property
    def name(self) -> str:
        """Return what to call it in messages."""
        return repr(self.spec) if self.spec else "the pickled object"

    def load(self, kind: ErrorKind) -> Any:
        """Return the attribute of the imported module, or a new copy of the pickled object.

        Raises:
            UserCodeError: Of `kind`, if importing or unpickling fails, the attribute is missing, or the module's file
                has changed since it was found.
        """
        return self._load_attribute(kind) if self.data is None else self._unpickle(self.data, kind)

    def _load_attribute(self, kind: ErrorKind) -> Any:
        module, _, attribute = self.spec.partition(":")
        found: Any = import_module(module, kind, folder=self.folder)
        self._check_unchanged(getattr(found, "__file__", None), kind)
        for name in attribute.split("."):
            if not hasattr(found, name):
                public = [key for key in getattr(found, "__dict__", {}) if not key.startswith("_")]
                hint = f"it has: {', '.join(sorted(public)[:12])}" if public else "check the name after the colon"
                raise kind(f"{module!r} has no attribute {attribute!r}", hint=hint)
            found = getattr(found, name)
        return found

    def _check_unchanged(self, path: str | None, kind: ErrorKind) -> None:
        if self.sha256 is not None and path is not None and _file_hash(path) != self.sha256:
            raise kind(
                f"{path!r} has changed since it was found: a worker would run other code than those before it",
                hint="start the run again",
            )

    def _unpickle(self, data: bytes, kind: ErrorKind) -> Any:
        try:
            with imports_from(self.folder):
                return pickle.loads(data)  # noqa: S301 - the user names the file, as code to run
        except BaseException as error:
            if _passes(error):
                raise
            reason, hint = _unpickling_failure(error)
            raise failure(kind, f"{self.name} {reason}", error, hint=hint) from error


def _unpickling_failure(error: BaseException) -> tuple[str, str]:
    if isinstance(error, ModuleNotFoundError):
        hint = f"install {error.name!r}, or pickle by value (for a policy: `rollout policy pack`)"
        return "needs a module that is missing", hint
    if isinstance(error, AttributeError):
        hint = "the code has changed since it was pickled: pickle it again, or by value (`rollout policy pack`)"
        return "needs a name that is missing", hint
    return "cannot be unpickled", "it may be cut short or no pickle at all: write it again with cloudpickle.dump"


def _file_hash(path: str | None) -> str | None:
    try:
        return sha256(Path(path).read_bytes()).hexdigest() if path else None
    except OSError:  # No file of its own (frozen, in a zip), or not readable: importing it says so.
        return None
