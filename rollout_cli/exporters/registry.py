"""The formats, by name: ours, and those that other packages add."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from rollout_cli.errors import UsageError
from rollout_cli.exporters import minari
from rollout_cli.exporters.format import Format

ENTRY_POINTS = "rollout.exporters"
"""The group of entry points by which another package adds a `Format`, under its name."""

FORMATS: dict[str, Format] = {each.name: each for each in (minari.FORMAT,)}


def format_named(name: str) -> Format:
    """Return a format.

    Raises:
        UsageError: If there is none of this name.
    """
    if name in FORMATS:
        return FORMATS[name]
    added = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    if name in added:
        added_format: Format = added[name].load()
        return added_format
    names = sorted({*FORMATS, *added})
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the formats are: {', '.join(names)}"
    raise UsageError(f"there is no format {name!r}", hint=hint)
