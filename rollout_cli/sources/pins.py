"""Pins: which files a policy and an environment read, and whether they changed while they were read.

A worker watches what its process opens, from before its class and the policy are loaded until its first
episode has ended.
An audit hook of Python reports each file that Python code opens. Code in C opens files without it (MuJoCo's
XML, for example): such a file is pinned where it is named, and otherwise found by running a stored episode
again.
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
_NOT_PINNED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages", "__pycache__"))
"""Folders of packages, and of files that follow from sources: numba replaces those that it has compiled."""
_HUBS = (".cache/huggingface/hub", ".cache/torch/hub")
"""The dot-folders of HOME that hold models; all others hold settings, caches and programs."""
_OURS = str(Path(__file__).parent.parent)
State = tuple[int, int]
"""A file's size, and its time of modification in nanoseconds."""


class FileRecord(TypedDict):
    """A file as info.json records it."""

    path: str  # Its label: a path relative to the working folder, or a module's.
    sha256: str
    read: str  # `load` or `episode`: when it was read first.
    place: NotRequired[str]  # Its absolute path, if only its name is known of the label.


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True)
class PinRules:
    """What is pinned beside the files that are seen to be opened, and what files are called.

    Attributes:
        named: Paths of further files; those that are not there are left out.
        folders: Folders below which files are called by their relative paths, the innermost first; then comes
            the working folder. A file elsewhere is called by its name.
        ignored: Folders whose files are not pinned, such as the output.
    """

    named: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file that user code read.

    Attributes:
        label: What a dataset calls it: a path relative to the SPEC's folder or the working folder; elsewhere
            a module's dotted name as a path, and the name of any other file.
        key: What tells it apart in one run: the label of a relative path or a module, else the absolute path.
        path: Its absolute path, where it was read.
        state: What it was when it was read.
        at_load: Whether it was certainly read before the first episode began.
        sha256: The hash of its bytes; empty while nobody has computed it.
    """

    label: str
    key: str
    path: str
    state: State
    at_load: bool = True
    sha256: str = ""


class FileWatch:
    """Notes the files that this process opens, from its making until `end`."""

    def __init__(self, rules: PinRules) -> None:
        self._rules = rules
        self._folder = _absolute(".")
        self._read: dict[str, State] = {}
        self._written: set[str] = set()
        self._at_load: dict[str, bool] = {}
        self._is_first_call = True
        # Whether the policy uses a module that was imported before, nobody knows.
        self._earlier = {*_module_states()}
        _watches.append(self)
        _add_hook()

    def follow(self, rules: PinRules) -> None:
        """Take these rules from now on; other workers may not read what was read so far."""
        self._rules = rules
        self._earlier = {*_module_states(), *self._read}

    def opened(self, path: str, *, writes: bool) -> None:
        """Note an opened file; the bytecode of a module stands for its source."""
        if writes:
            self._written.add(path)
            return
        if path.endswith(".pyc"):
            with contextlib.suppress(ValueError):  # Of bytecode without a source.
                path = importlib.util.source_from_cache(path)
        if path not in self._read and not path.startswith(_UNPINNED):
            self._read[path] = _state(path)

    def files(self) -> tuple[PinnedFile, ...]:
        """Return the files that were read so far; those of the first call are read at load."""
        for path in map(_absolute, self._rules.named):
            with contextlib.suppress(OSError):
                self.opened(path, writes=False)
        self._read |= _module_states()
        ignored = tuple(f"{_absolute(folder)}{os.sep}" for folder in self._rules.ignored)
        files = []
        for path in sorted(self._read.keys() - self._written):
            if not path.startswith(ignored) and self._is_pinned(path):
                self._at_load.setdefault(path, self._is_first_call and path not in self._earlier)
                files.append(self._pinned(path))
        self._is_first_call = False
        return tuple(files)

    def end(self) -> None:
        """Stop noting files."""
        if self in _watches:
            _watches.remove(self)

    def _is_pinned(self, path: str) -> bool:
        """Return whether a file is the user's: no part of Python, of a package or of the system."""
        # `os.path.isfile` never raises.
        if any(folder in path for folder in _NOT_PINNED) or not os.path.isfile(path):  # noqa: PTH113
            return False
        home = f"{_absolute('~')}{os.sep}"
        inside = path.removeprefix(home)
        if inside == path or not inside.startswith(".") or inside.startswith(_HUBS):
            return True
        top = home + Path(inside).parts[0]
        return f"{self._folder}{os.sep}".startswith(f"{top}{os.sep}")  # People work in it.

    def _pinned(self, path: str) -> PinnedFile:
        key = path
        label = Path(path).name
        if path in _modules:
            label = _module_label(path)
            key = f"module {label}"  # Not the label alone: a relative path may have the same one.
        for folder in (*map(_absolute, self._rules.folders), self._folder):
            if path.startswith(f"{folder}{os.sep}"):
                label = key = path.removeprefix(f"{folder}{os.sep}")
                break
        return PinnedFile(label, key, path, self._read[path], self._at_load[path])


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - of a text, not of the disk
    except FileNotFoundError:  # The working folder was deleted.
        return path


