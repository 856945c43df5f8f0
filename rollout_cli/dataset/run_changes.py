"""Differences between two runs; `compare_runs` decides for resume, merge, replay and `info` if runs are the same.

A file is its content (SHA-256) and the place it was read from; its label only appears in messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from rollout_cli.dataset.record import RunFacts
from rollout_cli.keywords import Record
from rollout_cli.sources.pins import FileRecord

_LONGEST = 500
"""The maximum number of characters of values in a message: a table of tasks may be long."""


class Effect(Enum):
    """The consequence of a change for a dataset that would contain both runs."""

    REFUSED = auto()
    """The runs cannot be in one dataset."""
    ACCEPTABLE = auto()
    """The runs can be in one dataset if the user accepts changes."""
    WARNING = auto()
    NOTICE = auto()


class ChangeKind(Enum):
    """A kind of difference between runs: its effect, and its message."""

    OPTION = Effect.REFUSED, "{name} was {old}, is {new}"
    SOURCE = Effect.ACCEPTABLE, "the source of the {name} has changed ({old})"
    FILE_CHANGED = Effect.ACCEPTABLE, "{name} has changed"
    FILE_MISSING = Effect.ACCEPTABLE, "{name} is no longer read"
    EPISODE = Effect.ACCEPTABLE, "{name}"
    """A stored episode differs if it is run again; the name describes the difference."""
    FILE_NEW = Effect.NOTICE, "{name} is read, and was not read before"
    VERSION = Effect.WARNING, "{name} was {old}, is {new}"


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two runs.

    Attributes:
        kind: The kind of difference.
        name: The option, package or source that differs; the label of a file.
        old: The stored value; the hash of a file; the SPEC or path of a source.
        new: The new value.
        place: Where a file was read (`place_of`).
    """

    kind: ChangeKind
    name: str
    old: Any = None
    new: Any = None
    place: str = ""

    @property
    def effect(self) -> Effect:
        """The consequence of the change for a dataset."""
        return self.kind.value[0]

    def __str__(self) -> str:
        old = self.old
        new = self.new
        if self.kind is ChangeKind.OPTION:
            old = "not set" if self.old is None else json.dumps(self.old, default=str)
            new = "not set" if self.new is None else json.dumps(self.new, default=str)
            if len(old) + len(new) > _LONGEST:
                return f"{self.name} has another value"
        return self.kind.value[1].format(name=self.name, old=old, new=new)


def joined_messages(changes: Iterable[Change]) -> str:
    """Return the messages of the changes, each once."""
    return "; ".join(dict.fromkeys(map(str, changes)))


def of_effect(changes: Iterable[Change], *effects: Effect) -> list[Change]:
    """Return the changes with one of these effects."""
    return [change for change in changes if change.effect in effects]


def compare_runs(
    stored: RunFacts, new: RunFacts, options: Iterable[str], *, has_read_files: bool = True
) -> tuple[Change, ...]:
    """Return the differences between a new run and a stored one, in the order of these rules.

    | what differs | effect |
    | --- | --- |
    | an option that decides the data; the numbers of episodes and workers of `exact` | refused |
    | the SPEC of the policy or the environment, unless both are files | refused |
    | the policy's options, not counting the folders of their files | refused |
    | the root seed | refused |
    | the time limit, the policy's class | refused |
    | the environment's spaces or the columns (`compare_spaces`) | refused |
    | the content of the policy's or environment's source | acceptable |
    | the content of the worker class's source | acceptable |
    | the content of a wrapper's source | acceptable |
    | a stored place is read with other content | acceptable: the file has changed |
    | content that was read at load is not read, if `has_read_files` | acceptable: changed if a new file has its name |
    | the same, and this process had imported one of the run's modules before | none: it reads no file again |
    | content that an episode read is not read; its seed may decide that | none |
    | unknown content at an unknown place | notice; at a known place, or known content, none |
    | a version of Python, the platform or a package | warning |

    Args:
        stored: The record of the stored run. What either record does not contain is not compared: a run has
            no `files` and `versions` before its workers have started.
        new: The record of the new run.
        options: The names of the options to compare.
        has_read_files: True if the new run has ended an episode, and so has read its files.
    """
    files = []
    if "files" in stored and "files" in new:
        files = compare_files(stored["files"], new["files"], has_read_files=has_read_files)
    return (
        *_compare_options(stored, new, options),
        *_compare_sources(stored, new),
        *files,
        *_compare_versions(stored.get("versions", {}), new.get("versions", {})),
    )


def compare_spaces(stored: Record, new: Record) -> list[Change]:
    """Compare the `spaces`, or the `features`, of two datasets."""
    names = [name for name in ("spaces", "features") if name in new and stored[name] != new[name]]
    return [Change(ChangeKind.OPTION, name, stored[name], new[name]) for name in names]


