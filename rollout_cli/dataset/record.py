"""The fields of info.json, the record of a dataset. `read_info` refuses a field of another type.

The types describe the JSON document itself, so fields that a newer version adds pass through in their order.
`NotRequired` fields may be absent. Fields of type `Any` are recorded for people; no code relies on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, NotRequired, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

from rollout_cli.sources.pins import FileRecord

Object = dict[str, Any]
"""A JSON object that other modules check, or that passes through."""


class WrapperRecord(TypedDict):
    """A wrapper around the environment, as `--wrapper` names it."""

    spec: str
    kwargs: Object
    sha256: NotRequired[str | None]


EnvRecord = TypedDict(
    "EnvRecord",
    {
        "id": NotRequired[str | None],
        "spec_json": NotRequired[Any],
        "class": NotRequired[Any],
        "wrappers": NotRequired[Any],
        "max_episode_length": NotRequired[int | None],
        "render_fps": NotRequired[Any],
        "num_envs": NotRequired[Any],
        "autoreset_mode": NotRequired[Any],
        "kwargs": NotRequired[Object],
        "sha256": NotRequired[str | None],
    },
)
"""The environment as a worker built it. Every data file contains it too, so it names no local path."""


class EnvSourceRecord(TypedDict):
    """Where the environment came from."""

    spec: NotRequired[str]
    path: NotRequired[str | None]
    wrappers: NotRequired[list[WrapperRecord]]


PolicyRecord = TypedDict(
    "PolicyRecord",
    {
        "spec": NotRequired[str],
        "scheme": NotRequired[str | None],
        "path": NotRequired[str | None],
        "sha256": NotRequired[str | None],
        "options": NotRequired[Object],
        "class": NotRequired[Any],
        "saved_by": NotRequired[Any],
        "policies": NotRequired[Any],
    },
)
"""The policy: its SPEC, scheme, file and hash, and the class of the object that chooses actions."""


class WorkerRecord(TypedDict):
    """The user's worker class."""

    sha256: NotRequired[str | None]


class CollectorRecord(TypedDict):
    """The options of the run that readers use; rollout_cli/options/config.py declares all of them."""

    command: NotRequired[Any]
    keep: NotRequired[str | None]
    sampler: NotRequired[str | None]
    shard: NotRequired[str | None]
    episodes: NotRequired[Any]
    workers: NotRequired[int | None]
    envs_per_worker: NotRequired[int | None]
    worker_class: NotRequired[Any]


class ChangeRecord(TypedDict):
    """File changes that the user accepted, with the first episode number after them in each partition."""

    what: str
    from_numbers: list[int]
    before: NotRequired[Any]


class GitRecord(TypedDict):
    """The git commit of the working folder, and a flag for uncommitted changes."""

    commit: str
    dirty: NotRequired[Any]


class VerdictRecord(TypedDict):
    """The verdict on reproducibility: do episodes repeat exactly if they are run again?"""

    status: str
    reason: NotRequired[str]
    scope: NotRequired[Any]
    episodes: NotRequired[Any]
    difference: NotRequired[Any]


class AcceptanceRecord(TypedDict):
    """The numbers of run and kept episodes below `next_number`, with `--keep`."""

    next_number: int
    run: int
    kept: int
    rejected: NotRequired[Any]
    rate: float


class SkippedEpisode(TypedDict):
    """An episode that `--on-env-error` or `--on-worker-death` left out."""

    episode_number: int
    reason: str


class SkippedRecord(TypedDict):
    """The episodes that were skipped."""

    count: int
    note: NotRequired[Any]
    episodes: list[SkippedEpisode]


class RunFacts(TypedDict):
    """The environment, policy and options of a run, its circumstances, and its end.

    `kind` is `recorded`, `written` or `imported` for episodes that another program ran; such a source has no root
    seed. `imported` names the format, the file, and what the file does not say.
    `cut` counts recorded episodes that the program ended before the environment did.
    """

    kind: NotRequired[str]
    env: NotRequired[EnvRecord]
    env_source: NotRequired[EnvSourceRecord]
    policy: NotRequired[PolicyRecord]
    collector: NotRequired[CollectorRecord]
    worker: NotRequired[WorkerRecord]
    seeding: NotRequired[int]
    files: NotRequired[list[FileRecord]]
    versions: NotRequired[dict[str, str]]
    git: NotRequired[GitRecord | None]
    changes: NotRequired[list[ChangeRecord]]
    reproducible: NotRequired[VerdictRecord]
    stopped_by: NotRequired[str]
    acceptance: NotRequired[AcceptanceRecord]
    skipped: NotRequired[SkippedRecord]
    cut: NotRequired[int]
    spaces: NotRequired[Any]
    imported: NotRequired[Any]


class RunRecord(RunFacts):
    """A source of a dataset: one run, by its fingerprint and its root seed."""

    run: str | None
    root_seed: int | None


class DerivedOptions(TypedDict):
    """The options of an operation that readers use; others pass through."""

    drop_info: NotRequired[list[str]]


