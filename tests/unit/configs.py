"""Configurations of one source, and the error of what refuses one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.config import CollectConfig, resolve
from rollout_cli.config.options import CommandName
from rollout_cli.errors import ConfigError


def from_flags(flags: Mapping[str, object], command: CommandName = "collect") -> CollectConfig:
    return resolve(command, flags=flags, environ={})


def from_text(tmp_path: Path, text: str, command: CommandName = "collect") -> CollectConfig:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return resolve(command, flags={}, environ={}, file=path)


def refusal(function: Any, *args: Any, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        function(*args, **kwargs)
    assert caught.value.exit_code == 2
    return caught.value
