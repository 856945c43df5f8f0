"""The types of option values, and their parsing from strings and TOML values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from rollout_cli.keywords import is_plain
from rollout_cli.sources.remote import folder_of

_LARGEST = 2**63 - 1


class EpisodeRange(NamedTuple):
    """The episode numbers first, first + 1, …, stop - 1."""

    first: int
    stop: int

    def __str__(self) -> str:
        return str(self.stop) if self.first == 0 else f"{self.first}:{self.stop}"


class Shard(NamedTuple):
    """Part `number` (from 1) of a run that is divided into `parts`."""

    number: int
    parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    def part_of(self, numbers: range) -> range:
        """Return the numbers of this part."""
        size = len(numbers)
        return numbers[size * (self.number - 1) // self.parts : size * self.number // self.parts]


def _expanded(value: object) -> object:
    """Return a string such as `1e5` in plain digits; return other values unchanged."""
    if isinstance(value, str) and re.fullmatch(r"\d[\d_]*(\.\d+)?[eE]\+?\d\d?", value):
        return f"{Decimal(value):f}"
    return value


def _episode_range(value: object) -> EpisodeRange:
    """Parse `N`, `A:B` or an integer."""
    text = str(_expanded(value)).strip() if type(value) in {str, int, EpisodeRange} else ""
    if match := re.fullmatch(r"(?:(\d[\d_]*):)?(\d[\d_]*)", text):
        episodes = EpisodeRange(int(match[1] or 0), int(match[2]))
        if episodes.first < episodes.stop <= _LARGEST:
            return episodes
    raise PydanticCustomError("range", "Input should be a number of episodes, or A:B with 0 <= A < B")


def _shard(value: object) -> Shard:
    """Parse `i/n`."""
    if isinstance(value, Shard):
        return value
    match = re.fullmatch(r"(\d+)/(\d+)", value) if isinstance(value, str) else None
    if match and 1 <= int(match[1]) <= int(match[2]) <= _LARGEST:
        return Shard(int(match[1]), int(match[2]))
    raise PydanticCustomError("shard", "Input should be i/n, the i-th of n parts, with 1 <= i <= n")


def _duration(value: object) -> float:
    """Return the seconds of a number or of a string such as `1h30m`."""
    text = str(value).strip() if type(value) in {str, int, float} else ""
    if re.fullmatch(r"[\d.e+-]+", text):
        text += "s"
    if match := re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d*\.?\d+(?:e[+-]?\d+)?)s)?", text):
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        if 0 < (total := 3600 * hours + 60 * minutes + seconds) <= _LARGEST:
            return total
    raise PydanticCustomError("duration", "Input should be a time above 0, such as 90 or 1h30m")


def _folder(value: object) -> Path:
    """Parse a path or URI. An empty string is rejected, because it would silently mean the working folder."""
    if not isinstance(value, Path | str) or not str(value):
        raise PydanticCustomError("folder", "Input should be the path of a folder")
    return folder_of(value)


def _keywords(value: object) -> dict[str, Any]:
    """Return keyword arguments that TOML and JSON both represent: a date would not round-trip."""
    if not isinstance(value, Mapping) or not is_plain(value):
        raise PydanticCustomError(
            "keywords",
            "Input should be key=value pairs whose values are TOML literals (not dates) or strings",
        )
    return dict(value)


def _tasks(value: object) -> tuple[dict[str, Any], ...]:
    """Read a file of tasks, or accept its content: info.json records the tasks, not the file."""
    if isinstance(value, str):
        try:
            value = json.loads(Path(value).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise PydanticCustomError(
                "tasks",
                "Input should be a file with a list of JSON objects: {reason}",
                {"reason": str(error)},
            ) from error
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(task, Mapping) and is_plain(task) for task in value)
    ):
        raise PydanticCustomError("tasks", "Input should be a list of at least one JSON object, without null")
    return tuple(map(dict, value))


ALLOWED = {
    "N": "a whole number, such as 16 or 100_000",
    "SHARE": "a number, such as 0.5 or 2",
    "P": "a probability, such as 0.05",
    "STD": "a number, such as 0.1",
    "N|A:B": "a number of episodes, such as 1000, or a range of episode numbers, such as 1000:2000",
    "EXPRESSION": "an expression, such as 'return >= 400'",
    "i/n": "a part and the number of parts, such as 2/3",
    "SECONDS": "a number of seconds, such as 0.5 or 30",
    "TIME": "seconds, such as 90, or hours, minutes and seconds, such as 1h30m",
    "KEY=VALUE": "names and values, such as size=4",
    "KEY": "dotted paths, such as episode.t, or glob patterns, such as *_time",
    "MODULE:CLASS": "the name of a class, such as my_module:MyWorker",
    "HEX": "64 hexadecimal digits, as sha256sum prints them",
    "FILE": "the paths of files",
    "SPEC": "a non-empty UTF-8 string",
    "NAME": "a non-empty UTF-8 string",
    "DIR": "the path of a folder, or a URI such as s3://bucket/folder",
    "": "true or false",
}
"""The accepted values of options by placeholder, for hints."""


_Integer = Annotated[int, BeforeValidator(_expanded)]
Count = Annotated[_Integer, Field(ge=1, le=_LARGEST)]
SegmentBytes = Annotated[_Integer, Field(ge=1, le=1 << 30)]  # A segment is held in memory.
Natural = Annotated[_Integer, Field(ge=0, le=_LARGEST)]
Workers = Annotated[_Integer, Field(ge=1, le=1_024)]
EnvsPerWorker = Annotated[_Integer, Field(ge=1, le=65_536)]
Seconds = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1_024, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Deviation = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]
Limit = Annotated[float, Field(gt=0, le=_LARGEST, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
Names = Annotated[
    tuple[Annotated[str, Field(pattern=r"\S")], ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
Sha256 = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{64}$")]
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
Tasks = Annotated[tuple[Mapping[str, Any], ...], PlainValidator(_tasks)]
Keywords = Annotated[Mapping[str, Any], PlainValidator(_keywords)]
Episodes = Annotated[EpisodeRange, PlainValidator(_episode_range)]
Duration = Annotated[float, PlainValidator(_duration)]
OneShard = Annotated[Shard, PlainValidator(_shard)]
Folder = Annotated[Path, PlainValidator(_folder)]