def _compare_options(stored: RunFacts, new: RunFacts, options: Iterable[str]) -> Iterator[Change]:
    old_options: Record = stored["collector"]
    new_options: Record = new["collector"]
    names = [*options]
    if "command" in names and new_options.get("command") == "exact":
        names += ["episodes_per_worker", "workers"]
    pairs = {name: (old_options.get(name), new_options.get(name)) for name in names}
    origins: dict[str, tuple[Record, Record]] = {
        "policy": (stored["policy"], new["policy"]),
        "env": (stored["env_source"], new["env_source"]),
    }
    for name, (old, now) in origins.items():
        if not (old["path"] and now["path"] and old.get("scheme") == now.get("scheme")):
            pairs[name] = (old["spec"], now["spec"])
    old, now = origins["policy"]
    pairs["policy_kwargs"] = (old["options"], now["options"])
    if now.get("scheme"):  # The arguments of a user's class are compared unchanged.
        pairs["policy_kwargs"] = (_without_folders(old["options"]), _without_folders(now["options"]))
    both: tuple[tuple[str, str, Record, Record], ...] = (
        ("seed", "root_seed", stored, new),
        ("time limit", "max_episode_length", stored["env"], new["env"]),
        ("policy class", "class", stored["policy"], new["policy"]),
    )
    for name, key, old, now in both:
        if key in old and key in now:
            pairs[name] = (old[key], now[key])
    for name, (before, after) in pairs.items():
        # A record without an option predates the option, which is equivalent to an empty value.
        if before != after and (before or after or name == "seed"):
            yield Change(ChangeKind.OPTION, name, before, after)


def _without_folders(options: Record) -> Record:
    """Return a policy's options without the folders of files, whose contents are in the policy's hash."""
    return {
        name: _without_folders(value)
        if isinstance(value, Mapping)
        else "(a file)"
        if isinstance(value, str) and value.startswith("/")
        else value
        for name, value in options.items()
    }


def _compare_sources(stored: RunFacts, new: RunFacts) -> Iterator[Change]:
    files: dict[str | None, str | None] = {file["sha256"]: file["path"] for file in stored.get("files", ())}
    sources: tuple[tuple[str, str | None, Record, Record], ...] = (
        ("policy", stored["policy"]["spec"], stored["policy"], new["policy"]),
        ("environment", stored["env_source"]["spec"], stored["env"], new["env"]),
        ("worker class", stored["collector"].get("worker_class"), stored.get("worker", {}), new["worker"]),
    )
    for name, spec, old, now in sources:
        content = old.get("sha256")
        if content != now["sha256"]:
            yield Change(ChangeKind.SOURCE, name, files.get(content, spec), now["sha256"])
    wrappers = zip(stored["env_source"]["wrappers"], new["env_source"]["wrappers"], strict=False)
    for earlier, wrapper in wrappers:
        if earlier["sha256"] != wrapper["sha256"]:
            yield Change(ChangeKind.SOURCE, "wrapper", wrapper["spec"], wrapper["sha256"])


def _compare_versions(stored: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in new:
        if name in stored and stored[name] != new[name]:
            yield Change(ChangeKind.VERSION, name, stored[name], new[name])


def place_of(file: FileRecord) -> str:
    """Return the identity of a file in one run: its absolute path, if recorded, else its label."""
    return file.get("place", file["path"])


def compare_files(
    stored: Sequence[FileRecord], new: Sequence[FileRecord], *, has_read_files: bool = True
) -> list[Change]:
    """Return the differences between the files that two runs have read; see `compare_runs`."""
    old_places = _hashes_by_place(stored)
    new_places = _hashes_by_place(new)
    contents = {file["sha256"] for file in new}
    unknown = [file for file in new if file["sha256"] not in {other["sha256"] for other in stored}]
    new_names = {Path(file["path"]).name for file in unknown}
    loaded = {_identity(file) for file in stored if file["read"] == "load"}
    was_imported = any(file["read"] == "episode" and _identity(file) in loaded for file in new)
    changes = []
    for file in stored:
        content = file["sha256"]
        here = new_places.get(place_of(file), set())
        kind = None
        if content not in here and here - old_places[place_of(file)]:
            kind = ChangeKind.FILE_CHANGED
        elif file["read"] == "load" and content not in contents and has_read_files and not was_imported:
            is_replaced = Path(file["path"]).name in new_names
            kind = ChangeKind.FILE_CHANGED if is_replaced else ChangeKind.FILE_MISSING
        if kind is not None:
            changes.append(Change(kind, file["path"], content, place=place_of(file)))
    added = [file for file in unknown if place_of(file) not in old_places]
    return changes + [
        Change(ChangeKind.FILE_NEW, file["path"], new=file["sha256"], place=place_of(file)) for file in added
    ]


def joined_files(
    stored: Sequence[FileRecord], new: Sequence[FileRecord], accepted: Iterable[Change] = ()
) -> list[FileRecord]:
    """Return the files of both runs, without those that `accepted` changes replaced or removed.

    A stored file that the new run has not read stays: what an episode reads may depend on its seed.
    """
    left_out = {(change.place, change.old) for change in accepted}
    left_out |= set(map(_identity, new))
    # For a module that the process had imported before, the stored record has the time of the read.
    loaded = {_identity(file) for file in stored if file["read"] == "load"}
    files = [file for file in stored if _identity(file) not in left_out]
    for file in new:
        read = "load" if _identity(file) in loaded else file["read"]
        files.append({**file, "read": read})
    return files


def _identity(file: FileRecord) -> tuple[str, str]:
    return place_of(file), file["sha256"]


def _hashes_by_place(files: Iterable[FileRecord]) -> dict[str, set[str]]:
    places: dict[str, set[str]] = {}
    for file in files:
        places.setdefault(place_of(file), set()).add(file["sha256"])
    return places
