"""Finding and loading the user's code, given as `module:attr`, `file.pkl` or a Python object.

The parent process finds code: it reads and hashes files, and imports nothing. Workers load code. Modules of
the working folder take precedence only while the user's code is loaded: a `random.py` there must not shadow
the imports of libraries.
"""

from __future__ import annotations

import ast
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
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import cloudpickle

from rollout_cli.errors import RolloutError, UsageError, UserCodeError
from rollout_cli.sources.untrusted import printable

ErrorKind = type[UserCodeError]
PICKLE_SUFFIXES = (".pkl", ".pickle")

_SHOW_WHERE = "see the traceback below"
_PLACES = "check the name; modules are searched in the working folder ({}) and the installed packages"
_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_MODULE_ATTRIBUTE = re.compile(rf"{_DOTTED}:{_DOTTED}")


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters left out … {text[-half:]}"


@contextlib.contextmanager
def needing(package: str, module: str = "") -> Iterator[None]:
    """Run the import of an optional package; the error for a missing package has the pip command.

    Args:
        package: The name of the package for pip.
        module: The name of its module, if that differs.

    Raises:
        UsageError: The package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != (module or package.replace("-", "_")):
            raise
        raise UsageError(
            f"the package {package} is not installed",
            code="package-missing",
            hint=f"pip install {package}",
        ) from error


def first_line(error: BaseException) -> str:
    """Return the type and the first line of the message of `error`, about 300 characters at most."""
    try:
        text = str(error).strip()
    except BaseException as another:  # noqa: BLE001 - __str__ is the user's code, and may raise anything
        text = f"(no message: __str__ raised {type(another).__name__})"
    name = type(error).__name__
    return f"{name}: {printable(_shortened(text.splitlines()[0], 300))}" if text else name


def name_of(item: Any) -> str:
    """Return the name of a class or function, or of an object's class."""
    return str(getattr(item, "__name__", None) or type(item).__name__)


def traceback_text(error: BaseException) -> str:
    """Return the traceback of `error` as a string; a very long one is shortened in the middle."""
    return _shortened("".join(traceback.format_exception(error)), 20_000)


def failure(
    kind: ErrorKind, problem: str, error: BaseException, *, code: str, hint: str = _SHOW_WHERE
) -> UserCodeError:
    """Return an error of `kind` with the problem as message and the user's traceback as details."""
    if isinstance(error, SystemExit):
        problem = f"{problem}: it called sys.exit"
        hint = (
            "raise an exception or return instead; "
            "put the code of a script under `if __name__ == '__main__':`"
        )
    return kind(f"{problem}: {first_line(error)}", code=code, hint=hint, details=traceback_text(error))


