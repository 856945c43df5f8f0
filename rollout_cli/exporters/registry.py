"""The formats, by name: ours, and those that other packages add."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from rollout_cli.errors import UsageError
from rollout_cli.exporters import (
    d3rlpy,
    d4rl,
    hf,
    imitation,
    lerobot,
    minari,
    ogbench,
    rllib,
    robomimic,
    tianshou,
    torchrl,
    zarr,
)
from rollout_cli.exporters.format import Format
from rollout_cli.loading import first_line

ENTRY_POINTS = "rollout.exporters"
"""The group of entry points by which another package adds a `Format`, under its name."""

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        d3rlpy.FORMAT,
        d4rl.FORMAT,
        hf.FORMAT,
        imitation.FORMAT,
        lerobot.FORMAT,
        minari.FORMAT,
        ogbench.FORMAT,
        rllib.FORMAT,
        robomimic.FORMAT,
        tianshou.FORMAT,
        torchrl.FORMAT,
        zarr.FORMAT,
    )
}


def format_named(name: str) -> Format:
    """Return a format.

    Raises:
        UsageError: If there is none of this name, or the package that adds it does not work.
    """
    if name in FORMATS:
        return FORMATS[name]
    added = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    if name not in added:
        names = sorted({*FORMATS, *added})
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"the formats are {', '.join(names)}" + "".join(f"; did you mean {each}?" for each in close)
        raise UsageError(f"there is no format {name!r}", hint=hint)
    try:
        added_format = added[name].load()
    except Exception as error:
        raise UsageError(
            f"the format {name} cannot be loaded from {added[name].value}: {first_line(error)}",
            hint="mend or remove the package that adds it",
        ) from error
    if not isinstance(added_format, Format):
        raise UsageError(
            f"{added[name].value} is a {type(added_format).__name__}, and no format for {name!r}"
        )
    return added_format
