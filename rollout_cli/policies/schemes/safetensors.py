"""The scheme `safetensors`: tensors by name, for a module that a factory makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.loading import needing
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.state_dict import filled_module


def _load(
    files: PolicyFiles,
    options: Mapping[str, Any],
    env_spec: EnvSpec,
    *,
    deterministic: bool,  # noqa: ARG001 - the module that is returned is adapted to it
) -> Any:
    with needing("safetensors"), needing("torch"):
        from safetensors.torch import load  # noqa: PLC0415 - only workers with such a policy need it
    return filled_module(load(files.data), files, options.get("factory"), env_spec)


SAFETENSORS = FileScheme("safetensors", "a file of safetensors", _load, {"factory": str})