@contextlib.contextmanager
def reporting(
    kind: ErrorKind, problem: str, *, code: str = "user-code-raised", hint: str = _SHOW_WHERE
) -> Iterator[None]:
    """Run the user's code, and raise its errors as `kind`, except Ctrl-C and errors of this package."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, RolloutError) or is_interrupt(error):
            raise
        raise failure(kind, problem, error, code=code, hint=hint) from error


def is_interrupt(error: BaseException) -> bool:
    """Return True if `error` comes from Ctrl-C, not from the user's code.

    In workers, and in runs with their own SIGINT handler, Ctrl-C does not raise KeyboardInterrupt.
    """
    return (
        isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def loaded_modules() -> tuple[str, ...]:
    """Return the top-level modules that this process has loaded, except the standard library."""
    names = {name.partition(".")[0] for name in list(sys.modules)}
    return tuple(sorted(names - sys.stdlib_module_names - {"__main__"}))


def is_module_attribute(spec: str) -> bool:
    """Return True if `spec` has the form `module:attr`, unlike an environment id such as `module:Env-v0`."""
    return _MODULE_ATTRIBUTE.fullmatch(spec) is not None


def is_file(spec: str, suffixes: tuple[str, ...] = PICKLE_SUFFIXES) -> bool:
    """Return True if `spec` has one of the suffixes, even if the file is missing."""
    return spec.lower().endswith(suffixes)


def did_you_mean(module: str) -> str:
    """Return a hint with the public names of a module in the working folder, or an empty string.

    The module, given as `module` or `module.py`, is parsed but not imported.
    """
    parts = ".".join(PurePath(module.removesuffix(".py")).parts).split(".")
    try:
        source = Source.read(f"{'/'.join(parts)}.py", RolloutError, most_bytes=1 << 20).data
        nodes = ast.parse(source or b"").body
    except (RolloutError, ValueError, SyntaxError, RecursionError):
        return ""
    specs = [
        f"{'.'.join(parts)}:{node.name}"
        for node in nodes
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    if not specs:
        return ""
    return f"did you mean {' or '.join(specs)}?"


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # The folder was deleted.
        return ""


@dataclass(frozen=True, slots=True)
class _FolderFinder:
    """A meta path finder for top-level modules in one folder, except names of the standard library."""

    folder: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        spec = PathFinder.find_spec(fullname, [self.folder], target)
        # A folder without __init__.py has no loader; an installed package with its name takes precedence.
        return spec if spec and spec.loader else None


def is_in_working_folder(name: str) -> bool:
    """Return True if the working folder has the top-level module of a name, which the user's code then imports."""
    return _FolderFinder(_working_folder()).find_spec(re.split("[.:]", name)[0]) is not None


@contextlib.contextmanager
def imports_from(folder: str | None) -> Iterator[None]:
    """Search modules in `folder` first while the user's code is loaded, and last afterwards.

    The user's code may import other modules later, even during a step. Without a folder, nothing changes.
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
    """Import a user's module; modules in `folder` (None: the working folder) take precedence."""
    folder = _working_folder() if folder is None else folder
    problem = f"importing {module!r} failed"
    hint = "see the traceback below for the line in the module"
    with reporting(kind, problem, code="import-failed", hint=hint), imports_from(folder):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                raise kind(
                    f"the module {error.name!r} of {module!r} does not exist",
                    code="module-missing",
                    hint=_PLACES.format(folder),
                ) from error
            raise failure(
                kind,
                problem,
                error,
                code="dependency-missing",
                hint=f"install the package that provides {error.name!r}",
            ) from error


