"""The options of a dataset that is to be resumed, as one more source of them: the weakest one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_cli.config import cut_options, recorded_values
from rollout_cli.config.options import CommandName
from rollout_cli.dataset.layout import is_unbegun, read_info
from rollout_cli.errors import ConfigError, UsageError


def recorded_layer(command: CommandName, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the dataset that is to be resumed, for those that nobody gives.

    Args:
        command: The command that was called.
        given: The options that were given.

    Raises:
        ConfigError: If there is no word of which dataset, or an option is missing that was cut as a secret.
        UsageError: If it was made by the other command.
        DatasetFormatError: If there is no dataset.
    """
    if "output" not in given:
        raise ConfigError("--resume does not say what to resume", hint="name the dataset's folder with --output DIR")
    says_how_much = not {"timesteps", "episodes", "episodes_per_worker"}.isdisjoint(given)
    if says_how_much and is_unbegun(given["output"]):
        return {}
    info = read_info(given["output"])
    values = recorded_values(info)
    made_by = values.pop("command")
    if made_by != command:
        raise UsageError(
            f"{given['output']} was made by `rollout {made_by}`, not by `rollout {command}`",
            hint=f"run: rollout {made_by} --resume --output {given['output']}",
        )
    missing = sorted(path for name, paths in cut_options(info).items() if name not in given for path in paths)
    if missing:
        raise ConfigError(f"the value of {', '.join(missing)} was not recorded", hint="give the option anew")
    return values
