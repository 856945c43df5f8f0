"""Pins: the files that a policy and an environment read, with hashes, and the detection of changes.

A worker watches the files that its process opens, from before its class and the policy are loaded until its
first episode has ended. A Python audit hook reports each file that Python code opens. It does not see files
that C code opens, such as MuJoCo's XML files: `--pin` pins these, and rerunning a stored episode detects
changes in the others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import file_digest
from operator import itemgetter
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from rollout_cli.errors import ChangedFilesError

_SYSTEM = ("/proc", "/sys", "/dev/fd", "/etc", "/usr")
_NOT_PINNED = (
    *(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages", "__pycache__")),
    f"{os.sep}torchinductor_",
)
"""Folders of packages and of generated files: numba and torch replace their compiled files."""
_HUBS = (".cache/huggingface/hub", ".cache/torch/hub")
"""The hidden folders of HOME that contain models; all others contain settings, caches and programs."""
_CACHES = ("JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""The variables that name the folders of compiled programs, whose files depend on the machine and on earlier runs."""
_OURS = str(Path(__file__).parent.parent)
State = tuple[int, int]
"""The size of a file, and its modification time in nanoseconds."""


class FileRecord(TypedDict):
    """The record of a file in info.json."""

    path: str  # The label: a path relative to the working folder, or the path of a module.
    sha256: str
    read: str  # When the file was first read: `load` or `episode`.
    place: NotRequired[str]  # The absolute path, if the label is only the name of the file.


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True)
class PinRules:
    """Rules for pinning files and for their labels.

    Attributes:
        named: Paths of files to pin in addition to opened files; missing files are ignored.
        folders: Folders whose files have relative paths as labels, innermost first, followed by the working
            folder. The label of a file elsewhere is its name.
        ignored: Folders whose files are not pinned, such as the output folder.
    """

    named: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file that user code read.

    Attributes:
        label: The path of the file in info.json: relative to the SPEC's folder or the working folder. For
            modules elsewhere it is the dotted name as a path, for other files elsewhere the name.
        key: The identity of the file in a run: the label of a relative path or module, else the absolute path.
        path: The absolute path at which the file was read.
        state: The state of the file when it was read.
        at_load: True if the file was certainly read before the first episode started.
        sha256: The hash of the content; empty until `hashed` computes it.
    """

    label: str
    key: str
    path: str
    state: State
    at_load: bool = True
    sha256: str = ""


class FileWatch:
    """Records the files that this process opens, from its creation until `end`."""

    def __init__(self, rules: PinRules) -> None:
        self._rules = rules
        self._folder = _absolute(".")
        self._read: dict[str, State] = {}
        self._written: set[str] = set()
        self._at_load: dict[str, bool] = {}
        self._is_first_call = True
        # It is unknown whether the policy uses a module that was imported before.
        self._earlier = {*_module_states()}
        _watches.append(self)
        _add_hook()

    def follow(self, rules: PinRules) -> None:
        """Use new rules; files that were read so far may not be read by other workers."""
        self._rules = rules
        self._earlier = {*_module_states(), *self._read}

    def opened(self, path: str, *, writes: bool) -> None:
        """Record an opened file; the bytecode of a module counts as its source."""
        if writes:
            self._written.add(path)
            return
        if path.endswith(".pyc"):
            with contextlib.suppress(ValueError):  # Bytecode without a source.
                path = importlib.util.source_from_cache(path)
        if path not in self._read and not path.startswith(_UNPINNED):
            self._read[path] = _state(path)

    def files(self) -> tuple[PinnedFile, ...]:
        """Return the files that were read so far; files of the first call have `at_load`."""
        for path in map(_absolute, self._rules.named):
            with contextlib.suppress(OSError):
                self.opened(path, writes=False)
        self._read |= _module_states()
        folders = (*self._rules.ignored, *_cache_folders())
        ignored = tuple(f"{_absolute(folder)}{os.sep}" for folder in folders)
        files = []
        for path in sorted(self._read.keys() - self._written):
            if not path.startswith(ignored) and self._is_pinned(path):
                self._at_load.setdefault(path, self._is_first_call and path not in self._earlier)
                files.append(self._pinned(path))
        self._is_first_call = False
        return tuple(files)

    def end(self) -> None:
        """Stop recording files."""
        if self in _watches:
            _watches.remove(self)

    def _is_pinned(self, path: str) -> bool:
        """Return True for a user's file, which is not a part of Python, a package or the system."""
        # `os.path.isfile` never raises.
        if any(folder in path for folder in _NOT_PINNED) or not os.path.isfile(path):  # noqa: PTH113
            return False
        home = f"{_absolute('~')}{os.sep}"
        inside = path.removeprefix(home)
        if inside == path or not inside.startswith(".") or inside.startswith(_HUBS):
            return True
        top = home + Path(inside).parts[0]
        return f"{self._folder}{os.sep}".startswith(f"{top}{os.sep}")  # The run is in this hidden folder.

    def _pinned(self, path: str) -> PinnedFile:
        key = path
        label = Path(path).name
        if path in _modules:
            label = _module_label(path)
            key = f"module {label}"  # Not only the label: a relative path may have the same label.
        for folder in (*map(_absolute, self._rules.folders), self._folder):
            if path.startswith(f"{folder}{os.sep}"):
                label = key = path.removeprefix(f"{folder}{os.sep}")
                break
        return PinnedFile(label, key, path, self._read[path], self._at_load[path])