@dataclass(frozen=True, slots=True)
class Source:
    """The user's code, found but not loaded; small and picklable. Methods raise errors of the given `kind`."""

    spec: str  # `module:attr`, or the file as given; empty for an object of the Python API.
    # The bytes of a pickle, which every worker loads; None for a module.
    data: bytes | None = field(repr=False)
    # The working folder when the code was found, for imports; None for an object of the Python API.
    folder: str | None
    # The hash of the bytes or of the module's source file; None for a module without a source file.
    sha256: str | None
    file: Path | None = None  # The module's source file.

    @property
    def path(self) -> str | None:
        """The absolute path of the file; None for a module or an object."""
        if self.data is None or not self.spec:
            return None
        return str(Path(self.folder or "", self.spec))

    @classmethod
    def find(cls, spec: str, kind: ErrorKind) -> Source:
        """Locate the module of a `module:attr` without importing it.

        Only a missing top-level module is an error: a package may extend its path when it is imported.
        """
        module = spec.partition(":")[0]
        top, *inner = module.split(".")
        folder = _working_folder()
        importlib.invalidate_caches()
        module_spec = None
        # `find_spec` raises ValueError for a loaded module without a spec, such as __main__.
        with contextlib.suppress(ValueError):
            module_spec = _FolderFinder(folder).find_spec(top) or importlib.util.find_spec(top)
            module_spec = module_spec or PathFinder.find_spec(top, [folder])  # A plain folder.
        if module_spec is None:
            raise kind(f"unknown module {module!r}", code="module-missing", hint=_PLACES.format(folder))
        files = []
        if inner:
            for package in module_spec.submodule_search_locations or ():
                files += [Path(package, *inner).with_suffix(".py"), Path(package, *inner, "__init__.py")]
        elif module_spec.has_location and module_spec.origin:
            files.append(Path(module_spec.origin))
        for file in files:
            if file.is_file() and os.access(file, os.R_OK):
                return cls(spec, None, folder, sha256(file.read_bytes()).hexdigest(), file)
        return cls(spec, None, folder, None)

    @classmethod
    def read(cls, path: str, kind: type[RolloutError], *, most_bytes: int = sys.maxsize) -> Source:
        """Read a file, such as a pickle. Pipes and devices are errors: reading them may never end."""
        folder = _working_folder()
        try:
            # Without O_NONBLOCK, opening a pipe would wait for a writer.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise kind(
                        f"{path!r} is not a regular file",
                        code="spec-file-not-regular",
                        hint="copy the content into a regular file",
                    )
                if status.st_size > most_bytes:
                    raise kind(
                        f"{path!r} is larger than {most_bytes:,} bytes",
                        code="spec-file-too-large",
                        hint="check that it is the intended file",
                    )
                data = file.read()
        except FileNotFoundError as error:
            raise kind(
                f"no such file: {path!r}",
                code="spec-file-missing",
                hint=f"check the path, which is relative to the working folder {folder}",
            ) from error
        except (OSError, ValueError) as error:
            raise kind(
                f"cannot read {path!r}: {getattr(error, 'strerror', None) or error}",
                code="spec-file-unreadable",
                hint="check that it is a readable file",
            ) from error
        return cls(path, data, folder, sha256(data).hexdigest())

    @classmethod
    def of(cls, item: Any, kind: ErrorKind, *, hint: str) -> Source:
        """Pickle an object with cloudpickle, by value if other processes may lack its module."""
        with reporting(
            kind,
            f"an object of type {type(item).__name__} cannot be pickled",
            code="pickle-failed",
            hint=hint,
        ):
            data = cloudpickle.dumps(item)
        return cls("", data, None, sha256(data).hexdigest())

    def load(self, kind: ErrorKind) -> Any:
        """Return the attribute of the imported module, or a new copy of the pickled object."""
        return self._load_attribute(kind) if self.data is None else self._unpickle(self.data, kind)

    def _load_attribute(self, kind: ErrorKind) -> Any:
        module, _, attribute = self.spec.partition(":")
        item: Any = import_module(module, kind, folder=self.folder)
        # A user's file with the name of an imported library is not imported; the message shows the path.
        file = getattr(item, "__file__", None) or "part of Python"
        with reporting(kind, f"reading {attribute!r} of {module!r} failed", code="attribute-missing"):
            for name in attribute.split("."):
                if not hasattr(item, name):
                    public = [key for key in getattr(item, "__dict__", {}) if not key.startswith("_")]
                    raise kind(
                        f"{module!r} ({file}) has no attribute {attribute!r}",
                        code="attribute-missing",
                        hint=f"use one of: {', '.join(sorted(public)[:12])}"
                        if public
                        else "check the name after the colon",
                    )
                item = getattr(item, name)
        return item

    def _unpickle(self, data: bytes, kind: ErrorKind) -> Any:
        name = repr(self.spec) if self.spec else "the pickled object"
        hint = "write the pickle again with cloudpickle.dump; it may be truncated or another kind of file"
        with (
            reporting(kind, f"cannot unpickle {name}", code="unpickle-failed", hint=hint),
            imports_from(self.folder),
        ):
            try:
                return pickle.loads(data)  # noqa: S301 - the user names the file, as code to run
            except ModuleNotFoundError as error:
                raise failure(
                    kind,
                    f"{name} needs a missing module",
                    error,
                    code="dependency-missing",
                    hint=f"install {error.name!r}, or pickle by value (for a policy: `rollout policy pack`)",
                ) from error
            except AttributeError as error:
                raise failure(
                    kind,
                    f"{name} needs a missing attribute",
                    error,
                    code="attribute-missing",
                    hint="pickle the object again, because its code has changed since, "
                    "or pickle it by value (`rollout policy pack`)",
                ) from error
