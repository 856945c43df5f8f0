"""The fields of info.json that the package reads, and their types: `read_info` refuses other types."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any

from rollout_cli.episodes.plain import Document

_FIELDS = """
status info_columns                       : string
episodes steps bytes segments partitions  : int
first_numbers derived                     : list
first_numbers.*                           : int null
next_observation                          : bool
limits spaces features dropped_infos times: object
limits.segment_rows limits.segment_bytes limits.group_rows: int
max_episode_length                        : int null
dropped_infos.*                           : int
anomalies                                 : list
anomalies.*                               : object
anomalies.*.column anomalies.*.problem anomalies.*.what: string
anomalies.*.episode anomalies.*.step      : int
times.started times.updated               : string
times.ended                               : string null absent
times.resumed times.repaired              : list absent
card                                      : object absent
card.license                              : string null absent
card.plot                                 : bool absent
derived.*                                 : object
derived.*.operation                       : string
derived.*.options                         : object
derived.*.options.drop_info               : list absent
derived.*.options.drop_info.*             : string
sources                                   : list
sources.*                                 : object
sources.*.run                             : string null
sources.*.root_seed                       : int
sources.*.env                             : object absent
sources.*.env.id                          : string null absent
sources.*.env.kwargs                      : object absent
sources.*.env.max_episode_length          : int null absent
sources.*.env_source sources.*.policy sources.*.worker: object absent
sources.*.env_source.spec sources.*.policy.spec: string absent
sources.*.env_source.path sources.*.policy.path: string null absent
sources.*.env.sha256 sources.*.policy.sha256 sources.*.worker.sha256: string null absent
sources.*.env_source.wrappers             : list absent
sources.*.env_source.wrappers.*           : object
sources.*.env_source.wrappers.*.spec      : string
sources.*.env_source.wrappers.*.kwargs    : object
sources.*.env_source.wrappers.*.sha256    : string null absent
sources.*.policy.scheme                   : string null absent
sources.*.policy.options                  : object absent
sources.*.collector                       : object absent
sources.*.collector.keep sources.*.collector.sampler sources.*.collector.shard: string null absent
sources.*.collector.workers sources.*.collector.envs_per_worker: int null absent
sources.*.files sources.*.changes         : list absent
sources.*.files.* sources.*.changes.*     : object
sources.*.files.*.path sources.*.files.*.sha256 sources.*.files.*.read: string
sources.*.files.*.place                   : string absent
sources.*.changes.*.what                  : string
sources.*.changes.*.from_numbers          : list
sources.*.changes.*.from_numbers.*        : int
sources.*.versions                        : object absent
sources.*.versions.*                      : string
sources.*.git                             : object null absent
sources.*.git.commit                      : string
sources.*.reproducible                    : object absent
sources.*.reproducible.status             : string
sources.*.reproducible.reason             : string absent
sources.*.stopped_by                      : string absent
sources.*.acceptance                      : object absent
sources.*.acceptance.run sources.*.acceptance.kept sources.*.acceptance.next_number: int
sources.*.acceptance.rate                 : int number
sources.*.skipped                         : object absent
sources.*.skipped.count                   : int
sources.*.skipped.episodes                : list
sources.*.skipped.episodes.*              : object
sources.*.skipped.episodes.*.episode_number: int
sources.*.skipped.episodes.*.reason       : string
"""
"""Paths and their types, one set a line, parents first; `*` stands for all values of a list or an object.

Integers are those from 0 to 2**63 - 1.
"""

_ABSENT = object()

_NAMES = {
    dict: "object",
    list: "list",
    str: "string",
    bool: "bool",
    float: "number",
    NoneType: "null",
    object: "absent",
}


def wrong_field(info: Document) -> str | None:
    """Return what is wrong in a document, such as `its steps is 'x', expected int`; None where nothing is."""
    for line in _FIELDS.split("\n")[1:-1]:
        paths, types = map(str.split, line.split(":"))
        for path in paths:
            for place, value in _values(info, path.split("."), ""):
                if _type_name(value) not in types:
                    found = "missing" if value is _ABSENT else f"{value!r:.200}"
                    return f"its {place} is {found}, expected {' or '.join(types)}"
    usable = {
        "status": info["status"] in ("collecting", "complete", "interrupted"),
        "sources": info["sources"],
        "first_numbers": 0 < len(info["first_numbers"]) == info["partitions"],
    }
    return next((f"its {name} is {info[name]!r:.200}" for name in usable if not usable[name]), None)


def _values(document: Any, keys: list[str], place: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a path and their places; an absent parent has none."""
    if not keys:
        yield place, document
    elif type(document) in (dict, list):
        pairs = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in pairs if keys[0] == "*" else [(keys[0], document.get(keys[0], _ABSENT))]:
            yield from _values(value, keys[1:], f"{place}.{key}".lstrip("."))


def _type_name(value: Any) -> str:
    if type(value) is int:
        return "int" if 0 <= value < 1 << 63 else "another integer"
    return _NAMES[type(value)]


def depth_of(document: Any) -> int:
    """Return how deep the values of a JSON document are nested."""
    children = document.values() if isinstance(document, dict) else document
    return 1 + max(map(depth_of, children), default=0) if isinstance(document, dict | list) else 0
