"""Kinds of option values: how each is read from text and from TOML, what it accepts, and how it is written down.

A kind raises `ValueError` for what it cannot read; who asked says which option, and what was expected.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_LARGEST_INTEGER = 2**63 - 1
"""Seeds and counts are stored as signed 64-bit integers."""

CLASS_NAME = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
SHA256 = r"[0-9A-Fa-f]{64}"
"""What a `ShapedText` may have to match."""


class EpisodeRange(NamedTuple):
    """The episode numbers first, first + 1, …, stop - 1."""

    first: int
    stop: int

    def __str__(self) -> str:
        return str(self.stop) if self.first == 0 else f"{self.first}:{self.stop}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Args:
        metavar: What stands for a value in help pages.
        expected: Completes the sentence "the option must be …".
    """

    metavar: str
    expected: str

    @property
    def repeats(self) -> bool:
        """Whether a command line may give the option more than once."""
        return False

    def from_flag(self, given: Any) -> object:
        """Read what a command line gave: a text, or a list of them where the option repeats, or a switch's bool."""
        return self.from_text(given)

    def from_text(self, text: str) -> object:
        """Read the text of a flag or environment variable."""
        return text

    def from_toml(self, value: object) -> object:
        """Read a value that a TOML file holds."""
        return value

    def accepts(self, value: object) -> bool:
        """Tell whether a value is of this kind."""
        raise NotImplementedError

    def to_plain(self, value: object) -> object:
        """Return what TOML and JSON can hold, and `from_toml` reads back."""
        return value


@dataclass(frozen=True, slots=True)
class Integer(Kind):
    """An integer of at least `minimum`."""

    minimum: int = 0

    def from_text(self, text: str) -> object:
        """Read decimal digits, with underscores between them as Python and TOML allow."""
        return int(text)

    def accepts(self, value: object) -> bool:
        """Tell whether the value is an integer in range; a bool is none."""
        return isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= _LARGEST_INTEGER


@dataclass(frozen=True, slots=True)
class Seconds(Kind):
    """A length of time; `positive` where zero makes no sense."""

    positive: bool = False

    def from_text(self, text: str) -> object:
        """Read a decimal number."""
        return float(text)

    def accepts(self, value: object) -> bool:
        """Tell whether the value is a finite number in range; a bool is none."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return 0 <= value <= _LARGEST_INTEGER and not (self.positive and value == 0)


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text that is not empty."""

    def accepts(self, value: object) -> bool:
        """Tell whether the value is such a text."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True, slots=True)
class ShapedText(Kind):
    """A text that a regular expression matches as a whole."""

    pattern: str = ""

    def accepts(self, value: object) -> bool:
        """Tell whether the value is such a text."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few words."""

    choices: tuple[str, ...] = ()

    def accepts(self, value: object) -> bool:
        """Tell whether the value is one of the words."""
        return value in self.choices


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """On or off."""

    def from_flag(self, given: Any) -> object:
        """Return the bool that `--flag` or `--no-flag` gave."""
        return given

    def from_text(self, text: str) -> object:
        """Read the words that an environment variable may hold."""
        words = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    def accepts(self, value: object) -> bool:
        """Tell whether the value is a bool."""
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Folder(Kind):
    """A path."""

    def from_text(self, text: str) -> object:
        """Read a path; an empty one would mean the working folder without saying so."""
        if not text:
            raise ValueError(text)
        return Path(text)

    def from_toml(self, value: object) -> object:
        """Read a path from a string."""
        return self.from_text(value) if isinstance(value, str) else value

    def accepts(self, value: object) -> bool:
        """Tell whether the value is a path."""
        return isinstance(value, Path)

    def to_plain(self, value: object) -> object:
        """Return the path's text."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Episodes(Kind):
    """A number of episodes, or a range of episode numbers."""

    def from_text(self, text: str) -> object:
        """Read `N` or `A:B`."""
        first, colon, stop = text.partition(":")
        return EpisodeRange(int(first), int(stop)) if colon else EpisodeRange(0, int(text))

    def from_toml(self, value: object) -> object:
        """Read an integer, or the text `A:B`."""
        if isinstance(value, int) and not isinstance(value, bool):
            return EpisodeRange(0, value)
        return self.from_text(value) if isinstance(value, str) else value

    def accepts(self, value: object) -> bool:
        """Tell whether the value is a range that holds at least one number."""
        number = Integer("N", "")
        return (
            isinstance(value, EpisodeRange)
            and number.accepts(value.first)
            and number.accepts(value.stop)
            and value.first < value.stop
        )

    def to_plain(self, value: object) -> object:
        """Return an integer where the range begins at 0, else the text `A:B`."""
        assert isinstance(value, EpisodeRange)
        return value.stop if value.first == 0 else str(value)


@dataclass(frozen=True, slots=True)
class Keywords(Kind):
    """Keyword arguments, of values that both TOML and JSON hold: dates are left out, they would not come back equal."""

    @property
    def repeats(self) -> bool:
        """One flag gives one keyword."""
        return True

    def from_flag(self, given: Any) -> object:
        """Read one `key=value` from each text; a key given again counts as last given."""
        return dict(_pair(text) for text in given)

    def from_text(self, text: str) -> object:
        """Read `key=value` pairs between spaces, quoted as in a shell."""
        return self.from_flag(shlex.split(text))

    def accepts(self, value: object) -> bool:
        """Tell whether the value is a mapping from text to plain values."""
        return isinstance(value, Mapping) and _is_plain(value)

    def to_plain(self, value: object) -> object:
        """Return a dict of one's own."""
        assert isinstance(value, Mapping)
        return dict(value)


@dataclass(frozen=True, slots=True)
class Texts(Kind):
    """Texts, none of them empty."""

    @property
    def repeats(self) -> bool:
        """One flag gives one text."""
        return True

    def from_flag(self, given: Any) -> object:
        """Keep each text, in order."""
        return tuple(given)

    def from_text(self, text: str) -> object:
        """Read texts between spaces, quoted as in a shell."""
        return tuple(shlex.split(text))

    def from_toml(self, value: object) -> object:
        """Read a list."""
        return tuple(value) if isinstance(value, list) else value

    def accepts(self, value: object) -> bool:
        """Tell whether the value is a tuple of texts."""
        return isinstance(value, tuple) and all(isinstance(text, str) and text.strip() for text in value)

    def to_plain(self, value: object) -> object:
        """Return a list."""
        assert isinstance(value, tuple)
        return list(value)


def _pair(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(text)
    return key, _literal(value)


def _literal(text: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A line break in the text could have smuggled in more keys, and a date cannot be passed on: both stay text.
    return table["value"] if len(table) == 1 and _is_plain(table) else text


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)