class DerivedRecord(TypedDict):
    """An operation that derived the dataset from others."""

    operation: str
    options: DerivedOptions


class AnomalyRecord(TypedDict):
    """The first episode and step of a column's unusual values, such as `nan`."""

    column: str
    problem: str
    what: str
    episode: int
    step: int


class Totals(TypedDict):
    """The contents of the segments of a dataset."""

    episodes: int
    steps: int
    bytes: int
    segments: int
    dropped_infos: dict[str, int]
    anomalies: list[AnomalyRecord]


class LimitsRecord(TypedDict):
    """The sizes at which a data file and a row group end."""

    segment_rows: int
    segment_bytes: int
    group_rows: int


class TimesRecord(TypedDict):
    """Times in UTC, ISO 8601 with milliseconds."""

    started: str
    updated: str
    ended: NotRequired[str | None]
    resumed: NotRequired[list[str]]
    repaired: NotRequired[list[str]]


class ReferencesRecord(TypedDict):
    """The mean returns with the normalized scores 0 and 100, such as those of a random and an expert policy."""

    low: float
    high: float


class CardRecord(TypedDict):
    """The options given to `rollout card`."""

    license: NotRequired[str | None]
    plot: NotRequired[bool]
    title: NotRequired[str]
    references: NotRequired[ReferencesRecord]


class DatasetInfo(Totals):
    """The document info.json."""

    format: Any
    format_version: Any
    status: str
    partitions: int
    first_numbers: list[int | None]
    next_observation: bool
    limits: LimitsRecord
    max_episode_length: int | None
    spaces: Object
    features: Object
    info_columns: str
    sources: list[RunRecord]
    derived: list[DerivedRecord]
    times: TimesRecord
    card: NotRequired[CardRecord]


def add_facts(record: RunRecord | DatasetInfo, facts: Mapping[str, Any]) -> None:
    """Set fields of a record by their JSON names."""
    cast("Object", record).update(facts)


_LARGEST = (1 << 63) - 1
_NAMES = {
    dict: "object",
    list: "list",
    str: "string",
    int: "int",
    bool: "bool",
    float: "number",
    NoneType: "null",
}


def wrong_field(info: Mapping[str, Any]) -> str | None:
    """Describe the first invalid field, such as `its steps is 'x', expected int`; None if all are valid."""
    for problem in _problems(DatasetInfo, info, ""):
        return problem
    usable = {
        "status": info["status"] in {"collecting", "complete", "interrupted"},
        "sources": info["sources"],
        "first_numbers": 0 < len(info["first_numbers"]) == info["partitions"],
        "card": _is_scale(info.get("card", {}).get("references")),
    }
    return next((f"its {name} is {info[name]!r:.200}" for name in usable if not usable[name]), None)


def _is_scale(references: ReferencesRecord | None) -> bool:
    return references is None or -math.inf < references["low"] < references["high"] < math.inf


def _problems(declared: Any, value: Any, place: str) -> Iterator[str]:
    """Yield a description of each invalid value at `place` of the document, and of invalid nested values."""
    kind = next((kind for kind in _kinds(declared) if _is_of(kind, value)), None)
    if kind is None:
        yield f"its {place} is {value!r:.200}, expected {_named(declared)}"
    elif is_typeddict(kind):
        yield from _problems_of_fields(kind, value, place)
    elif get_origin(kind) is list:
        for at, item in enumerate(value):
            yield from _problems(get_args(kind)[0], item, f"{place}.{at}")
    elif get_origin(kind) is dict:
        for name, item in value.items():
            yield from _problems(get_args(kind)[1], item, f"{place}.{name}")


def _problems_of_fields(kind: Any, document: Object, place: str) -> Iterator[str]:
    for name, declared in _fields(kind).items():
        is_optional = get_origin(declared) is NotRequired
        field_place = f"{place}.{name}".lstrip(".")
        if name in document:
            yield from _problems(
                get_args(declared)[0] if is_optional else declared, document[name], field_place
            )
        elif not is_optional:
            yield f"its {field_place} is missing, expected {_named(declared)}"


def _kinds(declared: Any) -> tuple[Any, ...]:
    return get_args(declared) if get_origin(declared) is UnionType else (declared,)


def _named(declared: Any) -> str:
    return " or ".join(_NAMES[_plain(kind)] for kind in _kinds(declared))


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _plain(kind: Any) -> Any:
    """Return the type of JSON values for a declared type."""
    if is_typeddict(kind):
        return dict
    return get_origin(kind) or kind


def _is_of(kind: Any, value: Any) -> bool:
    plain = _plain(kind)
    if plain is Any:
        return True
    if plain is float:
        return type(value) in {int, float}
    if plain is int:
        return type(value) is int and 0 <= value <= _LARGEST
    return type(value) is plain


def depth_of(document: Any) -> int:
    """Return the nesting depth of a JSON document."""
    children = document.values() if isinstance(document, dict) else document
    return 1 + max(map(depth_of, children), default=0) if isinstance(document, dict | list) else 0