# Not `pathlib`: these are compared with each file that is opened.
_UNPINNED = tuple(f"{_absolute(folder)}{os.sep}" for folder in {*_SYSTEM, sys.prefix, sys.base_prefix, _OURS})


_modules: dict[str, tuple[Any, State]] = {}
"""By file, the spec and the file's state when its module was met: a module stays as it was loaded."""


def _module_states() -> dict[str, State]:
    """Return the files of the loaded modules: one that was imported before a watch began opens no file."""
    states = {}
    for name, module in list(sys.modules.items()):
        # Not by `getattr`, which lets a lazy module import something.
        attributes = getattr(module, "__dict__", {})
        file = attributes.get("__file__")
        if not isinstance(file, str) or name == "__main__":
            continue
        if file.startswith(_UNPINNED) and os.pardir not in file:  # As most modules' paths are written.
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
    """Return the path of a module below the folder that it was found in, such as `package/helper.py`."""
    name = Path(path).name
    parts = getattr(_modules[path][0], "name", "").split(".")
    if name != "__init__.py":
        del parts[-1]
    return "/".join([*parts, name])


def _state(path: str) -> State:
    status = os.stat(path)  # noqa: PTH116 - in an audit hook, as little as possible
    return status.st_size, status.st_mtime_ns


_watches: list[FileWatch] = []


@cache
def _add_hook() -> None:
    """Let Python report what is opened; a hook can never be removed, so a process has one."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """Note an `open` event; whatever else is wrong with the path, the call that follows reports it."""
    if event == "open" and _watches and not isinstance(arguments[0], int):
        with contextlib.suppress(OSError, ValueError, TypeError):
            name, mode, flags = arguments
            path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100
            writes = bool(isinstance(mode, str) and set("wax+") & set(mode)) or bool(flags & _WRITES)
            for watch in _watches:
                watch.opened(path, writes=writes)


# Whether files are still the same.


def hashed(file: PinnedFile) -> PinnedFile:
    """Return a file with the hash of its bytes.

    Raises:
        ChangedFilesError: If it is not the file any more that was read.
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
    """Return the files of several workers together, each with its hash.

    Raises:
        ChangedFilesError: If a worker read other bytes under one name than the workers before it.
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
        f"{file.label} was changed during the run, which reads it",
        code="files-changed",
        hint="put the files back that the run began with and resume it, or collect to another folder",
    )


def record(files: Iterable[PinnedFile]) -> list[FileRecord]:
    """Return a dataset's record of files: `path`, `sha256`, and when they were `read` (`load`, `episode`).

    One that has only its name, as several may, has its absolute path as `place`.
    """
    documents = []
    for file in files:
        read = "load" if file.at_load else "episode"
        document: FileRecord = {"path": file.label, "sha256": file.sha256, "read": read}
        if file.key == file.path:
            document["place"] = file.path
        documents.append(document)
    return sorted(documents, key=itemgetter("path", "sha256"))
