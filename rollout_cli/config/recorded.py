"""The options of a run as its dataset records them in info.json, and the run that they ask for again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollout_cli.config.collect_config import COMMANDS, OPTIONS, CollectConfig, options_of
from rollout_cli.errors import ConfigError, DatasetFormatError

_NOT_RECORDED = frozenset({"output", "overwrite", "resume", "seed"})
"""Where a dataset lies, and what was there before it, are no part of it; the root seed has a place of its own."""


def recorded_options(config: CollectConfig) -> dict[str, Any]:
    """Return the command and all its options as info.json has them under `collector`; None where not said."""
    values = {option.name: getattr(config, option.name) for option in options_of(config.command)}
    return {"command": config.command} | {
        name: None if value is None else OPTIONS[name].kind.to_plain(value)
        for name, value in values.items()
        if name not in _NOT_RECORDED
    }


def recorded_values(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command, options and root seed of the run that made a dataset, as `CollectConfig` takes them.

    Policies and environments in files are named by their absolute paths, so that the working folder does not matter.

    Args:
        info: The dataset's info.json.

    Raises:
        DatasetFormatError: If it records no options that this version knows.
    """
    try:
        told = dict(info["collector"])
        command = told.pop("command")
        told.pop("argv", None)  # Words for people: the options are what they came to.
        for name, source in (("policy", info["policy"]), ("env", info["env_source"])):
            told[name] = source["path"] or told[name]
        values = {name: OPTIONS[name].kind.from_toml(value) for name, value in told.items() if value is not None}
        seed = info["root_seed"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetFormatError(
            f"info.json does not record the options of a run: {error}",
            hint="it was made by another version, or not by `rollout collect` or `rollout exact`",
        ) from error
    if command not in COMMANDS:
        raise DatasetFormatError(f"info.json records the command {command!r}, which is none")
    return {"command": command, **values, "seed": seed}


def cut_options(info: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the options that a dataset does not record in full, for their values looked like secrets.

    Args:
        info: The dataset's info.json.

    Returns:
        For each such option the paths of what was cut, as `env_kwargs.token`; `recorded_values` has `***` there.
    """
    found: dict[str, list[str]] = {}
    for path in info.get("redacted", []):
        inner = path.removeprefix("collector.")
        name = re.split(r"[.\[]", inner, maxsplit=1)[0]
        if path.startswith("collector.") and name in OPTIONS:
            found.setdefault(name, []).append(inner)
    return found


def recorded_config(info: Mapping[str, Any], **changes: Any) -> CollectConfig:
    """Return the configuration that makes a dataset's episodes again.

    Args:
        info: The dataset's info.json.
        changes: Options to give other values, such as `output`, which is not recorded.

    Raises:
        DatasetFormatError: If info.json records no options that this version knows.
        ConfigError: If an option has a value that is not allowed, or one that was cut from the record as a secret and
            is not among the changes.
    """
    cut = [path for name, paths in cut_options(info).items() if name not in changes for path in paths]
    if cut:
        raise ConfigError(
            f"the dataset does not record the value of {', '.join(cut)}, which looked like a secret",
            hint="give the option anew",
        )
    return CollectConfig(**recorded_values(info) | changes)