def _cache_folders() -> set[str]:
    """Return the folders in which libraries of this process keep compiled programs."""
    config = getattr(sys.modules.get("jax"), "config", None)  # A program may set it, too.
    named = getattr(config, "jax_compilation_cache_dir", None)
    return {folder for folder in (named, *map(os.environ.get, _CACHES)) if folder}


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - does not access the disk
    except FileNotFoundError:  # The working folder was deleted.
        return path


# Strings instead of `pathlib`, because they are compared with every opened file.
_UNPINNED = tuple(f"{_absolute(folder)}{os.sep}" for folder in {*_SYSTEM, sys.prefix, sys.base_prefix, _OURS})


_modules: dict[str, tuple[Any, State]] = {}
"""By file, the module's spec and the file's state when it was first found: a loaded module does not change."""


def _module_states() -> dict[str, State]:
    """Return the files of all loaded modules; a watch does not see modules that were imported before it."""
    states = {}
    for name, module in list(sys.modules.items()):
        # Not by `getattr`, which makes a lazy module import its content.
        attributes = getattr(module, "__dict__", {})
        file = attributes.get("__file__")
        if not isinstance(file, str) or name == "__main__":
            continue
        if file.startswith(_UNPINNED) and os.pardir not in file:  # A fast path for most modules.
            continue
        path = _absolute(file)
        spec = attributes.get("__spec__")
        if not path.startswith(_UNPINNED):
            with contextlib.suppress(OSError):
                if path not in _modules or _modules[path][0] is not spec:
                    _modules[path] = spec, _state(path)
                states[path] = _modules[path][1]
    return states


def _module_label(path: str) -> str:
    """Return the path of a module relative to its import folder, such as `package/helper.py`."""
    name = Path(path).name
    parts = getattr(_modules[path][0], "name", "").split(".")
    if name != "__init__.py":
        del parts[-1]
    return "/".join([*parts, name])


def _state(path: str) -> State:
    status = os.stat(path)  # noqa: PTH116 - an audit hook must be fast
    return status.st_size, status.st_mtime_ns


_watches: list[FileWatch] = []


@cache
def _add_hook() -> None:
    """Add the audit hook, once per process: a hook cannot be removed."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """Record an `open` event; errors are ignored, because the following call of `open` raises them."""
    if event == "open" and _watches and not isinstance(arguments[0], int):
        with contextlib.suppress(OSError, ValueError, TypeError):
            name, mode, flags = arguments
            path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100
            writes = bool(isinstance(mode, str) and set("wax+") & set(mode)) or bool(flags & _WRITES)
            for watch in _watches:
                watch.opened(path, writes=writes)


# Hashes and changes of files.


def hashed(file: PinnedFile) -> PinnedFile:
    """Return a file with the hash of its content.

    Raises:
        ChangedFilesError: The file has changed since it was read, or cannot be read.
    """
    try:
        with Path(file.path).open("rb") as opened:
            digest = file_digest(opened, "sha256").hexdigest()
            state = os.fstat(opened.fileno())
    except OSError as error:
        raise _changed(file) from error
    if (state.st_size, state.st_mtime_ns) != file.state:
        raise _changed(file)
    return replace(file, sha256=digest)


def agreed(before: Iterable[PinnedFile], now: Iterable[PinnedFile]) -> tuple[PinnedFile, ...]:
    """Return the merged files of several workers, with hashes.

    Raises:
        ChangedFilesError: Two workers have read different content of the same file.
    """
    files = {file.key: file for file in before}
    for file in now:
        earlier = files.get(file.key)
        if earlier and not file.sha256 and (earlier.path, earlier.state) == (file.path, file.state):
            continue
        new = file if file.sha256 else hashed(file)
        if earlier and earlier.sha256 != new.sha256:
            raise _changed(file)
        files.setdefault(file.key, new)
    return tuple(files.values())


def _changed(file: PinnedFile) -> ChangedFilesError:
    return ChangedFilesError(
        f"{file.label} changed while the run was using it",
        code="files-changed",
        hint="restore the original files and resume the run, or collect to another folder",
    )


def record(files: Iterable[PinnedFile]) -> list[FileRecord]:
    """Return the records of files in info.json: `path`, `sha256`, and `read` (`load` or `episode`).

    If `path` is only the name of a file, which may not be unique, `place` has the absolute path.
    """
    documents = []
    for file in files:
        read = "load" if file.at_load else "episode"
        document: FileRecord = {"path": file.label, "sha256": file.sha256, "read": read}
        if file.key == file.path:
            document["place"] = file.path
        documents.append(document)
    return sorted(documents, key=itemgetter("path", "sha256"))
